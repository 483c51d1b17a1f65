"""Counters of the hot path: lists of values, handed to prometheus-client in batches.

prometheus-client takes a lock per update and, with several processes, writes to a mapped file: 0.4 to 2 µs
each, a dozen times per request. Here an update is the ``append`` of a list (0.05 µs); `flush` adds up the
list, and its owner calls it often enough to keep it short. Not for several threads.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import numpy as np
from prometheus_client import Counter, Histogram

SERIES_MAX = 10_000
"""Most label sets per counter; beyond it they share the label ``other``. A bound, should the workers
of a fleet change names for months."""


SORTED_BY_NUMPY = 16
"""Observations from which numpy finds the buckets sooner than one by one: 0.06 us each in place of 0.2."""


class BatchHistogram(Histogram):
    """A histogram that takes many observations at once."""

    def add(self, counts: list[int], total: float) -> None:
        """Add new counts per bucket (not cumulative; the last one is ``+Inf``) and the sum of values."""
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)

    def totals(self) -> tuple[tuple[int, ...], float]:
        """Return the counts up to each bound, and the sum of values."""
        return tuple(accumulate(int(bucket.get()) for bucket in self._buckets)), self._sum.get()


class Distribution:
    """Gathers observations for one histogram without labels, or one label set."""

    __slots__ = ("_bounds", "_histogram", "_values", "observe", "observe_all")

    def __init__(self, histogram: BatchHistogram, bounds: tuple[float, ...]) -> None:
        self._histogram = histogram
        self._bounds = bounds
        self._values: list[float] = []
        self.observe: Callable[[float], None] = self._values.append
        """Take in one observation; a bound belongs to the bucket below it."""
        self.observe_all: Callable[[Iterable[float]], None] = self._values.extend
        """Take in observations."""

    def totals(self) -> tuple[tuple[int, ...], float]:
        """Return the counts up to each bound and the sum, as flushed since the start of this process."""
        return self._histogram.totals()

    def flush(self) -> None:
        """Hand the values over."""
        values = self._values
        if values:
            buckets = len(self._bounds) + 1
            if len(values) < SORTED_BY_NUMPY:
                counts = [0] * buckets
                for value in values:
                    counts[bisect_left(self._bounds, value)] += 1
            else:
                counts = np.bincount(np.searchsorted(self._bounds, values), minlength=buckets).tolist()
            self._histogram.add(counts, sum(values))
            values.clear()


class Count:
    """Gathers events for one counter by their label values."""

    __slots__ = ("_counter", "_labels", "_series", "add", "add_all", "events")

    def __init__(self, counter: Counter, labels: int) -> None:
        self._counter = counter
        self._labels = labels
        self.events: list[tuple[str, ...]] = []
        """Label values since the last flush, in order."""
        self._series: set[tuple[str, ...]] = set()
        self.add: Callable[[tuple[str, ...]], None] = self.events.append
        """Count one event."""
        self.add_all: Callable[[Iterable[tuple[str, ...]]], None] = self.events.extend
        """Count events."""

    def totals(self, label: str) -> dict[str, int]:
        """Return the counts by the values of one label, as flushed since the start of this process."""
        counts = Tally[str]()
        for metric in self._counter.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    counts[sample.labels[label]] += int(sample.value)
        return dict(counts)

    def flush(self) -> None:
        """Hand the values over."""
        for values, count in Tally(self.events).items():
            if values not in self._series:
                if len(self._series) >= SERIES_MAX:
                    values = ("other",) * self._labels
                self._series.add(values)
            self._counter.labels(*values).inc(count)
        self.events.clear()


class Sum:
    """Amounts added to one counter without labels."""

    __slots__ = ("_amounts", "_counter", "add")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._amounts: list[float] = []
        self.add: Callable[[float], None] = self._amounts.append
        """Add an amount."""

    def total(self) -> float:
        """Return the sum flushed since the start of this process."""
        samples = (sample for metric in self._counter.collect() for sample in metric.samples)
        return next(sample.value for sample in samples if sample.name.endswith("_total"))

    def flush(self) -> None:
        """Hand the values over."""
        if self._amounts:
            self._counter.inc(sum(self._amounts))
            self._amounts.clear()


class Sums:
    """Amounts added to several counters with the same label."""

    __slots__ = ("_amounts", "_counters", "_series", "add")

    def __init__(self, *counters: Counter) -> None:
        self._counters = counters
        self._amounts: list[tuple[Any, ...]] = []
        self._series: set[str] = set()
        self.add: Callable[[tuple[Any, ...]], None] = self._amounts.append
        """Add the label's value, then an amount for each of the counters."""

    def flush(self) -> None:
        """Hand the values over."""
        by_label: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for row in self._amounts:
            by_label[row[0]].append(row)
        for label, rows in by_label.items():
            if label not in self._series:
                if len(self._series) >= SERIES_MAX:
                    label = "other"
                self._series.add(label)
            _, *columns = zip(*rows, strict=True)
            for counter, amounts in zip(self._counters, columns, strict=True):
                counter.labels(label).inc(sum(amounts))
        self._amounts.clear()


class Total:
    """Counter that follows a total of its owner."""

    __slots__ = ("_counter", "_seen")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._seen = 0.0

    def follow(self, total: float) -> None:
        """Raise the counter to a total since the start of this process."""
        self._counter.inc(total - self._seen)
        self._seen = total
