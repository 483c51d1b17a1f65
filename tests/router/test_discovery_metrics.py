"""What metrics tell of pods."""

from typing import Any

from router.discovery_metrics import DiscoverySample
from router.metrics import Metrics


def values(metrics: Metrics) -> dict[str, float]:
    metrics.discovery.report()
    lines = metrics.exposition()[0].decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if name.startswith("cacheway_discovery") and "_created" not in name
    }


def sample(**known: Any) -> DiscoverySample:
    given: dict[str, Any] = {"pods": {}, "list_age_s": None, "failures": {}, "restarts": 0, "missed": 0}
    return DiscoverySample(**{**given, **known})


def test_without_discovery_there_are_no_pods() -> None:
    told = values(Metrics("1"))
    assert not any("pods" in name or "age" in name for name in told)


def test_pods_are_told_by_state_and_counts_follow_totals() -> None:
    metrics = Metrics("1")
    metrics.discovery.sample = lambda: sample(
        pods={"used": 3, "not_ready": 1}, list_age_s=12.5, failures={"forbidden": 2}, restarts=4, missed=5
    )
    first = values(metrics)
    assert values(metrics) == first
    assert first == {
        'cacheway_discovery_pods{state="used"}': 3,
        'cacheway_discovery_pods{state="not_ready"}': 1,
        "cacheway_discovery_list_age_seconds": 12.5,
        'cacheway_discovery_api_errors_total{trouble="forbidden"}': 2,
        "cacheway_discovery_watch_restarts_total": 4,
        "cacheway_discovery_missed_changes_total": 5,
    }


def test_before_the_first_list_there_is_no_age() -> None:
    metrics = Metrics("1")
    metrics.discovery.sample = sample
    assert "cacheway_discovery_list_age_seconds" not in values(metrics)
