"""Waiting of requests in a simulated gateway."""

from dataclasses import replace

import numpy as np
import pytest
from fakes.workloads import arrivals, conversations

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES
from loadtest.simulator import simulation
from loadtest.simulator.queueing import LOOK_S, PATIENT, Flow, QueueRules
from loadtest.simulator.records import Outcome, Records
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Session, Workload
from policies import AdmissionRules, ServiceLevel

ENGINE = replace(
    PROFILES["dense-70b"], rules=CacheRules(full_tokens=200_000), chunk_tokens=0, interleave="apart"
)
"""One prompt at a time, beside any decodes."""

ONE_BY_ONE = AdmissionRules(backlog_target_s=1e-6, backlog_target_s_max=1e-6)
"""The next one goes when the worker has nothing left to prefill: the order is the gateway's alone."""


def config(**changes: object) -> SimulationConfig:
    queue = QueueRules(admission=ONE_BY_ONE)
    rules = {"default_model": ENGINE.prefill.model()}
    settings = {"engine": ENGINE, "workers": 1, "rules": rules, "queue": queue, **changes}
    return SimulationConfig(**settings)  # type: ignore[arg-type]


def mixed(short: int = 30, long: int = 3) -> Workload:
    """At once: a prompt that keeps the worker busy, then some long ones, then many short ones."""
    tokens = [8_000, *[16_000] * long, *[1_000] * short]
    parts = [arrivals([0.001 * number], tokens=size) for number, size in enumerate(tokens)]
    sessions: list[Session] = []
    for number, (part, size) in enumerate(zip(parts, tokens, strict=True)):
        (session,) = part.sessions
        (request,) = session.requests
        blocks = np.random.default_rng(number).bytes(len(request.blocks))
        sessions.append(Session(session.start_s, (replace(request, tokens=size, blocks=blocks),)))
    return replace(parts[0], sessions=tuple(sessions))


def dispatch_order(records: Records) -> list[int]:
    return np.argsort(records.dispatched_s, kind="stable").tolist()


def test_first_come_first_served_is_k_0() -> None:
    records = simulate(mixed(), config(queue=QueueRules(k=0.0, admission=ONE_BY_ONE))).records

    assert dispatch_order(records) == list(range(len(records)))
    assert (np.diff(records.dispatched_s) > 0).all()


def test_a_great_k_serves_little_work_first() -> None:
    records = simulate(mixed(), config(queue=QueueRules(k=1e6, admission=ONE_BY_ONE))).records

    assert dispatch_order(records) == [0, *range(4, len(records)), 1, 2, 3]


def test_nobody_is_overtaken_by_one_that_came_later_than_k_times_its_work() -> None:
    """Short ones come for a minute; the long one is passed by those of its first k·s seconds alone."""
    k = 20.0
    start = mixed(short=0, long=1)
    stream = arrivals((0.01 + np.arange(3_000) * 0.02).tolist(), tokens=1_000)
    workload = replace(start, sessions=(*start.sessions, *stream.sessions))

    records = simulate(workload, config(queue=QueueRules(k=k, admission=ONE_BY_ONE))).records

    long = int(np.flatnonzero(records.prompt_tokens == 16_000)[0])
    bound_s = k * ENGINE.prefill.prompt_s(16_000, 0)
    passed = (records.dispatched_s < records.dispatched_s[long]) & (records.arrival_s > 0.005)
    assert passed.sum() > 50
    assert records.arrival_s[passed].max() <= records.arrival_s[long] + bound_s


@pytest.mark.parametrize("replicas", [1, 3])
def test_requests_that_waited_end_and_leave_nothing_behind(replicas: int) -> None:
    run = simulation._Simulation(
        conversations(sessions=60, turns=4, rate_per_s=200.0),
        config(workers=2, replicas=replicas, queue=QueueRules()),
        None,
    )

    records = run.run().records

    assert (records.outcome == Outcome.COMPLETED).all()
    assert (records.wait_s > 0.0).sum() > 20
    assert (records.dispatched_s <= records.started_s).all()
    for replica in run.replicas:
        assert not replica.fleet.loads.requests
        assert replica.fleet.tickets.count == 0
        assert len(replica.room) == 0


def test_the_same_seed_decides_the_same_with_a_queue() -> None:
    workload = conversations(sessions=40, turns=4, rate_per_s=20.0)
    setting = config(workers=2, replicas=3, queue=QueueRules())

    first, second, other = (
        simulate(workload, one).decisions_digest for one in (setting, setting, replace(setting, seed=2))
    )

    assert first == second != other


def test_who_waits_too_long_expires() -> None:
    room = replace(PATIENT, timeout_s=0.5)
    result = simulate(mixed(), config(queue=QueueRules(admission=ONE_BY_ONE, room=room)))

    expired = result.records.outcome == Outcome.EXPIRED
    assert expired.any()
    assert np.isnan(result.records.dispatched_s[expired]).all()
    assert result.records.wait_s[~expired].max() <= 0.5 + LOOK_S
    assert result.summary()["expired"] == expired.sum()


def test_whom_no_place_is_left_for_is_rejected() -> None:
    room = replace(PATIENT, size=5)
    records = simulate(mixed(), config(queue=QueueRules(admission=ONE_BY_ONE, room=room))).records

    assert (records.outcome == Outcome.REJECTED).sum() == len(records) - 6


def test_rejecting_early_keeps_the_promise_to_the_others() -> None:
    level = ServiceLevel(ttft_slo_s=2.0)
    plain, early = (
        simulate(mixed(200), config(queue=QueueRules(admission=ONE_BY_ONE, level=one))).records
        for one in (ServiceLevel(), level)
    )

    done = early.outcome == Outcome.COMPLETED
    assert 0 < done.sum() < len(early)
    assert (early.ttft_s[done] <= 2.0).mean() > 0.9 > (plain.ttft_s <= 2.0).mean()


def test_classes_share_by_their_weights_while_they_wait() -> None:
    """Sessions are drawn evenly; while both wait, the heavier class gets three quarters of the work."""
    flows = (Flow("high/", 1.0, 3.0), Flow("low/", 1.0, 1.0))
    run = simulation._Simulation(
        arrivals((np.arange(600) * 0.001).tolist(), tokens=2_000),
        config(queue=QueueRules(k=0.0, admission=ONE_BY_ONE, flows=flows)),
        None,
    )

    records = run.run().records

    high = np.array([flight._flow == "high/" for flight in run._flights])
    assert 0.4 < high.mean() < 0.6
    first = records.dispatched_s < np.percentile(records.dispatched_s, 50)
    assert 0.65 < high[first].mean() < 0.85
