"""The queue beside shared pools: every cell once, and one of them simulated on a short trace."""

from pathlib import Path

import pytest
from fakes.study import write_traces

from loadtest.simulator.records import Result
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Workload
from loadtest.study import fetching, traffic
from loadtest.study.fetching import FetchCell, cells, main, row
from loadtest.traces import TraceError


def test_every_policy_meets_every_pool_under_every_load() -> None:
    found = list(cells(["conversation"]))
    assert len(found) == len(set(found)) == 2 * 3 * 3
    assert {cell.policy for cell in found} == {"best_effort", "wait_complete", "timeout"}


def test_a_row_has_both_and_the_worse_change(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {(1, False): (2.0, 4.0), (2, False): (4.0, 6.0), (1, True): (1.0, 5.0), (2, True): (2.0, 6.0)}
    monkeypatch.setattr(fetching, "ttft_s", lambda _cell, seed, _traces, *, queue: figures[seed, queue])
    found = row(FetchCell("conversation", 0.8, 2.0, "timeout"), [1, 2], traffic.TRACES)
    assert found == "| conversation | 80% | 2 | timeout | 3.00 | 1.50 | 5.00 | 5.50 | +10% |"


def test_some_cells_can_be_chosen() -> None:
    assert list(cells(["agentic-64"], [0.8], [2.0], ["timeout"])) == [
        FetchCell("agentic-64", 0.8, 2.0, "timeout")
    ]


def test_a_cell_is_simulated_with_a_queue_and_without(tmp_path: Path) -> None:
    cell = FetchCell("conversation", 0.5, 10.0, "timeout")
    for queue in (False, True):
        mean_s, p90_s = fetching.ttft_s(cell, 1, write_traces(tmp_path), queue=queue)
        assert 0.0 < mean_s < p90_s


def test_the_gateway_knows_the_prices_of_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimulationConfig] = []

    def noted(workload: Workload, config: SimulationConfig) -> Result:
        made.append(config)
        return simulate(workload, config)

    monkeypatch.setattr(fetching, "simulate", noted)
    fetching.ttft_s(FetchCell("conversation", 0.5, 2.0, "best_effort"), 1, write_traces(tmp_path), queue=True)
    (config,) = made
    assert config.rules["default_model"] == config.engine.prefill.model()
    assert config.host is not None
    assert config.l3 is not None
    assert (config.host.prefetch_policy, config.l3.node_bytes_per_s) == ("best_effort", 2e9)
    assert config.queue is not None


def test_missing_traces_are_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(*_: object) -> str:
        raise TraceError("no traces here")

    monkeypatch.setattr(fetching, "row", missing)
    assert main([]) == 1
    assert "no traces here" in capsys.readouterr().err
