"""Tables say what was measured, in digits that count."""

from dataclasses import replace
from math import nan

from fakes.study import cell, row

from loadtest.study import tables
from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.verdict import verdicts


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
    assert names == ["policy", "---", "**expected_cost**", "mid", "slow"]
    assert "infinite cache 80.0 %" in text
    assert "Lower bound of mean TTFT (infinite caches, no queue) 0.250 s" in text


def test_a_title_says_what_is_special() -> None:
    scenario = cell(l3=True, replicas=8, queue_order="uncached", value="2").scenario

    assert tables.title(scenario) == "conversation, mimo-v2.5-pro, 80 %, L3, 8 replicas, queue uncached, 2"


def test_a_part_says_how_much_of_it_earlier_code_made() -> None:
    rows = [row("a"), replace(row("b"), code="newer"), row("a", part="seeds")]

    assert tables.code_table(rows, "newer").splitlines()[2:] == ["| main | 2 | 1 |", "| seeds | 1 | 1 |"]


def test_ratios_that_are_more_than_three_percent_behind_stand_out() -> None:
    text = tables.verdict_table(verdicts([row(mean_s=1.05, p90_s=2.0), row("lmetric")]))

    assert "| 1.05 | 1.00 (lmetric) | **1.05** | 2.00 | 2.00 (lmetric) | 1.00 |" in text


def test_a_sweep_has_a_line_per_value_and_a_group_of_columns_per_traffic() -> None:
    rows = [row(value="1", mean_s=1.0), row(value="1", mean_s=2.0, traffic="agentic-64"), row(value="5")]

    lines = tables.sweep_table(rows).splitlines()

    assert lines[0].startswith("| value | conversation: mean, s | P90, s | reused | agentic-64: mean, s")
    assert lines[2] == "| 1 | 1.00 | 2.00 | 50.0 % | 2.00 | 2.00 | 50.0 % |"
    assert lines[3] == "| 5 | 1.00 | 2.00 | 50.0 % | - | - | - |"


def test_others_and_ours_stand_side_by_side() -> None:
    theirs = [CrossRow("round_robin", 0.08, 0.07, 0.09, 0.4, 0.9, 10)]

    lines = tables.cross_table(theirs, [row()], 0.355).splitlines()

    assert lines[2] == "| Dynamo, round_robin | 0.080 | 0.070 to 0.090 | 0.400 | 0.900 |"
    assert lines[3].startswith("| Cacheway, **expected_cost** | 0.500 |")
    assert lines[4].startswith("| one infinite cache | 0.355 |")
