import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from fakes.workloads import arrivals, conversations

from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES
from loadtest.simulator import simulation
from loadtest.simulator.fleet import WorkerGroup
from loadtest.simulator.records import Outcome
from loadtest.simulator.simulation import SimulationConfig, simulate
from policies import POLICIES
from policies.disaggregation import RoleRules

ENGINE = replace(PROFILES["dense-70b"], rules=CacheRules(full_tokens=60_000)).faster(0.5)
ONE_BY_ONE = replace(ENGINE, chunk_tokens=0, interleave="apart")
"""One prompt at a time, beside any decodes: a queue with one server."""


def config(**changes: object) -> SimulationConfig:
    return SimulationConfig(**{"engine": ENGINE, "workers": 4, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("decode_workers", [0, 2])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_request_ends_once_and_leaves_nothing_behind(policy: str, decode_workers: int) -> None:
    workload = conversations(sessions=30, turns=4)
    run = simulation._Simulation(
        workload, config(policy=policy, replicas=3, decode_workers=decode_workers), None
    )

    result = run.run()

    records = result.records
    assert len(records) == 120
    assert (records.outcome == Outcome.COMPLETED).all()
    assert (records.arrival_s <= records.started_s).all()
    assert (records.started_s < records.first_s).all()
    assert (records.first_s <= records.finished_s).all()
    assert (records.reused_tokens < records.prompt_tokens).all()
    assert ((records.decode_worker >= 0) == (decode_workers > 0)).all()
    for replica in run.replicas:
        loads = replica.fleet.loads
        assert not loads.requests
        for column in (
            loads.prefill_us,
            loads.prefill_tokens,
            loads.inflight_requests,
            loads.inflight_tokens,
        ):
            assert not column.any()


@pytest.mark.parametrize("replicas", [1, 3])
def test_convertible_workers_change_roles_and_no_request_is_lost(replicas: int) -> None:
    """30 prompts of 20,000 tokens a minute are too many for one of four workers, and answers are short."""
    groups = tuple(
        WorkerGroup(name=role, profile=ENGINE, count=count, role=role, convertible=True)
        for role, count in (("prefill", 1), ("decode", 3))
    )
    run = simulation._Simulation(
        arrivals([2.0 * number for number in range(150)], tokens=20_000, output_tokens=20),
        config(
            groups=groups,
            replicas=replicas,
            roles=RoleRules(mode="apply", dwell_s_min=60.0, requests_min=20),
        ),
        None,
    )

    result = run.run()

    assert (result.records.outcome == Outcome.COMPLETED).all()
    assert {role for _, _, role in result.role_changes} == {"prefill"}
    (first_s, first, _), *_ = result.role_changes
    assert first.startswith("decode")
    at = run.fleet.places[first]
    assert (result.records.worker[result.records.dispatched_s > first_s] == at).any()
    assert not (result.records.worker[result.records.dispatched_s < first_s] == at).any()
    for replica in run.replicas:
        assert replica.fleet.worker(first).role == "prefill"
        assert not replica.turning
        assert not replica.fleet.loads.requests


def test_the_same_seed_decides_the_same_in_every_process() -> None:
    """Nothing may depend on the order of a set or on the hash of a string, which differ per process."""
    script = (
        "from fakes.workloads import conversations\n"
        "from loadtest.engine.profiles import PROFILES\n"
        "from loadtest.simulator.simulation import SimulationConfig, _Simulation, simulate\n"
        "config = SimulationConfig(engine=PROFILES['dense-70b'], workers=4, replicas=3)\n"
        "print(simulate(conversations(sessions=30, turns=4), config).decisions_digest, end='')\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([".", "tests"]), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }

    workload = conversations(sessions=30, turns=4)
    same, other = (
        simulate(workload, config(engine=PROFILES["dense-70b"], replicas=3, seed=seed)).decisions_digest
        for seed in (1, 2)
    )
    assert digests == {same}
    assert other != same


def test_one_engine_waits_as_long_as_queueing_theory_says() -> None:
    """M/D/1: the mean wait is rho / (2 (1 - rho)) services; 4,000 requests at rho = 0.7 come within 10 %."""
    tokens = 1280
    service_s = ONE_BY_ONE.prefill.prompt_s(tokens, 0)
    chance = Random(5)
    at_s, times_s = 0.0, []
    for _ in range(4_000):
        at_s += chance.expovariate(0.7 / service_s)
        times_s.append(at_s)

    records = simulate(arrivals(times_s, tokens=tokens), config(workers=1, engine=ONE_BY_ONE)).records

    waits = (records.started_s - records.arrival_s) / service_s
    assert waits.mean() == pytest.approx(0.7 / (2 * 0.3), rel=0.1)
    assert records.first_s - records.started_s == pytest.approx(np.full(4_000, service_s))


@pytest.mark.parametrize("policy", ["expected_cost", "round_robin", "cache_aware"])
def test_no_worker_is_idle_while_requests_wait_for_it(policy: str) -> None:
    """Each worker is work conserving: a prefill starts at its arrival or when another one has ended there."""
    records = simulate(
        conversations(sessions=60, turns=4, rate_per_s=8.0), config(policy=policy, engine=ONE_BY_ONE)
    ).records

    for worker in range(4):
        mine = records.worker == worker
        ends_s = records.first_s[mine]
        for arrival_s, started_s in zip(records.arrival_s[mine], records.started_s[mine], strict=True):
            assert started_s == arrival_s or np.abs(ends_s - started_s).min() < 1e-9


def test_replicas_that_heard_everything_agree() -> None:
    run = simulation._Simulation(conversations(sessions=30, turns=4), config(replicas=4), None)
    run.run()

    first, *others = [
        [
            [replica.fleet.tree.held_blocks(slot) for slot in range(4)],
            replica.fleet.service_model("default"),
            replica.fleet.snapshot()[-1],
        ]
        for replica in run.replicas
    ]
    assert sum(first[0]) > 0
    assert all(other == first for other in others)


def test_a_closed_loop_never_has_more_sessions_than_users() -> None:
    records = simulate(conversations(sessions=40, turns=3, users=5), config()).records

    changes = sorted([(at_s, 1) for at_s in records.arrival_s] + [(at_s, -1) for at_s in records.finished_s])
    in_flight = np.cumsum([change for _, change in changes])
    assert len(records) == 120
    assert in_flight.max() <= 5


def test_speed_divides_starts_and_delays_only() -> None:
    slow, fast = (
        simulate(
            conversations(sessions=30, turns=1, rate_per_s=0.01), config(speed=speed, engine=ONE_BY_ONE)
        ).records
        for speed in (1.0, 4.0)
    )

    assert slow.arrival_s == pytest.approx(fast.arrival_s * 4)
    assert (slow.first_s - slow.started_s).sum() == pytest.approx((fast.first_s - fast.started_s).sum())


def test_the_next_turn_comes_its_delay_after_the_answer() -> None:
    """Think times are part of the traffic, so speed divides them, too."""
    workload = conversations(sessions=1, turns=6, gap_s=20.0)
    delays_s = [request.delay_s for request in workload.sessions[0].requests[1:]]

    for speed in (1.0, 4.0):
        records = simulate(workload, config(speed=speed)).records
        paused_s = records.arrival_s[1:] - records.finished_s[:-1]
        assert paused_s * speed == pytest.approx(delays_s)


def test_progress_is_told_up_to_the_end() -> None:
    told: list[tuple[int, int]] = []

    simulate(
        conversations(sessions=50, turns=5),
        config(),
        progress=lambda ended, total: told.append((ended, total)),
    )

    assert told[-1] == (250, 250)
    assert told == sorted(told)


def test_what_a_shared_pool_holds_is_fetched_instead_of_computed() -> None:
    """Caches that hold three prompts, and a pool that holds everything: hits come from the pool."""
    engine = replace(PROFILES["mimo-v2-flash"], dp_ranks=1)
    rules = replace(engine.rules, full_tokens=16_000, swa_tokens=4_000)
    workload = conversations(sessions=40, turns=4)
    alone, shared = (
        simulate(workload, config(engine=replace(engine, rules=rules), l3=l3)) for l3 in (None, L3Settings())
    )

    assert alone.records.pool_tokens.sum() == 0
    assert shared.records.pool_tokens.sum() > 0.02 * shared.records.prompt_tokens.sum()
    assert (shared.records.pool_tokens <= shared.records.host_tokens).all()
    assert shared.summary()["hit_ratio"] > alone.summary()["hit_ratio"]
    assert shared.bounds.pooled_tokens > alone.bounds.pooled_tokens
    # The gateway knew of the pool, and counted on it.
    assert shared.records.predicted_tokens.sum() > alone.records.predicted_tokens.sum()


@pytest.mark.parametrize("decode_workers", [0, 2])
def test_buckets_part_the_workers_by_length_and_reject_what_is_longer(decode_workers: int) -> None:
    workload = conversations(sessions=30, turns=6)
    buckets = ((3_000, 3), (6_000, 1))

    records = simulate(
        workload, config(policy="round_robin", bucket_workers=buckets, decode_workers=decode_workers)
    ).records

    lengths = records.prompt_tokens + 256
    short, long, beyond = lengths <= 3_000, (lengths > 3_000) & (lengths <= 6_000), lengths > 6_000
    assert min(short.sum(), long.sum(), beyond.sum()) > 5
    assert set(records.worker[short]) == {0, 1, 2}
    assert (records.worker[long] == 3).mean() > 0.5  # those that are not sooner elsewhere despite the price
    assert set(records.worker[beyond]) == {-1}
    assert ((records.outcome == Outcome.REJECTED) == beyond).all()
    assert (records.outcome[~beyond] == Outcome.COMPLETED).all()


def test_one_bucket_for_everything_is_one_pool() -> None:
    workload = conversations(sessions=30, turns=4)
    pool, bucket = (
        simulate(workload, config(bucket_workers=buckets)).decisions_digest
        for buckets in ((), ((1 << 20, 4),))
    )

    assert bucket == pool


@pytest.mark.parametrize("buckets", [((64, 2), (128, 1)), ((64, 4), (128, 0)), ((128, 2), (64, 2))])
def test_buckets_that_leave_workers_out_or_ranges_without_any_are_refused(
    buckets: tuple[tuple[int, int], ...],
) -> None:
    with pytest.raises(ValueError, match=r"add up|ascend"):
        config(bucket_workers=buckets)
