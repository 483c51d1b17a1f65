"""Metrics that are read at a scrape instead of counted."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from fakes.gateway import ALONE_STATUS
from fakes.process import built

from policies import Placed
from router.metrics import Metrics
from router.process.report import (
    LogListener,
    report_discovery,
    report_kv_events,
    report_log,
    report_tenants,
    reports_of,
)


async def test_what_is_read_rather_than_counted_is_in_the_metrics() -> None:
    process = await built(fleet={"worker_urls": ["http://a:1", "http://b:1"]})
    process.gateway.sending.exchanges = {object() for _ in range(7)}  # type: ignore[misc] # only counted
    process.fleet.apply(
        Placed("x", process.clock.now_us(), "a:1", "r9", 500_000, 600, 700, (bytes(range(16)),))
    )
    text = process.metrics.exposition()[0].decode()
    assert "cacheway_inflight_requests 7.0" in text
    assert 'cacheway_degraded{component="workers"} 1.0' in text
    assert 'cacheway_inflight_tokens{worker="a:1"} 700.0' in text
    assert 'cacheway_held_tokens{worker="a:1"} 512.0' in text
    assert 'cacheway_inflight_tokens{worker="b:1"} 0.0' in text
    for local in process.registry.all():
        process.registry.probed(local, ok=True, refused=False, detail="")
    assert 'cacheway_degraded{component="workers"} 0.0' in process.metrics.exposition()[0].decode()


async def test_what_a_process_has_not_is_not_reported() -> None:
    process = await built()
    assert report_tenants(process.tenants) is None
    assert report_discovery(process.discovery) is None
    assert reports_of(None, report_kv_events, None) == [report_kv_events]


def test_registers_that_differ_are_in_the_metrics_until_they_are_equal() -> None:
    status = replace(ALONE_STATUS, differing={"Fitted": ("b", "c")}, published_again={"Fitted": 3})
    log = SimpleNamespace(status=lambda: status)
    report = report_log(SimpleNamespace(log=log), LogListener(lambda: None))  # type: ignore[arg-type]
    metrics = Metrics("1.2.3")
    report(metrics)
    page = metrics.exposition()[0].decode()
    assert 'cacheway_registers_differ{register="Fitted"} 2.0' in page
    assert 'cacheway_registers_published_again_total{register="Fitted"} 3.0' in page
    status = replace(status, differing={})
    report(metrics)
    assert 'cacheway_registers_differ{register="Fitted"} 0.0' in metrics.exposition()[0].decode()


def test_each_count_of_cache_events_has_its_metric_and_follows_the_total() -> None:
    class Counted:
        def counts(self) -> dict[str, int]:
            return {"batches": 3, "stored": 5, "gap": 1, "damaged": 2, "answered": 4}

    metrics = Metrics("1.2.3")
    report = report_kv_events(Counted())  # type: ignore[arg-type] # only its counts are read
    report(metrics)
    report(metrics)
    page = metrics.exposition()[0].decode()
    for line in (
        "cacheway_kv_events_batches_total 3.0",
        'cacheway_kv_events_received_total{kind="stored"} 5.0',
        'cacheway_kv_events_losses_total{reason="gap"} 1.0',
        'cacheway_kv_events_invalid_total{what="batch"} 2.0',
        'cacheway_kv_events_replays_total{outcome="answered"} 4.0',
    ):
        assert line in page


def test_only_what_others_said_is_news() -> None:
    news: list[int] = []
    listener = LogListener(lambda: news.append(1))
    listener.flushed(3, 100, 0.1)
    listener.snapshot_refused("damaged")
    assert news == []
    listener.applied(2, 0.1)
    listener.snapshot_merged()
    assert len(news) == 2
    assert (listener.published_ops, listener.applied_ops, listener.snapshots_refused) == (3, 2, 1)


async def test_each_trouble_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {acme: {weight: 3}}")
    process = await built(fleet={"worker_urls": ["http://a:1"]}, tenancy={"keys_file": str(file)})
    assert "1 of 1 workers is not healthy" in process.degraded()
    (local,) = process.registry.all()
    process.registry.probed(local, ok=True, refused=False, detail="")
    assert not any("workers" in each for each in process.degraded())
    assert process.tenants.keys is not None
    process.tenants.keys.problem = "is not YAML"
    assert any("the file of keys cannot be used" in each for each in process.degraded())
