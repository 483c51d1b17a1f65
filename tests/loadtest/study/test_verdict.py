"""The default against the best peer."""

import pytest
from fakes.study import row

from loadtest.study.verdict import verdicts


def test_each_figure_is_compared_with_the_peer_that_is_best_at_it() -> None:
    rows = [
        row(mean_s=2.0, p90_s=3.0),
        row("lmetric", mean_s=4.0, p90_s=12.0),
        row("cache_aware", mean_s=5.0, p90_s=6.0),
        row("min_ttft", mean_s=0.1, p90_s=0.1),  # ours as well: no peer
    ]

    (one,) = verdicts(rows)

    assert (one.mean.peer, one.mean.ratio) == ("lmetric", 0.5)
    assert (one.p90.peer, one.p90.ratio) == ("cache_aware", 0.5)
    assert one.share_of_pooled == pytest.approx(0.5 / 0.6)
    assert one.floor_s == 0.25


def test_scenarios_without_the_default_or_without_a_peer_are_left_out() -> None:
    rows = [row("lmetric"), row(utilisation=0.6), row("min_ttft", utilisation=0.6)]

    assert verdicts(rows) == []


def test_scenarios_keep_their_order() -> None:
    rows = [row(label, utilisation=load) for load in (0.95, 0.6) for label in ("lmetric", "expected_cost")]

    assert [one.scenario.utilisation for one in verdicts(rows)] == [0.95, 0.6]
