"""Counting on the hot path: plain Python numbers, handed to prometheus-client in batches.

prometheus-client takes a lock per update and, with several processes, writes to a mapped file: 0.4
to 2 µs each, a dozen times per request. A tally is a list or dictionary update of 0.1 to 0.3 µs;
`flush` adds what has gathered since the last one. Not for use from several threads.
"""

from bisect import bisect_left

from prometheus_client import Counter, Histogram

SERIES_MAX = 10_000
"""Most label sets per counter; beyond it they share the label ``other``. A bound, should the workers
of a fleet change names for months."""


class BatchHistogram(Histogram):
    """A histogram that takes many observations at once."""

    def add(self, counts: list[int], total: float) -> None:
        """Add observations.

        Args:
            counts: New observations per bucket, not cumulative; the last one is ``+Inf``.
            total: Their sum.
        """
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class Distribution:
    """Gathers observations for one histogram without labels, or one label set."""

    __slots__ = ("_bounds", "_counts", "_histogram", "_total")

    def __init__(self, histogram: BatchHistogram, bounds: tuple[float, ...]) -> None:
        self._histogram = histogram
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Take in one observation; a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def flush(self) -> None:
        """Hand over what has gathered."""
        if any(self._counts):
            self._histogram.add(self._counts, self._total)
            self._counts = [0] * len(self._counts)
            self._total = 0.0


class Count:
    """Gathers increments of one counter by label values; ``()`` for a counter without labels."""

    __slots__ = ("_counter", "_labels", "_pending", "_series")

    def __init__(self, counter: Counter, labels: int) -> None:
        self._counter = counter
        self._labels = labels
        self._pending: dict[tuple[str, ...], float] = {}
        self._series: set[tuple[str, ...]] = set()
        if not labels:
            self.add(amount=0)

    def add(self, values: tuple[str, ...] = (), amount: float = 1) -> None:
        """Count."""
        pending = self._pending
        if values in pending:
            pending[values] += amount
        else:
            if len(pending) >= SERIES_MAX:
                self.flush()
            pending[values] = amount

    def flush(self) -> None:
        """Hand over what has gathered."""
        for values, amount in self._pending.items():
            if not self._labels:
                self._counter.inc(amount)
                continue
            if values not in self._series:
                if len(self._series) >= SERIES_MAX:
                    values = ("other",) * self._labels
                self._series.add(values)
            self._counter.labels(*values).inc(amount)
        self._pending.clear()


class Total:
    """A counter that follows a total which somebody else counts."""

    __slots__ = ("_counter", "_seen")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._seen = 0

    def follow(self, total: int) -> None:
        """Raise the counter to a total since the start of this process."""
        self._counter.inc(total - self._seen)
        self._seen = total
