"""Tallies: what they hand over is what prometheus-client would have counted itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram

from router import tallies
from router.tallies import BatchHistogram, Count, Distribution, Sum, Sums, Total

BOUNDS = (-1.0, 0.0, 0.5, 2.0)


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix(name), *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(st.floats(-10, 10) | st.sampled_from(BOUNDS)), st.integers(0, 20))
def test_a_distribution_counts_like_the_histogram_it_feeds(values: list[float], flush_at: int) -> None:
    """Bounds are among the values: each belongs to the bucket below it."""
    expected, actual = CollectorRegistry(), CollectorRegistry()
    plain = Histogram("h", "h", registry=expected, buckets=BOUNDS)
    tally = Distribution(BatchHistogram("h", "h", registry=actual, buckets=BOUNDS), BOUNDS)
    for index, value in enumerate(values):
        plain.observe(value)
        tally.observe(value)
        if index == flush_at:
            tally.flush()
    tally.flush()
    found = samples(expected, "h")
    assert samples(actual, "h") == found
    buckets = tuple(count for (name, *_), count in found.items() if name == "_bucket")
    assert tally.totals() == (buckets, pytest.approx(sum(values)))


def test_the_sum_of_a_distribution_is_handed_over() -> None:
    registry = CollectorRegistry()
    tally = Distribution(BatchHistogram("h", "h", registry=registry, buckets=(1.0,)), (1.0,))
    tally.observe(0.25)
    tally.observe(4.0)
    tally.flush()
    assert samples(registry, "h")[("_sum",)] == 4.25


def test_a_count_gathers_by_labels() -> None:
    registry = CollectorRegistry()
    count = Count(Counter("c", "c", ("a", "b"), registry=registry), 2)
    for labels in (("x", "y"), ("x", "y"), ("x", "z"), ("x", "y")):
        count.add(labels)
    assert samples(registry, "c") == {}
    count.flush()
    count.flush()
    assert samples(registry, "c") == {("_total", "x", "y"): 3, ("_total", "x", "z"): 1}


def test_a_sum_adds_up_amounts_and_is_there_from_the_start() -> None:
    """A rate over a counter that appears with its first increment misses that increment."""
    registry = CollectorRegistry()
    total = Sum(Counter("c", "c", registry=registry))
    total.flush()
    assert samples(registry, "c") == {("_total",): 0}
    for amount in (1, 0.5):
        total.add(amount)
    for _ in range(2):
        total.flush()
    assert samples(registry, "c") == {("_total",): 1.5}


def test_label_sets_beyond_the_bound_share_one_series() -> None:
    registry = CollectorRegistry()
    count = Count(Counter("c", "c", ("worker",), registry=registry), 1)
    for index in range(tallies.SERIES_MAX + 5):
        count.add((f"w{index}",))
    count.add(("w0",))
    count.flush()
    found = samples(registry, "c")
    assert len(found) == tallies.SERIES_MAX + 1
    assert found[("_total", "other")] == 5
    assert found[("_total", "w0")] == 2


def test_sums_add_up_by_label_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "SERIES_MAX", 2)
    registry = CollectorRegistry()
    sums = Sums(*(Counter(name, name, ("tenant",), registry=registry) for name in ("c", "d")))
    for label, amount in (("a", 1), ("b", 2), ("a", 0.5), ("c", 4), ("d", 8)):
        sums.add((label, amount, 10 * amount))
    sums.flush()
    sums.flush()
    sums.add(("b", 1, 0))
    sums.flush()
    expected = {"a": 1.5, "b": 3, "other": 12}
    assert samples(registry, "c") == {
        **{("_total", label): amount for label, amount in expected.items()},
        **{("d_total", label): 10 * amount for label, amount in {**expected, "b": 2}.items()},
    }


def test_a_total_is_followed_not_added() -> None:
    registry = CollectorRegistry()
    total = Total(Counter("c", "c", registry=registry))
    for value in (3, 3, 10):
        total.follow(value)
    assert samples(registry, "c") == {("_total",): 10}
