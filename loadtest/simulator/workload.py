"""Traffic of a simulated fleet: sessions of requests, as block hashes and lengths.

A prompt is the chained hashes of its full engine blocks, without text, so two prompts share exactly the
prefixes that the recorded ones shared.

    Workload ── sessions ── requests     [0] ──> [1] ──┬─> [2] ──┬─> [4]     4 waits for 2 and 3
                                                       └─> [3] ──┘

*Open loop*: a session starts at its own time. *Closed loop*: each of ``users`` takes the next session as soon
as the last one ended. In both, a request is sent ``delay_s`` after the end, answered or lost, of the last
request that it waits for: it slows down with the fleet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from loadtest.simulator.identity import HASH_BYTES

ENGINE_BLOCK_TOKENS = 64
"""Tokens of an engine block: a usual page size of SGLang's, and what agentic traces are recorded in."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request.

    Attributes:
        blocks: Packed chained hashes of the prompt's full blocks: ``tokens // block_tokens`` of them.
        tokens: Prompt length, > 0.
        output_tokens: > 0.
        answer: Packed hashes of the full blocks behind ``blocks`` that the answer completes. The last
            generated token is sampled but never computed: no engine holds it.
        delay_s: Pause >= 0 between the end of its predecessors, or the start of the session, and its arrival.
        after: Indices in the session, all smaller than its own, of requests that must have finished.
    """

    blocks: bytes
    tokens: int
    output_tokens: int
    answer: bytes = b""
    delay_s: float = 0.0
    after: tuple[int, ...] = ()

    @property
    def held(self) -> bytes:
        """Prompt and answer blocks that an engine keeps when the request has finished."""
        return self.blocks + self.answer


@dataclass(frozen=True, slots=True)
class Session:
    """At least one request, each behind its predecessors; ``start_s`` counts from the start of the workload.

    It is None in a closed loop. ``flow`` is ``CLASS/TENANT``; empty: the simulation draws one.
    """

    start_s: float | None
    requests: tuple[SimRequest, ...]
    flow: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order in which they start or are taken.

    Attributes:
        users: Sessions at work at the same time in a closed loop; 0 in an open one.
        block_tokens: Tokens per block of all its requests.
        notes: Changes to the recording, for reports.
        named_sessions: A session is what one client would name so. If not, its requests continue others in
            ways that the recording does not tell.
    """

    name: str
    sessions: tuple[Session, ...]
    users: int = 0
    block_tokens: int = ENGINE_BLOCK_TOKENS
    notes: str = ""
    named_sessions: bool = False

    def requests(self) -> Iterator[SimRequest]:
        """All requests, session by session."""
        for session in self.sessions:
            yield from session.requests

    @property
    def request_count(self) -> int:
        """Number of requests."""
        return sum(len(session.requests) for session in self.sessions)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.tokens for request in self.requests())

    @property
    def output_tokens(self) -> int:
        """Generated tokens of all requests."""
        return sum(request.output_tokens for request in self.requests())

    def cut(self, requests_max: int) -> "Workload":
        """The first ``requests_max`` requests, session by session; the last session may lose its end."""
        sessions: list[Session] = []
        room = requests_max
        for session in self.sessions:
            if room <= 0:
                break
            sessions.append(replace(session, requests=session.requests[:room]))
            room -= len(session.requests)
        return replace(self, sessions=tuple(sessions))

    def in_order(self) -> list[SimRequest]:
        """All requests in the order in which they would arrive if every answer came at once.

        `loadtest.simulator.bounds` counts in this order. In a closed loop the users take the sessions in
        turn.
        """
        return [request for _, request in self.arrivals(lambda _: 0.0)]

    def arrivals(self, served_s: Callable[[SimRequest], float]) -> list[tuple[float, SimRequest]]:
        """All requests in order with their arrivals, seconds, if each takes ``served_s`` and none waits."""
        arrivals: list[tuple[float, int, int, SimRequest]] = []
        free_s = [0.0] * self.users
        for number, session in enumerate(self.sessions):
            if session.start_s is None:
                user = min(range(self.users), key=free_s.__getitem__)
                start_s = free_s[user]
            else:
                start_s = session.start_s
            ends_s: list[float] = []
            for index, request in enumerate(session.requests):
                from_s = max((ends_s[other] for other in request.after), default=start_s)
                at_s = from_s + request.delay_s
                ends_s.append(at_s + served_s(request))
                arrivals.append((at_s, number, index, request))
            if session.start_s is None:
                free_s[user] = max(ends_s)
        arrivals.sort(key=lambda arrival: arrival[:3])
        return [(at_s, request) for at_s, _, _, request in arrivals]

    def check(self) -> None:
        """Check the dataclasses' rules, for tests of readers and workloads made by hand.

        Raises:
            ValueError: The message names the session and the request.
        """
        for number, session in enumerate(self.sessions):
            if (session.start_s is None) != (self.users > 0):
                raise ValueError(f"session {number} starts at {session.start_s} among {self.users} users")
            if not session.requests:
                raise ValueError(f"session {number} has no request")
            for index, request in enumerate(session.requests):
                held_tokens = request.tokens + request.output_tokens - 1
                if (
                    request.tokens < 1
                    or request.output_tokens < 1
                    or request.delay_s < 0.0
                    or len(request.blocks) != request.tokens // self.block_tokens * HASH_BYTES
                    or len(request.held) != held_tokens // self.block_tokens * HASH_BYTES
                    or any(not 0 <= other < index for other in request.after)
                ):
                    raise ValueError(f"session {number}, request {index}: {request!r:.200}")
