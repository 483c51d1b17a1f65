"""A histogram as Prometheus has it."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """Counts of values by size; ``bounds`` are the ascending upper bounds, one more bucket has the rest."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Their sum."""
        return self._sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The exposition lines."""
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, counted in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += counted
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum}"
        yield f"{name}_count{{{labels}}} {total}"


def sample(name: str, kind: str, labels: str, value: float) -> Iterable[str]:
    """The exposition lines of a metric with one value."""
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {value}"


def by_label(name: str, labels: str, label: str, values: dict[str, float]) -> Iterable[str]:
    """The exposition lines of a counter with one value for each value of a label."""
    yield f"# TYPE {name} counter"
    for key, value in values.items():
        yield f'{name}{{{labels},{label}="{key}"}} {value}'
