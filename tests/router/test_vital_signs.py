"""Vitals are what the parts of a process know, put together no oftener than anybody looks."""

from dataclasses import replace

import pytest
from fakes.admin import WELL
from fakes.gateway import FakeShared, VirtualTime, registry

from router.fleet import Registry
from router.loop_lag import LoopLag
from router.metrics import Metrics
from router.vital_signs import TAKEN_EVERY_S, SignPorts, VitalSigns


class Usage:
    prompt_tokens, cached_tokens, completion_tokens = 1000, 600, 20


class Patient:
    """A process whose parts the test sets."""

    def __init__(self) -> None:
        self.metrics = Metrics("1.2.3")
        self.now_s = 50.0
        self.waiting = 2
        time, shared = VirtualTime(), FakeShared()
        self.registry: Registry = registry(shared, time)
        self.signs = VitalSigns(
            SignPorts(
                version="1.2.3",
                address="a:1",
                admin_address="a:2",
                status=lambda: replace(WELL, lag_s=0.25, dropped_ops=7),
                wrote_snapshot=lambda: True,
                degraded=lambda: ("the weather",),
                registry=self.registry,
                inflight=lambda: 3,
                waiting=lambda: self.waiting,
                metrics=self.metrics,
                loop_lag=LoopLag(lambda _: None),
            ),
            monotonic_s=lambda: self.now_s,
            unix_s=lambda: 1000.0 + self.now_s,
        )

    def ended(self, outcome: str) -> None:
        self.metrics.finished("chat", outcome, 1.0)


@pytest.fixture
def patient() -> Patient:
    return Patient()


def test_what_the_parts_know_is_told(patient: Patient) -> None:
    patient.registry.add("http://w1")
    vitals = patient.signs.read()
    assert (vitals.version, vitals.address, vitals.admin_address) == ("1.2.3", "a:1", "a:2")
    assert (vitals.started_unix_s, vitals.at_unix_s) == (1050.0, 1050.0)
    assert (vitals.ready, vitals.lag_s, vitals.dropped_ops) == (True, 0.25, 7)
    assert (vitals.holds_snapshot_lease, vitals.degraded) == (True, ("the weather",))
    assert (vitals.workers, vitals.workers_healthy, vitals.inflight, vitals.waiting) == (1, 0, 3, 2)
    assert vitals.rss_bytes > 1 << 20
    assert vitals.cpu_s > 0


def test_what_requests_did_is_counted_since_the_start(patient: Patient) -> None:
    for outcome in ("completed", "completed", "queue_full", "client_left"):
        patient.ended(outcome)
    patient.metrics.answered(True, 0.3, 0.0, 1.0, 20, 500, Usage())
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
    patient.waiting = 9
    patient.now_s += TAKEN_EVERY_S / 2
    assert patient.signs.read() is first
    patient.now_s += TAKEN_EVERY_S
    assert patient.signs.read().waiting == 9
