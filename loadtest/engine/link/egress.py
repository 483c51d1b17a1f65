"""Bytes over a link in buckets of 100 ms: enough to judge every window of a second.

Only the newest `BUCKETS_MAX` buckets with bytes are kept: an hour of a link that is never idle.
"""

from collections import deque
from collections.abc import Iterable

BUCKETS_PER_S = 10
BUCKETS_MAX = 3600 * BUCKETS_PER_S


class Egress:
    """Bytes by bucket; a bucket's number is its time in tenths of a second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, float]] = deque(maxlen=BUCKETS_MAX)
        self.total_bytes = 0.0

    def add(self, at_s: float, n_bytes: float) -> None:
        """Count bytes that left in the bucket of a moment, which is not before that of an earlier call."""
        if n_bytes <= 0:
            return
        number = int(at_s * BUCKETS_PER_S)
        self.total_bytes += n_bytes
        if self._buckets and self._buckets[-1][0] == number:
            n_bytes += self._buckets.pop()[1]
        self._buckets.append((number, n_bytes))

    def buckets(self) -> list[tuple[int, float]]:
        """Numbers and bytes, in order."""
        return list(self._buckets)


def seconds_of(buckets: Iterable[tuple[int, float]]) -> list[tuple[float, float]]:
    """Ends and bytes of all windows of a second that end with a bucket with bytes: no other has more."""
    seconds: list[tuple[float, float]] = []
    within = 0.0
    window: deque[tuple[int, float]] = deque()
    for number, n_bytes in buckets:
        window.append((number, n_bytes))
        within += n_bytes
        while window[0][0] <= number - BUCKETS_PER_S:
            within -= window.popleft()[1]
        seconds.append(((number + 1) / BUCKETS_PER_S, within))
    return seconds
