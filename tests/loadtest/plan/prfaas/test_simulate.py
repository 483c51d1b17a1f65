"""The study from the command line, on a handful of requests."""

import argparse
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loadtest.plan.prfaas import simulate, study
from loadtest.plan.prfaas.simulate import add_simulate, simulate_study
from loadtest.plan.prfaas.study import Size

TINY = Size(requests=30, warmup_s=2.0, rounds=2, curve_rates=(1.2, 1.8), users=(2,))


def run(monkeypatch: pytest.MonkeyPatch, out: Path, traffic: str) -> str:
    monkeypatch.setattr(simulate, "QUICK", TINY)
    monkeypatch.setattr(study, "STORM_S", 30.0)
    parser = argparse.ArgumentParser()
    add_simulate(parser)
    arguments = ["--traffic", traffic, "--seeds", "1", "--quick", "--jobs", "1", "--out", str(out)]
    text = io.StringIO()
    simulate_study(Console(file=text, width=160), parser.parse_args(arguments))
    return text.getvalue()


@pytest.mark.deep
def test_lognormal_traffic_gives_tables_figures_and_charts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = run(monkeypatch, tmp_path, "lognormal")
    for fleet in ("homogeneous", "naive", "static", "ours"):
        assert fleet in text
    assert "highest rates, Poisson: 8 simulations" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "egress.png",
        "figures.json",
        "queue.png",
        "rates.png",
        "tables.md",
    }
    figures = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    assert len(figures["trials"]) == 2 * 8 + 8
    assert set(figures["bad_link"]) == {"naive", "static", "ours"}
    assert "| ours |" in (tmp_path / "tables.md").read_text()


def test_agents_can_be_simulated_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = run(monkeypatch, tmp_path, "agentic")
    assert "ours, 2 users" in text
    figures = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    assert [one["fleet"] for one in figures["agents"]] == ["homogeneous", "naive", "static", "ours"]
    assert all(one["completed_share"] == 1.0 for one in figures["agents"])
