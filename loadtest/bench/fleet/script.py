"""Recorded agents or conversations as texts of the right length.

An id of a block becomes the same text each time, 4 characters a token, so equal prefixes of ids are equal
prefixes of text. Blocks of agents have 64 tokens and ids of one session; blocks of conversations have 512
tokens and are shared by all.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadtest.traces import opened_trace, read_trace

PROMPT_TOKENS_MAX = 131_072
GAP_S_MIN, GAP_S_MAX = 0.5, 60.0
"""Pauses inside a session are clipped to this range; 60 s as in the publishers' own replay tool."""

REQUESTS_MIN = 3
"""Sessions with fewer requests are left out."""

SESSION_S_MIN = 150.0
"""Trace time that a session takes at least, nearly always: so a run is handed enough sessions."""

KEPT_MAX = 8
"""Encoded works that are kept, of some ten megabytes each."""

AGENT_BLOCK_TOKENS, CONVERSATION_BLOCK_TOKENS = 64, 512
_CHARS_PER_TOKEN = 4
_WORDS = ("alpha", "beta", "gamma", "delta", "omega", "router", "cache", "token", "prefix", "worker", "model")
_POOL_CHARS = 1 << 20


class Ask(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        wait_s: Pause after the predecessor's answer (agents), or time of arrival (conversations).
        output_tokens: Before the bound of the load.
    """

    wait_s: float
    block_ids: Sequence[int]
    output_tokens: int


class Session(msgspec.Struct, frozen=True):
    """Requests of one agent, each after the answer to the one before."""

    name: str
    asks: list[Ask]


class _Entry(msgspec.Struct):
    t: float
    prompt_tokens: int = msgspec.field(default=0, name="in")
    output_tokens: int = msgspec.field(default=0, name="out")
    hash_ids: list[int] | None = None
    api_time: float | None = None


class _Recording(msgspec.Struct):
    id: str
    requests: list[_Entry]


class Work(msgspec.Struct, frozen=True):
    """Requests that one run may send: sessions of agents, the last one first, or arrivals by their times."""

    sessions: list[Session]
    arrivals: list[Ask]


class Traces:
    """Recorded traffic, read once for all runs."""

    def __init__(self, agents: Path, conversation: Path) -> None:
        self._agents = agents
        self._conversation = conversation
        self._sessions: list[Session] = []
        self._encoded: dict[tuple[int, int, float, float], bytes] = {}

    def encoded_work(self, users: int, seed: int, start_s: float, seconds: float) -> bytes:
        """The same as `work` in MessagePack; kept, since all routers of a repetition get the same."""
        key = users, seed, start_s, seconds
        if key not in self._encoded:
            while len(self._encoded) >= KEPT_MAX:
                del self._encoded[next(iter(self._encoded))]
            self._encoded[key] = msgspec.msgpack.encode(self.work(users, seed, start_s, seconds))
        return self._encoded[key]

    def work(self, users: int, seed: int, start_s: float, seconds: float) -> Work:
        """Draw the requests of one run.

        Args:
            users: Agents at work at the same time; 0 for conversations.
            seed: Seed of the order of the sessions.
            start_s: Start of the window of conversations in the trace.
            seconds: Trace time in which requests are sent.

        Raises:
            TraceError: A file cannot be read.
            msgspec.DecodeError: A line is not a session.
        """
        if not users:
            return Work([], read_arrivals(self._conversation, start_s, seconds))
        if not self._sessions:
            self._sessions = read_sessions(self._agents)
        sessions = list(self._sessions)
        random.Random(seed).shuffle(sessions)
        return Work(sessions[-round(users * max(1.5, seconds / SESSION_S_MIN)) :], [])


def read_sessions(path: Path) -> list[Session]:
    """Read agents' sessions; `TraceError` for an unreadable file, `DecodeError` for another kind of line."""
    decoder = msgspec.json.Decoder(_Recording)
    sessions = []
    with opened_trace(path) as lines:
        for line in lines:
            recording = decoder.decode(line)
            asks, ended_s = [], 0.0
            for entry in recording.requests:
                if entry.hash_ids is None or entry.prompt_tokens > PROMPT_TOKENS_MAX:
                    continue
                gap_s = min(GAP_S_MAX, max(GAP_S_MIN, entry.t - ended_s))
                asks.append(Ask(gap_s, entry.hash_ids, entry.output_tokens))
                ended_s = entry.t + (entry.api_time or 0.0)
            if len(asks) >= REQUESTS_MIN:
                sessions.append(Session(recording.id, asks))
    return sessions


def read_arrivals(path: Path, start_s: float, seconds: float) -> list[Ask]:
    """Read the conversations that arrive in a window, their times counted from its start.

    May raise `TraceError`.
    """
    return [
        Ask(row.arrival_s - start_s, row.block_ids, row.output_tokens)
        for row in read_trace(path)
        if start_s <= row.arrival_s < start_s + seconds
    ]


class Texts:
    """Texts of blocks, made when first asked for; equal ids of two scopes have different texts."""

    _pool = ""

    def __init__(self, scope: str, block_tokens: int) -> None:
        self._scope, self._chars = scope, block_tokens * _CHARS_PER_TOKEN
        self._made: dict[int, bytes] = {}
        if not Texts._pool:
            Texts._pool = " ".join(random.Random(1).choices(_WORDS, k=_POOL_CHARS // 6))

    def prompt(self, block_ids: Iterable[int]) -> bytes:
        """Return a prompt, ready to stand inside quotes in JSON."""
        return b"".join([self._made.get(block) or self._make(block) for block in block_ids])

    def _make(self, block: int) -> bytes:
        head = f"[{self._scope}.{block}] "
        start = hash((len(self._scope), block)) % (len(Texts._pool) - self._chars)
        text = (head + Texts._pool[start : start + self._chars])[: self._chars].encode()
        self._made[block] = text
        return text


class Ideal:
    """Reuse by one endless cache that all workers share, counted in blocks."""

    def __init__(self) -> None:
        self.blocks = self.reused = 0

    def count(self, block_ids: Sequence[int], seen: set[int]) -> None:
        """Count one prompt after those whose blocks were seen, which is changed."""
        for block in block_ids:
            if block not in seen:
                break
            self.reused += 1
        self.blocks += len(block_ids)
        seen.update(block_ids)

    @property
    def ratio(self) -> float:
        """Reused blocks over all."""
        return self.reused / max(1, self.blocks)
