"""One link that transfers share: a network interface, a bus, a disk.

Transfers are served first come, first served at the full rate, so the link's throughput is exact, a
transfer's end is known when it starts and never changes because of later ones. (Real transfers share the
rate; the last of several that overlap ends at the same time either way.) A transfer over several links in a
row is cut through: it ends when the slowest of them is done.
"""

from math import inf


class Link:
    """A link with a rate, used first come, first served.

    Args:
        bytes_per_s: Rate, > 0; ``inf`` for a link that never limits.
    """

    __slots__ = ("_bytes_per_s", "_free_s", "moved_bytes")

    def __init__(self, bytes_per_s: float = inf) -> None:
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self.moved_bytes = 0

    def send(self, n_bytes: int, now_s: float) -> float:
        """Queue a transfer; the time at which it ends, ``now_s`` if it is empty."""
        if n_bytes <= 0:
            return now_s
        self.moved_bytes += n_bytes
        self._free_s = max(self._free_s, now_s) + n_bytes / self._bytes_per_s
        return self._free_s

    def give_back(self, n_bytes: int, now_s: float) -> None:
        """A transfer was stopped before its last ``n_bytes``: whoever comes next waits less.

        Transfers queued meanwhile keep the end that they were told.
        """
        self.moved_bytes -= n_bytes
        self._free_s = max(now_s, self._free_s - n_bytes / self._bytes_per_s)
