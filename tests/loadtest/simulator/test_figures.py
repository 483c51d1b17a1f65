"""The table names figures that exist and marks the best."""

import math

from fakes.simulated import runs, simulated

from loadtest.simulator.figures import FIGURES, POOL_FIGURES, best_of, figures_of, shown
from loadtest.simulator.runs import Run

BY_KEY = {figure.key: figure for figure in FIGURES}


def test_every_figure_is_in_the_summary() -> None:
    """A renamed figure fails here and not in front of a user."""
    assert set(BY_KEY) <= set(simulated().summary())


def test_a_pool_has_rows_of_its_own_in_bytes_that_one_can_read() -> None:
    plain, with_pool = runs(["a", "b"])
    assert figures_of([plain]) == FIGURES

    object.__setattr__(with_pool.result, "pool", {"pool_read_bytes": 1.5e12})
    with_pool.figures["pool_read_bytes"], plain.figures["pool_read_bytes"] = 1.5e12, 999

    shown_figures = figures_of([plain, with_pool])
    assert shown_figures == FIGURES + POOL_FIGURES
    read = next(figure for figure in shown_figures if figure.key == "pool_read_bytes")
    assert (shown(read, with_pool), shown(read, plain)) == ("1.5 TB", "999 B")


def test_the_least_time_and_the_most_reuse_are_best() -> None:
    compared = runs(["good", "middling", "bad"])

    assert best_of(BY_KEY["ttft_p90_s"], compared) == {"good"}
    assert best_of(BY_KEY["hit_ratio"], compared) == {"good"}


def test_nothing_is_best_where_all_read_the_same_or_no_value_is_good() -> None:
    compared = runs()

    assert best_of(BY_KEY["completed_share"], compared) == set()
    assert best_of(BY_KEY["utilisation_mean"], compared) == set()


def test_two_that_read_the_same_are_both_best() -> None:
    first, second, third = runs(["a", "b", "c"])
    first.figures["ttft_p50_s"], second.figures["ttft_p50_s"] = 1.2341, 1.2342

    assert best_of(BY_KEY["ttft_p50_s"], [first, second, third]) == {"a", "b"}


def test_what_was_not_measured_is_a_dash_and_never_best() -> None:
    first, second = runs(["a", "b"])
    first.figures["tpot_mean_s"] = None

    assert shown(BY_KEY["tpot_mean_s"], first) == "-"
    assert best_of(BY_KEY["tpot_mean_s"], [first, second]) == {"b"}
    second.figures["tpot_mean_s"] = math.nan
    assert best_of(BY_KEY["tpot_mean_s"], [first, second]) == set()


def test_a_run_alone_is_not_best() -> None:
    assert best_of(BY_KEY["ttft_p50_s"], [Run.of("alone", simulated())]) == set()
