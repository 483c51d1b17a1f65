"""The laboratory simulates the asked candidates, with the asked seeds and loads."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fakes.planned import OURS, THEIRS, trial
from fakes.traffic import write_trace
from rich.console import Console

from loadtest.engine.profiles import PROFILES
from loadtest.plan.candidate import Candidate
from loadtest.plan.laboratory import Laboratory
from loadtest.plan.objective import Prices, Slo
from loadtest.plan.search import Probe, Search
from loadtest.plan.steps import Step
from loadtest.plan.trial import Trial
from loadtest.simulator.readers import ReadOptions, read_auto
from loadtest.simulator.simulation import SimulationConfig

PLAN, OTHER = Candidate(OURS, 2), Candidate(THEIRS, 2)


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lab(tmp_path: Path, screen: io.StringIO) -> Laboratory:
    trace = write_trace(tmp_path / "trace.jsonl")
    workloads = [read_auto(trace, ReadOptions(seed=seed)) for seed in (7, 8)]
    base = SimulationConfig(engine=PROFILES["dense-70b"], seed=7)
    return Laboratory(Console(file=screen, width=120), workloads, base, Slo(2.0), jobs=2)


def test_every_probe_has_its_trial(lab: Laboratory, screen: io.StringIO) -> None:
    probes = [Probe(PLAN, 0), Probe(PLAN, 1), Probe(OTHER, 0)]

    trials = lab.run(probes)

    assert list(trials) == probes
    assert lab.simulations == 3
    assert trials[probes[0]].figures["policy"] == "expected_cost"
    assert trials[probes[2]].figures["policy"] == "random"
    digests = {one.figures["decisions_digest"] for one in trials.values()}
    assert len(digests) == 3
    shown = screen.getvalue()
    assert "expected_cost on 2 workers, seed 8: TTFT P90" in shown
    assert shown.count("holds") + shown.count("does not hold") == 3


def test_steps_to_another_load_are_simulated_and_the_others_looked_up(lab: Laboratory) -> None:
    def run(probes: Sequence[Probe]) -> Mapping[Probe, Trial]:
        return {probe: trial(0.123) for probe in probes}

    search = Search(Slo(2.0), Prices(), 2, run)
    search.try_out([Probe(OTHER, 0), Probe(OTHER, 1)])

    steps = lab.steps([Step("more load", PLAN, 1.5), Step("random", OTHER)], search)

    assert lab.simulations == 2
    (_, loaded), (_, known) = steps
    assert len(loaded) == len(known) == 2
    assert [one.figures["ttft_p90_s"] for one in known] == [0.123, 0.123]
    last_s = [one.figures["makespan_s"] for one in loaded]
    plain_s = lab.run([Probe(PLAN, 0)])[Probe(PLAN, 0)].figures["makespan_s"]
    assert all(float(end_s or 0.0) < 0.8 * float(plain_s or 0.0) for end_s in last_s)
