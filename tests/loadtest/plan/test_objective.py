"""A service level is held or not, and by how much."""

from math import inf

import pytest
from fakes.planned import figures

from loadtest.plan.objective import Slo


def test_a_margin_is_the_share_of_the_limit_that_is_left() -> None:
    slo = Slo(4.0, 0.05)

    assert slo.margin(figures(3.0)) == pytest.approx(0.25)
    assert slo.margin(figures(5.0)) == pytest.approx(-0.25)
    assert slo.margin(figures(1.0, tpot_p90_s=0.04)) == pytest.approx(0.2)
    assert slo.margin(figures(4.0, tpot_p90_s=0.05)) == 0.0


def test_without_a_limit_any_pace_will_do() -> None:
    assert Slo(4.0).tpot_margin(figures(1.0, tpot_p90_s=9.9)) == inf


def test_answers_that_were_never_completed_do_not_make_a_fleet_fast() -> None:
    assert Slo(4.0).margin(figures(1.0, completed_share=0.99)) == -inf
    assert Slo(4.0, completed_share=0.99).margin(figures(1.0, completed_share=0.99)) == pytest.approx(0.75)


def test_a_fleet_that_answered_nothing_holds_nothing() -> None:
    nothing = {**figures(1.0), "ttft_p90_s": None, "completed_share": None}

    assert Slo(4.0, 0.05).margin(nothing) == -inf


def test_answers_of_one_token_have_no_pace_to_miss() -> None:
    assert Slo(4.0, 0.05).margin({**figures(2.0), "tpot_p90_s": None}) == pytest.approx(0.5)


def test_a_service_level_reads_as_a_sentence() -> None:
    assert str(Slo(4.0)) == "TTFT P90 ≤ 4 s"
    assert str(Slo(0.5, 0.03, 0.99)) == "TTFT P90 ≤ 0.5 s, TPOT P90 ≤ 30 ms, 99 % completed"
