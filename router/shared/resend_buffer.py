"""Own operations that Redis has acknowledged, kept for a moment: it may still lose them.

An append-only file is synced once a second, replication to the server that a failover promotes is
asynchronous, and a restart may bring back an older state. So the newest entries are remembered for
`KEPT_S`, and appended again when the server that comes back is not the one that said yes. Operations
bear repetition. Age counts back from the newest entry and not from now: an outage takes its time.
"""

from collections import deque

# Redis syncs every second and may be another second late (redis.conf, appendfsync everysec); replicas
# that are further behind are not promoted by a Sentinel unless there is no other.
KEPT_S = 5.0
KEPT_BYTES_MAX = 8 << 20


class ResendBuffer:
    """The newest acknowledged batches of encoded operations, bounded by age and bytes."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, int, list[bytes]]] = deque()
        self._bytes = 0

    def keep(self, batch: list[bytes], size_bytes: int, at_s: float) -> None:
        """Remember a batch that was acknowledged now, and forget those that are too old or too many."""
        batches = self._batches
        batches.append((at_s, size_bytes, batch))
        self._bytes += size_bytes
        while self._bytes > KEPT_BYTES_MAX or batches[0][0] < at_s - KEPT_S:
            self._bytes -= batches.popleft()[1]
            if not batches:
                break

    def take(self, ops_max: int, bytes_max: int) -> list[bytes]:
        """Give all operations back, oldest first; beyond the bounds only the newest."""
        taken: list[bytes] = []
        while self._batches:
            _, size_bytes, batch = self._batches.pop()
            ops_max -= len(batch)
            bytes_max -= size_bytes
            if ops_max < 0 or bytes_max < 0:
                break
            taken.extend(reversed(batch))
        self._batches.clear()
        self._bytes = 0
        taken.reverse()
        return taken
