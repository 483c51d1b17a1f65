"""PrfaaS's tables come out, and a figure that does not is noticed."""

import pytest

from loadtest.plan.prfaas.case_study import TOLERANCE_RATIO, CaseStudy, Figure, parts
from loadtest.plan.prfaas.curves import prompt_lengths

STUDY = CaseStudy(prompt_lengths())


def test_every_figure_that_the_paper_lets_us_compute_comes_out_within_three_percent() -> None:
    figures = [figure for part in parts() for figure in part.figures]
    assert [figure for figure in figures if figure.off] == []
    assert sum(figure.checked for figure in figures) >= 35
    assert all(figure.note for figure in figures if not figure.checked)


def test_the_grid_search_finds_the_paper_s_threshold_and_split() -> None:
    """t* = 19.6K, 3 prefill and 5 decode instances, 3.20 requests/s (theory A6)."""
    best = STUDY.best
    assert (best.split.prefill, best.split.decode) == ((3,), (5,))
    assert best.throughput.threshold_tokens == pytest.approx(19_600, rel=0.003)
    assert best.throughput.requests_per_s == pytest.approx(3.20, rel=0.003)
    homogeneous = STUDY.homogeneous
    assert (homogeneous.split.prefill, homogeneous.split.decode) == ((9,), (3,))


def test_the_link_binds_only_below_what_the_optimum_sends() -> None:
    needed_gbps = STUDY.best.throughput.egress_bytes_per_s * 8e-9
    enough = STUDY.model(1.01 * needed_gbps).best().throughput
    short = STUDY.model(0.95 * needed_gbps).best().throughput
    assert enough.requests_per_s == pytest.approx(STUDY.best.throughput.requests_per_s)
    assert short.requests_per_s < 0.999 * enough.requests_per_s
    assert short.threshold_tokens > enough.threshold_tokens


def test_a_figure_is_off_beyond_the_tolerance_only_if_it_is_checked() -> None:
    assert not Figure("x", 100.0, 99.999 * (1 + TOLERANCE_RATIO)).off
    assert Figure("x", 100.0, 104.0).off
    assert Figure("x", 100.0, 96.0).off
    assert not Figure("x", 100.0, 104.0, checked=False).off
    assert Figure("x", None, 1.0).difference_ratio is None
