"""Metrics: what is recorded is what a scrape says, in one process and in several."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import router.metrics
from policies import Attempt, Chosen, Usage
from router.gateway.endpoints import Endpoint
from router.gateway.record import RequestRecord
from router.metric_families import (
    CLIENT_DISCONNECTS,
    FAMILIES,
    HANDOVER_EVENTS,
    INFLIGHT_REQUESTS,
    LEG_FAILURES,
    LINK_KV_BYTES,
    LOG_LINES_DROPPED,
    LOOP_LAG,
    TENANT_KEYS_END,
    TREE_BLOCKS,
    UPSTREAM_ERRORS,
)
from router.metrics import GATHERED_MAX, Component, Metrics, Sample
from router.tenant import Tenant

GATHERS = ("_values", "events", "_amounts")
"""Where tallies gather."""

Samples = dict[tuple[str, ...], float]


def usage_of(
    prompt_tokens: int = 1000, cached_tokens: int | None = None, completion_tokens: int | None = None
) -> Usage:
    return Usage(prompt_tokens, cached_tokens, completion_tokens)


def parsed(body: bytes) -> Samples:
    """Samples by name without prefix, and label values in the order of the labels' names."""
    return {
        (
            sample.name.removeprefix("cacheway_"),
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def scraped(metrics: Metrics) -> Samples:
    body, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return parsed(body)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


def ended(outcome: str = "completed", seconds: float = 0.3, **facts: Any) -> RequestRecord:
    attempt = Attempt("a", "w", Chosen(0, 768, 768, 1, 0.1, 0.2, "affinity"), 0, 0, 1.0, 0.0)
    known = {"gateway": None, "endpoint": Endpoint.GENERATE, "attempt": attempt, "bytes_sent": 20} | facts
    return RequestRecord(b"", "", 0.0, 10, ended_s=seconds, outcome=outcome, **known)


def answer(metrics: Metrics, usage: Usage | None, *, streamed: bool = True, pieces: int = 1) -> None:
    if streamed:
        metrics.streamed(0.2, -0.02, 1.0, (usage.completion_tokens if usage is not None else 0) or pieces)
    metrics.ended(ended(usage=usage))


def test_every_family_is_exposed(metrics: Metrics) -> None:
    body, _ = metrics.exposition()
    for family in FAMILIES:
        assert f"# TYPE {family.exposed_name} " in body.decode()


def test_a_finished_request_counts_by_endpoint_and_outcome(metrics: Metrics) -> None:
    metrics.ended(ended())
    metrics.ended(ended("invalid_json", 0.001, endpoint=None))
    found = scraped(metrics)
    assert found["requests_total", "/generate", "completed"] == 1
    assert found["requests_total", "none", "invalid_json"] == 1
    assert found["request_duration_seconds_sum", "/generate"] == 0.3
    assert (found["request_body_bytes_total",], found["answer_body_bytes_total",]) == (20, 40)


def test_a_decision_counts_by_policy_and_reason(metrics: Metrics) -> None:
    metrics.decided(("expected_cost", "affinity", 2e-5))
    found = scraped(metrics)
    assert found["decisions_total", "expected_cost", "affinity"] == 1
    assert found["decision_seconds_bucket", "2e-05"] == 1
    assert found["decision_seconds_bucket", "1e-05"] == 0


def test_the_event_loops_lag_is_a_distribution(metrics: Metrics) -> None:
    metrics.distributions[LOOP_LAG].observe(0.002)
    metrics.distributions[LOOP_LAG].observe(0.004)
    found = scraped(metrics)
    assert found["event_loop_lag_seconds_bucket", "0.002"] == 1
    assert found["event_loop_lag_seconds_bucket", "0.005"] == 2
    assert found["event_loop_lag_seconds_sum",] == pytest.approx(0.006)


def test_predicted_and_reported_hits_are_counted_over_the_same_answers(metrics: Metrics) -> None:
    """An answer without a report must not look like a miss."""
    answer(metrics, usage_of(1000, cached_tokens=512))
    answer(metrics, usage_of(500, cached_tokens=None))
    answer(metrics, None)
    found = scraped(metrics)
    assert found["prompt_tokens_total",] == 1500
    assert found["reported_prompt_tokens_total",] == 1000
    assert found["reported_cached_tokens_total",] == 512
    assert found["predicted_cached_tokens_total",] == 768
    assert found["cached_tokens_error_bucket", "0.0"] == 0
    assert found["cached_tokens_error_bucket", "256.0"] == 1


def test_without_a_report_the_pieces_of_a_stream_stand_for_its_tokens(metrics: Metrics) -> None:
    """1 s of decode in 51 pieces is 50 gaps of 20 ms."""
    answer(metrics, None, pieces=51)
    found = scraped(metrics)
    assert found["inter_token_latency_seconds_sum",] == pytest.approx(0.02)
    assert found["inter_token_latency_seconds_count",] == 1


def test_inter_token_latency_is_the_mean_gap(metrics: Metrics) -> None:
    """1 s of decode for 101 tokens is 100 gaps of 10 ms; one token has no gap."""
    answer(metrics, usage_of(1000, completion_tokens=101))
    answer(metrics, usage_of(1000, completion_tokens=1))
    found = scraped(metrics)
    assert found["inter_token_latency_seconds_sum",] == pytest.approx(0.01)
    assert found["inter_token_latency_seconds_count",] == 1
    assert found["output_tokens_total",] == 102


def test_only_a_stream_has_a_time_to_first_token(metrics: Metrics) -> None:
    answer(metrics, usage_of(1000, completion_tokens=101), streamed=False)
    assert scraped(metrics)["ttft_seconds_count",] == 0
    answer(metrics, None)
    found = scraped(metrics)
    assert found["ttft_seconds_count",] == found["ttft_error_seconds_count",] == 1
    assert found["inter_token_latency_seconds_count",] == 0


def test_tenants_are_counted_if_the_keys_file_names_them(metrics: Metrics) -> None:
    acme = Tenant("acme", configured=True)
    metrics.ended(ended(tenant=acme, usage=usage_of(1000, 512, 7)))
    metrics.ended(ended(tenant=acme, usage=usage_of(500)))
    metrics.ended(ended(tenant=Tenant("unknown"), usage=usage_of(3, 1, 1)))
    metrics.ended(ended("client_left", tenant=acme))
    found = scraped(metrics)
    named = {key: value for key, value in found.items() if key[0].startswith("tenant_")}
    assert named == {
        ("tenant_requests_total", "completed", "acme"): 2,
        ("tenant_requests_total", "client_left", "acme"): 1,
        ("tenant_prompt_tokens_total", "acme"): 1500,
        ("tenant_cached_tokens_total", "acme"): 512,
        ("tenant_output_tokens_total", "acme"): 7,
    }
    assert found["prompt_tokens_total",] == 1503


def test_what_is_read_is_that_of_the_moment(metrics: Metrics) -> None:
    """It is gone when its owner has nothing to tell of it any more."""
    told: list[Sample] = [(TENANT_KEYS_END, ("acme",), 1.5e9)]
    metrics.readers.append(lambda: told)
    assert scraped(metrics)["tenant_keys_end_timestamp_seconds", "acme"] == 1.5e9
    told.clear()
    assert ("tenant_keys_end_timestamp_seconds", "acme") not in scraped(metrics)


def test_a_total_that_somebody_else_counts_is_followed(metrics: Metrics) -> None:
    for total in (2, 2, 3):
        metrics.follow(HANDOVER_EVENTS, total, "nixl", "params_missing")
    assert scraped(metrics)["handover_events_total", "params_missing", "nixl"] == 3


def test_amounts_add_up_by_their_label(metrics: Metrics) -> None:
    for kv_bytes in (1e9, 5e8):
        metrics.labelled_sums[LINK_KV_BYTES].add(("b>a", kv_bytes))
    assert scraped(metrics)["link_kv_bytes_total", "b>a"] == 1.5e9


def test_two_gateways_of_one_process_count_apart(metrics: Metrics) -> None:
    metrics.counts[LEG_FAILURES].add(("nixl", "prefill", "upstream_timeout"))
    key = ("leg_failures_total", "upstream_timeout", "prefill", "nixl")
    assert scraped(metrics)[key] == 1
    assert key not in scraped(Metrics("1.2.3"))


def test_reads_of_the_keys_file_are_followed(metrics: Metrics) -> None:
    for loaded, refused in ((1, 0), (1, 2), (3, 2)):
        metrics.keys_read(loaded=loaded, refused=refused)
    found = scraped(metrics)
    assert (found["keys_file_reads_total", "loaded"], found["keys_file_reads_total", "refused"]) == (3, 2)


def test_waits_count_by_class_and_end_and_only_those_that_lead_somewhere_have_a_length(
    metrics: Metrics,
) -> None:
    metrics.wait_ended("high", "dispatched", 0.5)
    metrics.wait_ended("high", "expired", 60.0)
    metrics.wait_ended("low", "dispatched", 2.0)
    found = scraped(metrics)
    assert found["waits_total", "high", "dispatched"] == found["waits_total", "high", "expired"] == 1
    assert (found["wait_seconds_sum", "high"], found["wait_seconds_count", "low"]) == (0.5, 1)


def test_the_queue_is_told_as_it_is(metrics: Metrics) -> None:
    for requests in (3, 0):
        metrics.queue(
            [("high", requests, 500)], drain_s=1.5, inversions=4, inversion_s_max=0.25, rooms_overdue=2
        )
    found = scraped(metrics)
    assert (found["waiting_requests", "high"], found["waiting_tokens", "high"]) == (0, 500)
    assert found["queue_drain_seconds",] == 1.5
    assert found["queue_inversions_total",] == 4
    assert found["queue_inversion_max_seconds",] == 0.25
    assert found["queue_rooms_overdue_total",] == 2


def test_failures_count_by_worker_and_kind(metrics: Metrics) -> None:
    metrics.counts[UPSTREAM_ERRORS].add(("10.0.0.1:8000", "upstream_timeout"))
    metrics.sums[CLIENT_DISCONNECTS].add(1)
    found = scraped(metrics)
    assert found["upstream_errors_total", "upstream_timeout", "10.0.0.1:8000"] == 1
    assert found["client_disconnects_total",] == 1


def test_what_has_gathered_is_bounded_without_any_scrape(metrics: Metrics) -> None:
    for _ in range(10 * GATHERED_MAX + 1):
        metrics.decided(("expected_cost", "cold", 2e-5))
        metrics.ended(ended(usage=usage_of(cached_tokens=768, completion_tokens=9)))
    held = [
        len(getattr(tally, name)) for tally in metrics._tallies for name in GATHERS if hasattr(tally, name)
    ]
    rows = (metrics._decided, metrics._ended, metrics._reported)
    assert max(*held, *map(len, rows)) == 1
    found = scraped(metrics)
    assert found["requests_total", "/generate", "completed"] == 10 * GATHERED_MAX + 1
    assert found["decision_seconds_count",] == 10 * GATHERED_MAX + 1


def test_many_observations_fall_into_the_same_buckets_as_few(metrics: Metrics) -> None:
    """Numpy sorts many, bisect a few; a bound belongs to the bucket below it."""
    values = [0.0005, 0.001, 0.0011, 0.002, 0.9, 1.0, 7.0] * 10
    few, many = metrics.distributions[LOOP_LAG], Metrics("many").distributions[LOOP_LAG]
    for value in values:
        few.observe(value)
        few.flush()
    many.observe_all(values)
    many.flush()
    assert few.totals()[0] == many.totals()[0]


def test_hooks_run_before_every_scrape(metrics: Metrics) -> None:
    def hook() -> None:
        metrics.set(INFLIGHT_REQUESTS, 3)
        metrics.set(TREE_BLOCKS, 10)
        metrics.degraded(Component.REDIS, on=True)
        metrics.follow(LOG_LINES_DROPPED, 4)
        metrics.shared_log(
            lag_s=0.5,
            snapshot_age_s=7.0,
            buffered_ops=1,
            published_ops=5,
            applied_ops=6,
            dropped_ops=7,
            shortened=10,
            incomplete=11,
            skipped_ops={"invalid": 8},
            snapshots_refused=9,
        )

    assert scraped(metrics)["degraded", "redis"] == 0
    metrics.collect_hooks.append(hook)
    scraped(metrics)
    found = scraped(metrics)
    assert found["inflight_requests",] == 3
    assert found["tree_blocks",] == 10
    assert (found["degraded", "redis"], found["degraded", "workers"]) == (1, 0)
    assert found["log_lines_dropped_total",] == 4
    assert (found["log_lag_seconds",], found["snapshot_age_seconds",]) == (0.5, 7.0)
    totals = [found[f"ops_{name}_total",] for name in ("published", "applied", "dropped")]
    assert totals == [5, 6, 7]
    assert [found[f"placements_{name}_total",] for name in ("shortened", "incomplete")] == [10, 11]
    assert (found["ops_skipped_total", "invalid"], found["ops_skipped_total", "failed"]) == (8, 0)
    assert found["snapshots_refused_total",] == 9
    assert found["build_info", "1.2.3"] == 1


async def test_the_loop_hands_over_without_a_scrape(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router.metrics, "FLUSH_INTERVAL_S", 0.0)
    handed_over: list[None] = []
    metrics.collect_hooks.append(lambda: handed_over.append(None))
    task = asyncio.create_task(metrics.run(), name="flush metrics")
    while len(handed_over) < 2:
        assert not task.done()
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


PROCESS = """
import os, sys
from router.gateway.record import RequestRecord
from router.metric_families import *
from router.metrics import Metrics
metrics = Metrics("1", multiprocess_dir=os.environ["PROMETHEUS_MULTIPROC_DIR"])
facts = {"gateway": None, "endpoint": "/generate", "ended_s": 0.3, "outcome": "completed"}
metrics.ended(RequestRecord(b"", "", 0.0, 0, **facts))
metrics.decided(("random", "cold", 0.1))
metrics.set(INFLIGHT_REQUESTS, 2)
metrics.set(TREE_BLOCKS, int(sys.argv[1]))
metrics.flush()
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2:] == ["scrape"]:
    sys.stdout.write(metrics.exposition()[0].decode())
"""


def test_any_process_of_a_host_answers_for_all(tmp_path: Path) -> None:
    """Three processes with one request each; one dies: its requests stay counted, its gauges go."""

    def start(*argv: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS, *argv],
            env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    dead, sibling, asked = start("900"), start("7"), start("5", "scrape")
    for process in (dead, sibling, asked):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    dead.communicate("\n", timeout=60)
    body, _ = asked.communicate("\n", timeout=60)
    sibling.communicate("\n", timeout=60)

    found = parsed(body.encode())
    assert found["requests_total", "/generate", "completed"] == 3
    assert found["request_duration_seconds_count", "/generate"] == 3
    assert found["decision_seconds_bucket", "+Inf"] == 3
    assert found["inflight_requests",] == 4
    assert found["tree_blocks",] == 7
