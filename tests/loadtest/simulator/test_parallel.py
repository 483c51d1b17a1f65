"""Simulations side by side give the same results as one after the other, and none is lost silently."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.traffic import write_trace

from loadtest.engine.profiles import PROFILES
from loadtest.simulator import parallel
from loadtest.simulator.generated import generate_agentic
from loadtest.simulator.parallel import Cell, SimulationFailed, simulate_all
from loadtest.simulator.readers import read_auto
from loadtest.simulator.records import Result
from loadtest.simulator.simulation import SimulationConfig


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    workload = read_auto(write_trace(tmp_path / "trace.jsonl"))
    config = SimulationConfig(engine=PROFILES["dense-70b"], workers=2)
    return [
        Cell(workload, replace(config, policy=policy)) for policy in ("expected_cost", "random", "least_load")
    ]


def untold(*_: int) -> None:
    """Ignore progress."""


def test_any_number_of_jobs_gives_the_same_results(cells: list[Cell]) -> None:
    alone, together = (dict(simulate_all(cells, jobs, untold)) for jobs in (1, 2))

    assert alone.keys() == together.keys() == {0, 1, 2}
    for number, cell in enumerate(cells):
        assert alone[number].decisions_digest == together[number].decisions_digest
        assert together[number].config.policy == cell.config.policy


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_end_of_every_simulation_is_told(cells: list[Cell], jobs: int) -> None:
    told = []
    for _ in simulate_all(cells, jobs, lambda *words: told.append(words)):
        pass

    assert {(number, 120, 120) for number in range(3)} <= set(told)


def in_the_child(monkeypatch: pytest.MonkeyPatch, does: Callable[[], object]) -> None:
    def simulated(*_: object, **__: object) -> Result:
        does()
        raise AssertionError

    monkeypatch.setattr(parallel, "simulate", simulated)


def test_an_error_of_a_simulation_is_told_with_its_traceback(
    cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_child(monkeypatch, lambda: [][0])

    with pytest.raises(SimulationFailed, match="IndexError"):
        list(simulate_all(cells, 2, untold))


def test_a_simulation_that_is_killed_is_missed(cells: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does so when memory runs out."""
    in_the_child(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))

    with pytest.raises(SimulationFailed, match="status -9"):
        list(simulate_all(cells, 2, untold))


def children() -> set[str]:
    """Ids of the processes that this one has started and not waited for."""
    return set(Path("/proc/thread-self/children").read_text().split())


def test_who_stops_listening_leaves_no_process_behind(cells: list[Cell]) -> None:
    before = children()
    running = simulate_all(cells, 3, untold)
    next(running)
    during = children()
    running.close()  # type: ignore[attr-defined]

    assert during > before
    assert children() == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_load_that_cannot_be_is_said_in_a_sentence(cells: list[Cell], jobs: int) -> None:
    """Even with slow engines, users who wait for answers do not ask more."""
    workload = generate_agentic(users=1, sessions=1)
    config = replace(cells[0].config, utilisation=0.9)

    with pytest.raises(SimulationFailed, match=r"^the workload keeps 2 workers busy"):
        list(simulate_all([Cell(workload, config)] * 2, jobs, untold))
