"""The comparison fits a terminal."""

import io

from fakes.simulated import runs
from rich.console import Console

from loadtest.simulator.table import COLUMNS, comparison_table
from policies import POLICIES


def lines(names: list[str]) -> list[str]:
    screen = io.StringIO()
    console = Console(file=screen, width=80)
    console.print(comparison_table(runs(names), title="a trace", caption="bounds"))
    return screen.getvalue().splitlines()


def test_the_whole_registry_is_shown_in_eighty_columns() -> None:
    shown = lines(list(POLICIES))

    for name in POLICIES:
        row = next(line for line in shown if line.split()[:1] == [name])
        assert "…" not in row
        assert row.count("%") == 4


def test_a_long_name_takes_two_lines_and_no_figure_from_anybody() -> None:
    shown = "\n".join(lines(["cache_aware cache_threshold=0.5", "random"]))

    assert "cache_threshold=0.5" in shown.replace("\n", "")
    assert "…" not in shown
    assert len(COLUMNS) == 8
