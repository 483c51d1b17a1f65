"""Offered load over capacity, and the sentence about an overloaded fleet."""

import numpy as np
import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.offered import Offered, offered_load
from loadtest.simulator.runs import Run
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Session, SimRequest, Workload

ENGINE = PROFILES["dense-70b"]


def load(count: int, gap_s: float, tokens: int, outputs: int, workers: int = 1) -> Offered:
    """Prompts that share nothing, evenly spaced."""
    block = ENGINE.rules.block_tokens
    sessions = tuple(
        Session(
            gap_s * number,
            (
                SimRequest(
                    np.arange(number * 10_000, number * 10_000 + tokens // block, dtype="<u8").tobytes(),
                    tokens,
                    outputs,
                ),
            ),
        )
        for number in range(count)
    )
    workload = Workload("even", sessions)
    result = simulate(workload, SimulationConfig(engine=ENGINE, workers=workers))
    return offered_load([Run.of("expected_cost", result)], workload)


def test_load_is_work_over_time() -> None:
    price_s = ENGINE.prefill.prompt_s(6_400, 0)
    light = load(40, 4 * price_s, 6_400, 2)
    assert light.prefill == pytest.approx(0.25, rel=0.05)
    assert light.by_policy[0][1] == pytest.approx(light.prefill, rel=0.05)
    assert light.sentences() == []


def test_a_fleet_that_cannot_prefill_so_much_is_named() -> None:
    price_s = ENGINE.prefill.prompt_s(6_400, 0)
    heavy = load(60, price_s / 3, 6_400, 2)
    assert heavy.prefill == pytest.approx(3.0, rel=0.1)
    (sentence,) = heavy.sentences()
    assert sentence.startswith("This fleet is overloaded: 3.0")
    assert "About 4 workers would be busy" in sentence


def test_a_fleet_that_cannot_decode_so_much_is_named() -> None:
    (sentence,) = load(60, 0.05, 64, 4_000).sentences()
    assert "the decode that 1 worker can do, with the largest batches" in sentence


def test_misses_of_a_policy_can_overload_a_fleet() -> None:
    offered = Offered(4, 0, 0.4, 0.1, (("expected_cost", 0.5), ("random", 1.3)))
    (sentence,) = offered.sentences()
    assert "1.30 × under random" in sentence
    assert "expected_cost" not in sentence
