"""Own operations that Redis has acknowledged, kept for a moment: it may still lose them.

An append-only file is synced once a second, replication to the server that a failover promotes is
asynchronous, and a restart may bring back an older state. So the newest entries are remembered for
`KEPT_S`, and appended again when the server that comes back is not the one that said yes. Operations
bear repetition. Age counts back from the newest entry and not from now: an outage takes its time.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

# Redis syncs every second and may be another second late (redis.conf, appendfsync everysec); replicas
# that are further behind are not promoted by a Sentinel unless there is no other.
KEPT_S = 5.0
KEPT_BYTES_MAX = 8 << 20


class ResendBuffer:
    """The newest acknowledged batches of encoded operations, bounded by age and bytes.

    The operations of a batch are joined: one by one, each would take 100 bytes more.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[float, array[int], bytes]] = deque()
        """Time, sizes of the operations, and their bytes."""
        self._bytes = 0

    def keep(self, batch: Sequence[bytes], at_s: float) -> None:
        """Remember a batch that was acknowledged now, and forget those that are too old or too many."""
        batches, joined = self._batches, b"".join(batch)
        batches.append((at_s, array("I", map(len, batch)), joined))
        self._bytes += len(joined)
        while self._bytes > KEPT_BYTES_MAX or batches[0][0] < at_s - KEPT_S:
            self._bytes -= len(batches.popleft()[2])
            if not batches:
                break

    def take(self, ops_max: int, bytes_max: int) -> list[bytes]:
        """Give all operations back, oldest first; beyond the bounds only the newest."""
        taken: list[bytes] = []
        while self._batches:
            _, sizes, joined = self._batches.pop()
            ops_max -= len(sizes)
            bytes_max -= len(joined)
            if ops_max < 0 or bytes_max < 0:
                break
            batch = [joined[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
            taken.extend(reversed(batch))
        self._batches.clear()
        self._bytes = 0
        taken.reverse()
        return taken
