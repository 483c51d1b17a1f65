"""The comparison of ways to choose ranks, on a small workload."""

import pytest

from loadtest.bench.ranks import CHOOSERS, row
from loadtest.simulator.generated import AgenticShape, Lengths, generate_agentic
from loadtest.simulator.simulation import SimulationConfig
from loadtest.study.traffic import ENGINES, MANY_RANKS


@pytest.mark.parametrize("chooser", CHOOSERS)
def test_every_chooser_serves_all_and_those_that_look_at_caches_hit_as_predicted(chooser: str) -> None:
    workload = generate_agentic(users=8, sessions=12, seed=1, shape=AgenticShape(turns=Lengths(6, 0.5, 12)))
    cells = row(chooser, workload, SimulationConfig(engine=ENGINES[MANY_RANKS], workers=2)).split(" | ")
    hit, predicted = (float(cell.rstrip("%")) for cell in cells[:2])
    assert cells[-1] == "100.0%"
    assert (abs(hit - predicted) < 5.0) == (chooser != "engine, blind")
