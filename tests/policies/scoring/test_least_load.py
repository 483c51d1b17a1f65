from collections.abc import Callable

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_the_cost_is_the_number_of_requests_in_flight(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(inflight_requests=[3, 1, 2], safe_tokens=[4000, 0, 0])

    assert make_policy("least_load").costs(make_request(), workers).tolist() == [3.0, 1.0, 2.0]
