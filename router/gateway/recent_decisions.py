"""The newest decisions of this replica.

    request ends ── RequestRecord ──append──> ring of `KEPT_MAX` ──> GET /decisions, GET /tree, the console

A request costs one struct and one append. It is kept without its body, prompt or block hashes: what is left
of a prompt is the hash of its start. Names that clients chose are cut, so the ring is bounded in bytes, too:
some two megabytes, half a kilobyte each.
"""

import itertools
from collections import deque
from collections.abc import Callable

import msgspec

from policies import Attempt, OffloadVerdict, Usage
from router.gateway.endpoints import Endpoint

KEPT_MAX = 4096

STAYS_MAX = 100
"""Newest requests of a worker that `RecentDecisions.stay_s` is the mean of."""

TEXT_CHARS_MAX = 200
"""Of names and messages that are kept."""


class RecentDecision(msgspec.Struct, frozen=True, gc=False):
    """What was decided of a request, and how it went.

    Attributes:
        number: Counts the requests of this process, from 1.
        ended_us: Log time of its end.
        ended_s: Monotonic seconds of its end.
        request_id: The client's, or ours.
        endpoint: None if it was rejected before that was known.
        model: As the client wrote it.
        tenant: Whose it is.
        prefix_key: 64-bit hash of the first block of its prompt; 0 if it was not understood.
        attempt: The last one; None if it was never sent. Of a pair, the prefill worker's.
        decode_worker: Of a pair.
        offload: Why it was prefilled on this side of a link; None if there was no choice.
        attempts: How many there were.
        received_s: Monotonic seconds when the request was complete.
        first_byte_s: Of the answer; 0 if none came.
        wait_s: How long it waited, before all its attempts.
        outcome: ``completed``, ``worker_error``, ``client_left`` or the code of the error.
        status: HTTP status that the client saw or would have seen.
        usage: As the engine reported it; None if it did not, or the request was not completed.
        detail: What the client was told of an error.
        worker_request_id: Our id, by which its workers know it.
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
    offload: OffloadVerdict | None
    attempts: int
    received_s: float
    first_byte_s: float
    wait_s: float
    outcome: str
    status: int
    usage: Usage | None = None
    detail: str = ""
    worker_request_id: bytes = b""


class RecentDecisions:
    """The ring of one process. For use from the event loop's thread."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._ring: deque[RecentDecision] = deque(maxlen=kept_max)
        self.next_number: Callable[[], int] = itertools.count(1).__next__
        """Number of the decision that is added next."""
        self.add: Callable[[RecentDecision], None] = self._ring.append
        """Keep one."""

    @property
    def cursor(self) -> int:
        """Number of the newest one; 0 before the first."""
        return self._ring[-1].number if self._ring else 0

    def since(self, cursor: int, limit: int = KEPT_MAX) -> tuple[list[RecentDecision], int]:
        """The newest decisions after a cursor, the oldest of them first.

        Args:
            cursor: Number of the last one that was seen; 0 for none.
            limit: Most that are returned.

        Returns:
            They, and how many came after the cursor that are not among them.
        """
        count = self.cursor - max(cursor, 0)
        if count <= 0:
            return [], 0
        taken = min(count, limit, len(self._ring))
        newest = list(itertools.islice(reversed(self._ring), taken))
        newest.reverse()
        return newest, count - taken

    def stay_s(self, worker_id: str) -> float | None:
        """How long completed requests were at a worker lately, mean; None if there was none.

        From when they were sent to the end of their answers.
        """
        stays = [
            decision.ended_s - decision.attempt.started_s
            for decision in self._ring
            if decision.attempt is not None
            and worker_id in (decision.attempt.worker_id, decision.decode_worker)
            and decision.outcome == "completed"
        ][-STAYS_MAX:]
        return sum(stays) / len(stays) if stays else None
