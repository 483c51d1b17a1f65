"""A fleet costs what its workers cost and is simulated as it is."""

from fakes.planned import OURS, SPLIT

from loadtest.engine.profiles import PROFILES
from loadtest.plan.candidate import Candidate, Family
from loadtest.plan.objective import Prices
from loadtest.simulator.contenders import Contender
from loadtest.simulator.simulation import SimulationConfig


def test_workers_that_only_decode_cost_as_much() -> None:
    assert Candidate(OURS, 3).cost_per_hour(Prices(2.0)) == 6.0
    assert Candidate(SPLIT, 3, 2).cost_per_hour(Prices(2.0)) == 10.0


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
