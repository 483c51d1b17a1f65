"""One link that transfers share: a network interface, a bus, a disk.

Transfers are served first come, first served at the full rate, so the throughput is exact, and a transfer's
end is known when it starts. (Of transfers that share the rate the last ends at the same time.) A transfer
over several links in a row ends when the slowest of them is done.
"""

from math import inf


class Link:
    """A link of ``bytes_per_s`` > 0, used first come, first served; ``inf`` never limits."""

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
        """Return the last ``n_bytes`` of a stopped transfer to the next one.

        Queued transfers keep their end.
        """
        self.moved_bytes -= n_bytes
        self._free_s = max(now_s, self._free_s - n_bytes / self._bytes_per_s)
