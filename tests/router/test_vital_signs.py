"""Vitals of the parts of a process, collected no oftener than they are read."""

from dataclasses import replace
from typing import Any, cast

import pytest
from fakes.admin import WELL
from fakes.gateway import Bench, chat

from policies import Attempt, Chosen, Usage
from router.gateway.record import RequestRecord
from router.loop_lag import LoopLag
from router.vital_signs import TAKEN_EVERY_S, VitalSigns


def ended_request(**facts: Any) -> RequestRecord:
    return RequestRecord(b"", "", 0.0, 0, gateway=cast(Any, None), **facts)


class Patient:
    """A process whose parts the test sets."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.bench = Bench(
            workers=1,
            server={"host": "a", "port": 1},
            admin={"port": 2},
            admission={"worker_running_max": 1},
        )
        self.bench.status = replace(WELL, lag_s=0.25, dropped_ops=7)
        self.metrics = self.bench.metrics
        self.signs = VitalSigns(
            "1.2.3",
            self.bench.settings,
            self.bench.gateway,
            LoopLag(lambda _: None),
            lambda: ("the weather",),
            lambda: True,
            monotonic_s=lambda: self.now_s,
            unix_s=lambda: 1000.0 + self.now_s,
        )

    def ended(self, outcome: str) -> None:
        self.metrics.ended(ended_request(ended_s=1.0, outcome=outcome))


@pytest.fixture
def patient() -> Patient:
    return Patient()


def test_what_the_parts_know_is_told(patient: Patient) -> None:
    patient.bench.registry.add("http://w1")
    for number in range(3):
        patient.bench.start(chat(f"{number} " * 1000))
    vitals = patient.signs.read()
    assert (vitals.version, vitals.address, vitals.admin_address) == ("1.2.3", "a:1", "127.0.0.1:2")
    assert (vitals.started_unix_s, vitals.at_unix_s) == (1050.0, 1050.0)
    assert (vitals.ready, vitals.lag_s, vitals.dropped_ops) == (True, 0.25, 7)
    assert (vitals.holds_snapshot_lease, vitals.degraded) == (True, ("the weather",))
    assert (vitals.workers, vitals.workers_healthy, vitals.inflight, vitals.waiting) == (2, 1, 3, 2)
    assert vitals.rss_bytes > 1 << 20
    assert vitals.cpu_s > 0


def test_what_requests_did_is_counted_since_the_start(patient: Patient) -> None:
    for outcome in ("completed", "queue_full", "client_left"):
        patient.ended(outcome)
    patient.metrics.streamed(0.3, 0.0, 1.0, 20)
    chosen = Chosen(0, 500, 500, 500, 0.1, 0.2, "affinity")
    attempt = Attempt("a", "w", chosen, 0, 0, 1.0, 0.0)
    usage = Usage(1000, 600, 20)
    ended = ended_request(attempt=attempt, outcome="completed", usage=usage)
    patient.metrics.ended(ended)
    vitals = patient.signs.read()
    assert vitals.requests == {"completed": 2, "queue_full": 1, "client_left": 1}
    assert (vitals.rejected, vitals.prompt_tokens, vitals.output_tokens) == (1, 1000, 20)
    assert (vitals.reported_prompt_tokens, vitals.cached_tokens, vitals.predicted_tokens) == (1000, 600, 500)
    counts = dict(zip(vitals.ttft_bounds_s, vitals.ttft_counts, strict=False))
    assert (counts[0.25], counts[0.5], vitals.ttft_counts[-1], vitals.ttft_sum_s) == (0, 1, 1, 0.3)
    assert len(vitals.ttft_counts) == len(vitals.ttft_bounds_s) + 1
    patient.metrics.exposition()
    patient.ended("completed")
    patient.now_s += 1.0
    assert patient.signs.read().requests["completed"] == 3, "a scrape takes nothing away"


def test_they_are_taken_once_a_second_however_often_somebody_asks(patient: Patient) -> None:
    first = patient.signs.read()
    patient.bench.registry.add("http://w1")
    patient.now_s += TAKEN_EVERY_S / 2
    assert patient.signs.read() is first
    patient.now_s += TAKEN_EVERY_S
    assert patient.signs.read().workers == 2
