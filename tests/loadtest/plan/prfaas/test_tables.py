"""The tables of a study that was not simulated."""

from dataclasses import replace

import pytest

from loadtest.plan.prfaas.fleets import CONTENDERS
from loadtest.plan.prfaas.study import QUICK, Study
from loadtest.plan.prfaas.sustained import Trial
from loadtest.plan.prfaas.tables import HEADINGS, Table, cells, study_tables
from loadtest.plan.prfaas.trials import Figures
from tests.fakes.prfaas_results import by_hand

FIGURES = Figures(
    requests=100,
    completed_share=1.0,
    completed_per_s=1.0,
    rejected=2,
    lost=3,
    ttft_mean_s=1.234,
    ttft_p50_s=1.0,
    ttft_p90_s=2.0,
    ttft_p99_s=3.0,
    wait_mean_s=0.125,
    remote_share=0.496,
    egress_mean_bytes_per_s=1e9,
    egress_max_bytes_per_s=2.5e9,
)


def tables(study: Study) -> dict[str, Table]:
    return {table.title: table for table in study_tables(study)}


def test_figures_are_shown_as_seconds_shares_gigabits_and_requests_without_answer() -> None:
    shown = dict(zip(HEADINGS, cells(FIGURES), strict=True))
    assert shown == {
        "mean": "1.23",
        "P50": "1.00",
        "P90": "2.00",
        "P99": "3.00",
        "queue": "0.12",
        "remote": "50%",
        "egress": "8.0",
        "1 s max": "20.0",
        "unanswered": "5",
    }


def test_a_table_is_markdown_whose_figures_stand_at_the_right() -> None:
    table = Table("A title", ("fleet", "mean", "P50"), [["ours", "1.0", "2.0"], ["naive", "3.0", "4.0"]])
    assert table.markdown() == (
        "**A title**\n"
        "\n"
        "| fleet | mean | P50 |\n"
        "| --- | ---: | ---: |\n"
        "| ours | 1.0 | 2.0 |\n"
        "| naive | 3.0 | 4.0 |\n"
    )


def test_highest_rates_stand_beside_those_of_homogeneous_and_naive() -> None:
    slow = replace(FIGURES, ttft_p90_s=99.0)
    rates = {"homogeneous": 1.0, "naive": 2.0, "static": 2.5, "ours": 3.0}
    trials = [
        Trial(name, rate * factor, seed, figures)
        for name, rate in rates.items()
        for seed, factor, figures in ((1, 0.9, FIGURES), (2, 1.1, FIGURES), (2, 1.5, slow))
    ]
    (table,) = study_tables(Study(QUICK, [1, 2], trials={"Poisson": trials}))
    assert table.title == "Highest rate with P90 of TTFT within 15 s, requests/s, Poisson"
    assert {row[0]: list(row[1:]) for row in table.rows} == {
        "homogeneous": ["1.00", "0.90 1.10", "1.00", "0.50"],
        "naive": ["2.00", "1.80 2.20", "2.00", "1.00"],
        "static": ["2.50", "2.25 2.75", "2.50", "1.25"],
        "ours": ["3.00", "2.70 3.30", "3.00", "1.50"],
    }


def test_the_curve_is_ordered_by_rate() -> None:
    curve = [Trial(name, rate, 1, FIGURES) for name in ("naive", "ours") for rate in (2.0, 1.2)]
    (table,) = study_tables(Study(QUICK, [1], curve=curve))
    assert [row[0] for row in table.rows] == [
        "naive at 1.2/s",
        "ours at 1.2/s",
        "naive at 2/s",
        "ours at 2/s",
    ]
    assert table.rows[0][1:] == cells(FIGURES)


def test_a_bad_link_and_agents_have_a_row_for_each_simulation() -> None:
    result = by_hand(
        arrival_s=[0.0, 10.0],
        first_s=[2.0, 14.0],
        prompt_tokens=[1000, 3000],
        device_tokens=[0, 2000],
        host_tokens=[0, 1000],
    )
    found = tables(Study(QUICK, [1], storm={"ours": result}, agents={("ours", 32): result}))
    expected = cells(Figures.of(result))
    assert list(found) == ["A bad link at 85% of the highest rate", "Coding agents"]
    assert found["A bad link at 85% of the highest rate"].rows == [["ours", *expected]]
    assert found["Coding agents"].rows == [["ours, 32 users", "0.10", "75.0%", *expected]]


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_fleet_that_sustains_nothing_has_no_figure_and_spoils_no_other(name: str) -> None:
    trials = [Trial(one, 2.0, 1, FIGURES) for one in CONTENDERS if one != name]
    (table,) = study_tables(Study(QUICK, [1], trials={"Poisson": trials}))
    means = {row[0]: row[1] for row in table.rows}
    assert means == {one: "nan" if one == name else "2.00" for one in CONTENDERS}
