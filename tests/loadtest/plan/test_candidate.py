"""A fleet costs as much as its workers and is simulated as it is."""

from dataclasses import replace

import pytest
from fakes.planned import OURS, SPLIT

from loadtest.engine.profiles import PROFILES
from loadtest.plan.candidate import Candidate, Family
from loadtest.plan.division import Division
from loadtest.plan.objective import Prices
from loadtest.simulator.contenders import Contender
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.tier_rules import read_tier_rules


def test_workers_that_only_decode_cost_as_much() -> None:
    assert Candidate(OURS, 3).cost_per_hour(Prices(2.0)) == 6.0
    assert Candidate(SPLIT, 3, 2).cost_per_hour(Prices(2.0)) == 10.0


def test_host_memory_is_paid_for_each_worker_that_takes_requests_and_the_pool_once() -> None:
    family = replace(SPLIT, host_gib=100.0, pool_gib=1_000.0)

    assert Candidate(family, 3, 2).cost_per_hour(Prices(2.0, 0.01, 0.001)) == pytest.approx(10.0 + 3.0 + 1.0)


def test_memory_is_simulated_in_tokens_of_the_model() -> None:
    """A token of the dense 70B model weighs 320 KiB, so a GiB holds 3,276 of them."""
    engine = PROFILES["dense-70b"]
    config = Candidate(replace(OURS, host_gib=10.0, pool_gib=100.0), 3).config(
        SimulationConfig(engine=engine)
    )

    assert config.host is not None
    assert config.l3 is not None
    assert 10 * 3_276 - 64 <= config.host.host_tokens <= 10 * 3_277
    assert config.l3.nodes * config.l3.memory_tokens == pytest.approx(100 * 3_276.8, rel=1e-3)
    rules = read_tier_rules("write_policy=write_back,ttl_s=60")
    told = Candidate(replace(OURS, host_gib=10.0, pool_gib=100.0, tier_rules=rules), 3).config(config)
    assert told.host == replace(config.host, write_policy="write_back")
    assert told.l3 == replace(config.l3, ttl_s=60.0)
    bare = Candidate(OURS, 3).config(config)
    assert (bare.host, bare.l3) == (None, None)


def test_a_candidate_is_simulated_with_its_policy_and_workers() -> None:
    base = SimulationConfig(engine=PROFILES["dense-70b"], speed=2.0)
    family = Family(Contender("affinity", (("match_weight", 2.0),)), split=True)

    config = Candidate(family, 3, 2).config(base)

    assert (config.policy, config.policy_options) == ("affinity", {"match_weight": 2.0})
    assert (config.workers, config.decode_workers, config.speed) == (3, 2, 2.0)


def test_a_fleet_has_a_name() -> None:
    assert Candidate(OURS, 1).label == "expected_cost on 1 worker"
    assert Candidate(OURS, 3).label == "expected_cost on 3 workers"
    assert Candidate(SPLIT, 3, 2).label == "expected_cost on 3 prefill and 2 decode workers"
    assert OURS.label != SPLIT.label
    roomy = replace(OURS, host_gib=1024.0, pool_gib=512.0)
    assert Candidate(roomy, 2).label == (
        "expected_cost on 2 workers, 1,024 GiB of host memory each and a pool of 512 GiB"
    )


def test_a_divided_fleet_shares_its_workers_after_the_work() -> None:
    """Three parts of the work in four to the short ones, and at least one worker for the long ones."""
    family = replace(OURS, division=Division((65_536, 1_048_576), (3.0, 1.0), 100.0))

    plan = Candidate(family, 8)

    assert plan.bucket_workers == ((65_536, 6), (1_048_576, 2))
    assert plan.config(SimulationConfig(engine=PROFILES["dense-70b"])).bucket_workers == plan.bucket_workers
    assert plan.label == "expected_cost on 8 workers (0-64K: 6, 64K-1M: 2)"
    assert Candidate(replace(family, split=True), 2, 3).label == (
        "expected_cost on 2 prefill (0-64K: 1, 64K-1M: 1) and 3 decode workers"
    )
    assert (family.workers_min, OURS.workers_min) == (2, 1)
    assert family.label == "expected_cost, buckets 0-64K, 64K-1M"
    assert Candidate(OURS, 8).config(plan.config(SimulationConfig(engine=PROFILES["dense-70b"]))) == (
        Candidate(OURS, 8).config(SimulationConfig(engine=PROFILES["dense-70b"]))
    )
