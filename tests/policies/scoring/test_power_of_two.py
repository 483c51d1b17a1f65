from collections import Counter
from collections.abc import Callable

import numpy as np

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_the_two_drawn_workers_cost_their_requests_in_flight(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    load = [10.0, 11.0, 12.0, 13.0, 14.0]
    workers = make_candidates(inflight_requests=load)

    costs = make_policy("power_of_two").costs(make_request(), workers)

    drawn = np.flatnonzero(np.isfinite(costs))
    assert len(drawn) == 2
    assert costs[drawn].tolist() == [load[row] for row in drawn]


def test_of_one_or_two_workers_all_are_drawn(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    policy = make_policy("power_of_two")

    assert policy.costs(make_request(), make_candidates(inflight_requests=[3])).tolist() == [3.0]
    assert policy.costs(make_request(), make_candidates(inflight_requests=[3, 1])).tolist() == [3.0, 1.0]


def test_every_pair_is_drawn_about_equally_often(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """6 pairs of 4 workers in 6,000 turns of one prompt: 1,000 each, give or take 5 standard deviations."""
    workers = make_candidates(inflight_requests=[0, 0, 0, 0])
    policy = make_policy("power_of_two")

    pairs = Counter(
        tuple(np.flatnonzero(np.isfinite(policy.costs(make_request(sequence=turn), workers))))
        for turn in range(6000)
    )

    assert len(pairs) == 6
    assert all(abs(count - 1000) < 5 * (6000 * 1 / 6 * 5 / 6) ** 0.5 for count in pairs.values())
