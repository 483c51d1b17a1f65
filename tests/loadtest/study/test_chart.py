"""Charts are looked at by people; here they are only drawn, from few and from incomplete results."""

from pathlib import Path

from fakes.study import row

from loadtest.study import chart
from loadtest.study.verdict import verdicts

PNG = b"\x89PNG"


def test_every_chart_can_be_drawn(tmp_path: Path) -> None:
    rows = [
        row(label, utilisation=load, traffic=traffic)
        for load in (0.6, 0.8)
        for traffic in ("conversation", "agentic-64", "azure-code")
        for label in ("expected_cost", "lmetric", "least_load")
    ]
    chart.draw_verdict(verdicts(rows), tmp_path / "a" / "verdict.png")
    chart.draw_loads(rows, tmp_path / "loads.png")
    chart.draw_reuse(rows, tmp_path / "reuse.png")

    for name in ("a/verdict.png", "loads.png", "reuse.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_a_load_at_which_a_policy_did_not_run_is_a_gap(tmp_path: Path) -> None:
    rows = [row(utilisation=0.6), row("lmetric", utilisation=0.8)]

    chart.draw_loads(rows, tmp_path / "loads.png")

    assert (tmp_path / "loads.png").exists()
