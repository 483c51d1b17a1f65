"""Tables show the measurements, in digits that count."""

from dataclasses import replace
from math import nan

from fakes.study import cell, row

from loadtest.study import tables
from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.verdict import verdicts
from loadtest.unchanged.revision import Revision


def test_seconds_have_three_digits_that_count() -> None:
    assert [tables.seconds(value) for value in (0.01234, 1.234, 12.34, 123.4, nan)] == [
        "0.012",
        "1.23",
        "12.3",
        "123",
        "-",
    ]


def test_a_scenario_is_a_table_with_the_fastest_first() -> None:
    text = tables.scenario_tables([row("slow", mean_s=9.0), row(mean_s=1.0), row("mid", mean_s=3.0)])

    names = [line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.startswith("| ")]
    assert names == ["rule", "---", "**expected_cost**", "mid", "slow"]
    assert "infinite cache 80.0 %" in text
    assert "Lower bound of mean TTFT (infinite caches, no queue) 0.250 s" in text


def test_a_title_says_what_is_special() -> None:
    scenario = cell(l3=True, host=True, replicas=8, value="2").scenario

    assert tables.title(scenario) == "conversation, mimo-v2.5-pro, 80 %, L3, 8 replicas, host memory, 2"


def test_figures_are_means_of_the_seeds_with_the_least_and_the_most_beside() -> None:
    text = tables.scenario_tables([row(mean_s=mean_s, seed=seed) for seed, mean_s in ((1, 1.0), (2, 3.0))])

    assert "| **expected_cost** | 2 | 2.00 (1.00 to 3.00) |" in text


def test_the_code_of_results_is_named_and_what_is_missing_shows() -> None:
    rows = [row("a"), replace(row("b"), code=Revision("newer", "model")), row("a", part="l3")]
    wanted = [*(one.cell for one in rows), cell("c", part="l3")]

    text = tables.code_table(rows, wanted)

    assert text.startswith("Decisions: `decisions`, `newer`; model: `model`.\n")
    assert text.splitlines()[4:] == ["| main | 2 | 2 |", "| l3 | 2 | 1 |"]


def test_a_verdict_names_the_rivals_that_are_faster() -> None:
    """The same 5 % at each of three seeds: no chance in it."""
    rows = [
        row(label, mean_s=mean_s * seed, p90_s=2.0, seed=seed)
        for seed in (1, 2, 3)
        for label, mean_s in (("expected_cost", 1.05), ("lmetric", 1.0))
    ]

    text = tables.verdict_table(verdicts(rows))

    assert "| 2.10 | 2.00 (lmetric) | 1.05 (1.05 to 1.05) | **slower than lmetric** |" in text
    assert "| 1.00 (1.00 to 1.00) | not told apart |" in text


def test_others_and_ours_stand_side_by_side() -> None:
    theirs = [CrossRow("round_robin", 0.08, 0.07, 0.09, 0.4, 0.9)]

    lines = tables.cross_table(theirs, [row()], 0.355).splitlines()

    assert lines[2] == "| Dynamo, round_robin | 0.080 | 0.070 to 0.090 | 0.400 | 0.900 |"
    assert lines[3].startswith("| Cacheway, **expected_cost** | 0.500 | 0.500 to 0.500 |")
    assert lines[4].startswith("| one infinite cache | 0.355 |")
