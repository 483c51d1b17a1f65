"""Tests of `loadtest.scale.simulation`: small fleets, some seconds of virtual time."""

from dataclasses import replace

import numpy as np
import pytest

from loadtest.scale.simulation import Outcome, Setup, Simulation
from loadtest.scale.traffic import agents

SETUP = Setup(knowledge="shards", replicas=20, workers=48, warm_s=10.0, until_s=30.0, sampled=4)


def run(**changes: object) -> Outcome:
    return Simulation(replace(SETUP, **changes), agents(6.0)).run()  # type: ignore[arg-type]


def test_a_seed_repeats_a_run() -> None:
    assert run().placed == run().placed


def test_shards_find_nearly_all_that_one_log_finds_and_much_more_than_each_alone() -> None:
    """Three percentage points are twice the effect of seeds."""
    log, shards, alone = run(knowledge="log"), run(), run(knowledge="alone")

    assert shards.hit_ratio() == pytest.approx(log.hit_ratio(), abs=0.03)
    assert alone.hit_ratio() < log.hit_ratio() - 0.2


def test_a_request_asks_one_owner_and_tells_all() -> None:
    """Two of 20 replicas own a shard: 18 in 20 requests ask, some twice after a split."""
    outcome = run()
    requests = len(outcome.placed)

    assert 0.85 < outcome.asks / requests < 1.2
    assert outcome.tells / requests == pytest.approx(2 * 0.95, abs=0.03)
    assert outcome.timeouts == 0


def test_one_log_has_no_messages_of_its_own() -> None:
    outcome = run(knowledge="log")

    assert (outcome.asks, outcome.tells, outcome.size_bytes) == (0, 0, 0)
    assert np.median(outcome.loads_late_s) == pytest.approx(0.006, rel=0.1)


def test_a_second_owner_keeps_what_a_death_would_lose() -> None:
    """Replicas that ask the dead one wait once each."""
    lost = run(owners=1, dies_s=15.0)
    kept = run(owners=2, dies_s=15.0)

    assert lost.hit_ratio(15.0) < run(owners=1).hit_ratio(15.0)
    assert kept.hit_ratio(15.0) == pytest.approx(run(owners=2).hit_ratio(15.0), abs=0.04)
    assert 0 < kept.timeouts <= 20


def test_blocks_that_a_worker_evicted_are_not_promised_for_long() -> None:
    """With caches for four conversations an owner's guess costs little beside the knowledge of a log."""
    small = run(capacity_blocks=400, until_s=50.0).hit_ratio()

    assert small == pytest.approx(
        run(knowledge="log", capacity_blocks=400, until_s=50.0).hit_ratio(), abs=0.04
    )
    assert small < run(until_s=50.0).hit_ratio() - 0.1
