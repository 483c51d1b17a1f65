"""What a scrape says of pairs, links and the slow loop."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from policies import OffloadReason
from router.metrics import Metrics
from router.pair_metrics import LinkSample, PairEnd, PlanSample

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


def scraped(metrics: Metrics) -> Samples:
    """Samples by name without prefix, and label values in the order of the labels' names."""
    return {
        (
            sample.name.removeprefix("cacheway_"),
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(metrics.exposition()[0].decode())
        for sample in family.samples
    }


def link(name: str, **said: object) -> LinkSample:
    known: dict[str, object] = {
        "capacity_bytes_per_s": 100.0,
        "cap_bytes_per_s": 90.0,
        "reserved_bytes_per_s": 45.0,
        "state": "abundant",
        "goodput_bytes_per_s": None,
        "rtt_s": 0.02,
        "loss_ratio": 0.0,
    }
    return LinkSample(name, **(known | said))  # type: ignore[arg-type]


def test_pairs_count_by_protocol_and_outcome_and_the_leg_that_failed_first(metrics: Metrics) -> None:
    metrics.pairs.ended("sglang", PairEnd.COMPLETED)
    metrics.pairs.ended("sglang", PairEnd.PREFILL_FAILED)
    metrics.pairs.leg_failed("sglang", "prefill", "worker_unreachable")
    metrics.pairs.handover_events("nixl", {"params_missing": 2})
    metrics.pairs.handover_events("nixl", {"params_missing": 3})
    metrics.pairs.whole_at_decode("d:1")
    metrics.pairs.offload_decided({OffloadReason.BELOW_THRESHOLD: 1})
    metrics.pairs.offload_decided({OffloadReason.BELOW_THRESHOLD: 4, OffloadReason.LINK_DOWN: 1})
    metrics.pairs.role_changed("decode")
    samples = scraped(metrics)
    assert samples["handovers_total", "completed", "sglang"] == 1
    assert samples["handovers_total", "prefill_failed", "sglang"] == 1
    assert samples["leg_failures_total", "worker_unreachable", "prefill", "sglang"] == 1
    assert samples["handover_events_total", "params_missing", "nixl"] == 3
    assert samples["whole_at_decode_total", "d:1"] == 1
    assert samples["offload_decisions_total", "below_threshold"] == 4
    assert samples["offload_decisions_total", "link_down"] == 1
    assert samples["role_changes_total", "decode"] == 1


def test_bytes_of_a_link_add_up(metrics: Metrics) -> None:
    metrics.pairs.shipped("b>a", 1e9)
    metrics.pairs.shipped("b>a", 5e8)
    assert scraped(metrics)["link_kv_bytes_total", "b>a"] == 1.5e9


def test_links_are_those_of_the_moment(metrics: Metrics) -> None:
    """45 of the 90 bytes a second that KV may take are half of it."""
    metrics.pairs.links = lambda: [link("b>a"), link("c>a", state="scarce", goodput_bytes_per_s=50.0)]
    samples = scraped(metrics)
    assert samples["link_capacity_bytes_per_second", "b>a"] == 100
    assert samples["link_reserved_bytes_per_second", "b>a"] == 45
    assert samples["link_utilisation_ratio", "b>a"] == 0.5
    assert samples["link_rtt_seconds", "b>a"] == 0.02
    assert samples["link_loss_ratio", "b>a"] == 0
    states = [samples["link_state", "c>a", state] for state in ("abundant", "scarce", "down", "probing")]
    assert states == [0, 1, 0, 0]
    assert ("link_goodput_bytes_per_second", "b>a") not in samples
    assert samples["link_goodput_bytes_per_second", "c>a"] == 50
    metrics.pairs.links = tuple
    assert not any(key[0].startswith("link_") and len(key) > 1 for key in scraped(metrics))


def test_a_link_that_may_not_be_used_has_no_utilisation(metrics: Metrics) -> None:
    metrics.pairs.links = lambda: [link("b>a", cap_bytes_per_s=0.0)]
    assert ("link_utilisation_ratio", "b>a") not in scraped(metrics)


def test_the_plan_is_told_once_there_is_one(metrics: Metrics) -> None:
    assert ("offload_threshold_tokens",) not in scraped(metrics)
    metrics.pairs.plan = lambda: PlanSample(19_400, {"prefill": 3, "decode": 5}, 0.08)
    samples = scraped(metrics)
    assert samples["offload_threshold_tokens",] == 19_400
    assert samples["role_workers_best", "prefill"] == 3
    assert samples["role_workers_best", "decode"] == 5
    assert samples["role_gain_ratio",] == 0.08
    metrics.pairs.plan = lambda: PlanSample(None, {}, 0.0)
    assert ("offload_threshold_tokens",) not in scraped(metrics)
