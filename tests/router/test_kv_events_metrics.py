"""What came of KV events is told at a scrape, as totals and per worker."""

from router.kv_events_metrics import FollowedSample, KvEventsSample
from router.metrics import Metrics


def test_a_scrape_tells_what_came_and_how_far_each_worker_is() -> None:
    metrics = Metrics("1.2.3")
    counts = {"batches": 3, "stored": 5, "gap": 1, "damaged": 2, "answered": 4}
    followed = (FollowedSample("w:1", "live", 70, 0.25), FollowedSample("w:2", "silent", 0, None))
    metrics.kv_events.sample = lambda: KvEventsSample(counts, followed)
    metrics.kv_events.report()
    metrics.kv_events.report()
    page = metrics.exposition()[0].decode()
    for line in (
        "cacheway_kv_events_batches_total 3.0",
        'cacheway_kv_events_received_total{kind="stored"} 5.0',
        'cacheway_kv_events_losses_total{reason="gap"} 1.0',
        'cacheway_kv_events_invalid_total{what="batch"} 2.0',
        'cacheway_kv_events_replays_total{outcome="answered"} 4.0',
        'cacheway_kv_events_blocks{worker="w:1"} 70.0',
        'cacheway_kv_events_worker_state{state="silent",worker="w:2"} 1.0',
        'cacheway_kv_events_lag_seconds{worker="w:1"} 0.25',
    ):
        assert line in page
    assert 'lag_seconds{worker="w:2"}' not in page
