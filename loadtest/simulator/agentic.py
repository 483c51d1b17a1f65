"""Recorded sessions of coding agents as a closed loop.

The format is that of github.com/callanjfox/kv-cache-tester, ``traces/``, one session a line. Ids of 64-token
blocks hold inside their session only and stand for whole prefixes.

*Waiting.* A request comes when its predecessor has been answered and the recorded pause is over. Sub-agents
run side by side after one request of their parent, whose next request waits for all of them but those
launched asynchronously (no recorded duration):

    parent     [0] ────────────────────────────────────> [4]        4 waits for 2 and 3
    agent 1      └─> [1] ──> [2] ─────────────────────────^
    agent 2      └─> [3] ─────────────────────────────────^

*Sharing.* Sessions of one product share its tools and system prompt, which a session's ids cannot show: those
with equal (first model, tool tokens, system tokens) get the same leading blocks. So do sub-agents.

*Answers.* When the next request that extends a prompt does so by at least the answer's length, the blocks
behind the prompt are the answer's. Else the client left something out (thinking, mostly), and the answer's
blocks never come again.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from loadtest.simulator.identity import FreshBlocks, Hashes, answer_blocks, hashes_of, scope_root
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.traces import TraceError, opened_trace

GAP_S_MAX = 60.0
"""Longest pause inside a session, as in the publishers' own replay tool: people go for lunch."""

USERS = 64
"""Sessions at work at the same time unless told otherwise."""

_SUBAGENT = "subagent"


class _Entry(msgspec.Struct):
    """A request, or a sub-agent with requests of its own, whose times count from its start.

    The time of a sub-agent is its end, or its start if it has no duration.
    """

    t: float
    type: str
    prompt_tokens: int = msgspec.field(default=0, name="in")
    output_tokens: int = msgspec.field(default=0, name="out")
    hash_ids: list[int] = []
    api_time: float | None = None
    requests: list["_Entry"] = []
    duration_ms: float | None = None
    models: list[str] = []
    tool_tokens: int = 0
    system_tokens: int = 0


class _Recording(msgspec.Struct):
    id: str
    block_size: int
    models: list[str]
    tool_tokens: int
    system_tokens: int
    requests: list[_Entry]


def read_agentic(
    path: Path,
    *,
    users: int = USERS,
    sessions: int | None = None,
    gap_s_max: float = GAP_S_MAX,
    prompt_tokens_max: int | None = None,
    share_system: bool = True,
    seed: int = 1,
) -> Workload:
    """Read sessions of agents from ``.jsonl`` (``.gz``, ``.zst``), in an order drawn from the seed.

    ``users`` > 0 sessions are at work at a time. ``sessions`` limits their number, None for all; beyond the
    file they repeat as sessions of other users, who share only tools and system prompt with those before, and
    only with ``share_system``. Pauses are at most ``gap_s_max`` seconds; requests over ``prompt_tokens_max``
    are left out, for engines with less context.

    Raises:
        TraceError: The file cannot be read, or nothing is left of it.
    """
    assert users > 0
    with opened_trace(path) as lines:
        numbers = [number for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbers:
        raise TraceError(f"{path} has no sessions")
    places = _places(numbers, len(numbers) if sessions is None else sessions, seed)
    built: list[tuple[int, Session]] = []
    for number, recording in _recordings(path, places):
        for place, copy in places[number]:
            maker = _SessionMaker(recording, copy, gap_s_max, prompt_tokens_max, share_system=share_system)
            try:
                requests = maker.make()
            except (ValueError, OverflowError) as error:
                raise TraceError(f"{path}, line {number}: {error}") from error
            if requests:
                built.append((place, Session(None, requests)))
    if not built:
        raise TraceError(f"{path} has no request of at most {prompt_tokens_max} prompt tokens")
    built.sort(key=lambda at: at[0])
    notes = f"closed loop of {users} users, pauses of at most {gap_s_max:g} s"
    return Workload(
        path.name, tuple(session for _, session in built), users=users, notes=notes, named_sessions=True
    )


def _places(numbers: Sequence[int], sessions: int, seed: int) -> dict[int, list[tuple[int, int]]]:
    """For each line that is used, at which places of the workload, and as which copy."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    order: list[int] = []
    for place in range(sessions):
        copy, index = divmod(place, len(numbers))
        if index == 0:
            order = random.Random(f"{seed}/sessions/{copy}").sample(numbers, len(numbers))
        places[order[index]].append((place, copy))
    return places


def _recordings(path: Path, numbers: Collection[int]) -> Iterator[tuple[int, _Recording]]:
    decoder = msgspec.json.Decoder(_Recording)
    with opened_trace(path) as lines:
        for number, line in enumerate(lines, start=1):
            if number not in numbers:
                continue
            try:
                recording = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; expected a session with id, block_size, models, "
                    "tool_tokens, system_tokens and requests"
                ) from error
            if recording.block_size != ENGINE_BLOCK_TOKENS:
                raise TraceError(
                    f"{path}, line {number}: blocks of {recording.block_size} tokens; "
                    f"only {ENGINE_BLOCK_TOKENS} are understood"
                )
            yield number, recording


class _SessionMaker:
    """Turns one recording into the requests of one session."""

    def __init__(
        self,
        recording: _Recording,
        copy: int,
        gap_s_max: float,
        prompt_tokens_max: int | None,
        *,
        share_system: bool,
    ) -> None:
        self._recording = recording
        self._root = scope_root("session", recording.id, copy)
        self._fresh = FreshBlocks("session", recording.id, copy)
        self._gap_s_max = gap_s_max
        self._prompt_tokens_max = prompt_tokens_max
        self._share_system = share_system
        self._shared: dict[int, tuple[Hashes, Hashes]] = {}
        self._made: list[SimRequest] = []
        taken_s = [entry.api_time for entry in recording.requests if entry.api_time is not None]
        # The recording lacks the duration of one request in ten: the median replaces it.
        self._usual_s = median(taken_s) if taken_s else 0.0

    def make(self) -> tuple[SimRequest, ...]:
        """The requests, each behind those that it waits for.

        Raises:
            ValueError: The recording contradicts itself.
            OverflowError: An id is negative or does not fit into 64 bits.
        """
        recording = self._recording
        entries = sorted(recording.requests, key=lambda entry: entry.t)
        line = self._line(entries, recording)
        position = 0
        parent: dict[int, float] = {}  # Index and recorded end of the next request's or agent's predecessor.
        agents: dict[int, float] = {}
        for entry in entries:
            if entry.type != _SUBAGENT:
                if position < len(line) and entry is line[position]:
                    parent = self._add(line, position, entry.t, agents or parent)
                    agents = {}
                    position += 1
                continue
            begin_s = entry.t - (entry.duration_ms or 0.0) / 1000.0
            own_line = self._line(sorted(entry.requests, key=lambda request: request.t), entry)
            last = parent
            for index, request in enumerate(own_line):
                last = self._add(own_line, index, begin_s + request.t, last)
            if own_line and entry.duration_ms is not None:
                agents |= last
        return tuple(self._made)

    def _line(self, entries: Sequence[_Entry], owner: _Recording | _Entry) -> list[_Entry]:
        """The requests of one conversation that are kept; notes the shared blocks that they begin with."""
        line: list[_Entry] = []
        for entry in entries:
            if entry.type == _SUBAGENT:
                continue
            if entry.prompt_tokens < 1 or len(entry.hash_ids) != entry.prompt_tokens // ENGINE_BLOCK_TOKENS:
                raise ValueError(
                    f"the request at {entry.t} s has {entry.prompt_tokens} tokens and {len(entry.hash_ids)} "
                    f"hash ids; expected one for every full {ENGINE_BLOCK_TOKENS} tokens"
                )
            if self._prompt_tokens_max is None or entry.prompt_tokens <= self._prompt_tokens_max:
                line.append(entry)
        first_ids = line[0].hash_ids if line and self._share_system else []
        if first_ids and first_ids[0] not in self._shared:
            product = (*owner.models[:1], owner.tool_tokens, owner.system_tokens)
            blocks = (owner.tool_tokens + owner.system_tokens) // ENGINE_BLOCK_TOKENS
            ids = np.array(first_ids[:blocks], dtype=np.uint64)
            shared = hashes_of(scope_root("product", *product), np.arange(len(ids), dtype=np.uint64))
            self._shared[first_ids[0]] = ids, shared
        return line

    def _add(
        self, line: Sequence[_Entry], position: int, at_s: float, after: dict[int, float]
    ) -> dict[int, float]:
        """Add a request of a conversation, recorded as sent at ``at_s``.

        ``after`` has the indices of its predecessors with their recorded ends; return the same for its
        successors.
        """
        entry = line[position]
        delay_s = at_s - max(after.values()) if after else 0.0
        output_tokens = max(entry.output_tokens, 1)
        self._made.append(
            SimRequest(
                blocks=self._blocks(entry.hash_ids),
                tokens=entry.prompt_tokens,
                output_tokens=output_tokens,
                answer=self._answer(line, position, output_tokens),
                delay_s=min(max(delay_s, 0.0), self._gap_s_max),
                after=tuple(after),
            )
        )
        taken_s = self._usual_s if entry.api_time is None else entry.api_time
        return {len(self._made) - 1: at_s + taken_s}

    def _blocks(self, hash_ids: list[int], start: int = 0, stop: int | None = None) -> bytes:
        ids = np.array(hash_ids[:stop], dtype=np.uint64)
        hashes = hashes_of(self._root, ids)
        if hash_ids and hash_ids[0] in self._shared:
            shared_ids, shared = self._shared[hash_ids[0]]
            common = min(len(ids), len(shared_ids))
            equal = ids[:common] == shared_ids[:common]
            hashes[:common][equal] = shared[:common][equal]
        return hashes[start:].tobytes()

    def _answer(self, line: Sequence[_Entry], position: int, output_tokens: int) -> bytes:
        """Packed hashes of the blocks that the answer to a request of a conversation completes."""
        entry, ids = line[position], line[position].hash_ids
        blocks = answer_blocks(entry.prompt_tokens, output_tokens, ENGINE_BLOCK_TOKENS)
        if blocks and ids:
            for later in itertools.islice(line, position + 1, None):
                # An id stands for its whole prefix: the last one tells.
                if len(later.hash_ids) >= len(ids) and later.hash_ids[len(ids) - 1] == ids[-1]:
                    if later.prompt_tokens < entry.prompt_tokens + output_tokens:
                        break
                    return self._blocks(later.hash_ids, len(ids), len(ids) + blocks)
        return self._fresh.take(blocks)
