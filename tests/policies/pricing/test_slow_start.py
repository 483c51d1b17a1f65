"""A worker that returns takes its share back step by step."""

from itertools import pairwise

import numpy as np
import pytest

from policies import admitted, shares
from policies.state.rendezvous import rank_costs

RAMP = 10e6
HASHES = np.array([3, 5, 7, 11], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_the_share_grows_from_a_tenth_to_all() -> None:
    elapsed_us = np.array([0.0, 0.5e6, 1e6, 5e6, 10e6, 1e15])
    assert shares(elapsed_us, RAMP).tolist() == [0.1, 0.1, 0.1, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(("elapsed_us", "share"), [(0.0, 0.1), (3e6, 0.3), (8e6, 0.8), (11e6, 1.0)])
def test_as_many_requests_are_let_through_as_the_share_says(elapsed_us: float, share: float) -> None:
    """For 5,000 placements three standard deviations are 0.02."""
    through = np.mean([admitted(key, HASHES, np.full(4, elapsed_us), RAMP) for key in range(5000)], axis=0)
    assert through == pytest.approx(share, abs=0.022)


def test_who_is_let_through_stays_so_and_others_join() -> None:
    masks = [
        [bool(admitted(key, HASHES[:1], np.array([elapsed_us]), RAMP)[0]) for key in range(500)]
        for elapsed_us in (1e6, 4e6, 9e6)
    ]
    for fewer, more in pairwise(masks):
        assert all(later for earlier, later in zip(fewer, more, strict=True) if earlier)
        assert sum(fewer) < sum(more)


def test_the_requests_let_through_are_not_those_that_win_ties() -> None:
    """The returned worker, at a tenth, wins about a quarter of 500 ties of four, not all."""
    keys = [key for key in range(5000) if admitted(key, HASHES[:1], np.zeros(1), RAMP)[0]]
    won = sum(rank_costs(key, HASHES).argmin() == 0 for key in keys)
    assert won / len(keys) == pytest.approx(0.25, abs=0.06)
