"""The newest decisions of this replica.

    request ends ── RequestRecord ──append──> ring of `KEPT_MAX` ──> GET /decisions, GET /tree, the console

A request costs one struct and one append, without body or prompt; the hashes of its blocks are beside it, in
a store with a bound of its own (`router.gateway.recent_prompts`). Names of clients are cut, so the ring is
bounded in bytes, too: some two megabytes, half a kilobyte each.
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection

import msgspec

from policies import Attempt, Usage
from router.gateway.endpoints import Endpoint

KEPT_MAX = 4096

STAYS_MAX = 100
"""Newest requests of a worker in the mean of `RecentDecisions.stay_s`."""

TEXT_CHARS_MAX = 200
"""Longest stored name or message."""


class RecentDecision(msgspec.Struct, frozen=True, gc=False):
    """The decision for one request, and its result.

    Attributes:
        number: Counts the requests of this process, from 1.
        ended_us, ended_s: Log time; monotonic seconds.
        endpoint: None if it was rejected before that was known.
        prefix_key: 64-bit hash of the first block of its prompt; 0 if it was not parsed.
        attempt: The last one, in a pair the prefill worker's; None if it was never sent. Its ``started_s``
            is 0 if nothing says when the worker was asked (`router.picker`).
        offload: The choice of the prefill's site, by an option; None if there was no choice.
        received_s: Monotonic seconds when the request was complete.
        first_byte_s: Monotonic seconds of the answer's first byte; 0 if none came.
        wait_s: Total wait of all its attempts.
        outcome: `record.outcome_of`, ``client_left`` or the code of the error.
        usage: None if the engine reported none, or the request was not completed.
        detail: Message of the error.
        continued: Times that another worker continued its stream.
        session: Name of its session; empty for none.
        model_choice: Decision on its model (`router.models`); None for most requests.
    """

    number: int
    ended_us: int
    ended_s: float
    request_id: bytes
    endpoint: Endpoint | None
    model: str
    tenant: str
    prefix_key: int
    attempt: Attempt | None
    decode_worker: str
    offload: object
    attempts: int
    received_s: float
    first_byte_s: float
    wait_s: float
    outcome: str
    status: int
    usage: Usage | None = None
    detail: str = ""
    worker_request_id: bytes = b""
    continued: int = 0
    session: str = ""
    model_choice: dict[str, str] | None = None


class RecentDecisions:
    """The ring of one process. For use from the event loop's thread."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._ring: deque[RecentDecision] = deque(maxlen=kept_max)
        self.next_number: Callable[[], int] = itertools.count(1).__next__
        """Number of the decision that is added next."""
        self.add: Callable[[RecentDecision], None] = self._ring.append

    @property
    def cursor(self) -> int:
        """Number of the newest one; 0 before the first."""
        return self._ring[-1].number if self._ring else 0

    def since(self, cursor: int, limit: int = KEPT_MAX) -> tuple[list[RecentDecision], int]:
        """Return the newest decisions after number ``cursor``, oldest first, and how many were left out."""
        count = self.cursor - max(cursor, 0)
        if count <= 0:
            return [], 0
        taken = min(count, limit, len(self._ring))
        newest = list(itertools.islice(reversed(self._ring), taken))
        newest.reverse()
        return newest, count - taken

    def newest_of(self, request_id: str) -> RecentDecision | None:
        """Return the newest decision with this id, the client's or the gateway's; None if none is kept."""
        sought = request_id.encode("latin-1", "replace")
        for decision in reversed(self._ring):
            if sought in (decision.request_id, decision.worker_request_id):
                return decision
        return None

    def stay_s(self, places: Collection[str]) -> float | None:
        """Return the mean seconds from sending to the end of a worker's recent completed requests.

        ``places`` are the ids of its ranks, or its own.
        """
        stays = [
            decision.ended_s - decision.attempt.started_s
            for decision in self._ring
            if decision.attempt is not None
            and decision.attempt.started_s
            and (decision.attempt.worker_id in places or decision.decode_worker in places)
            and decision.outcome == "completed"
        ][-STAYS_MAX:]
        return sum(stays) / len(stays) if stays else None
