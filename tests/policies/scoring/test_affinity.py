from collections.abc import Callable

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_share_of_match_stands_against_share_of_the_busiest_backlog(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """Scores 4000/4000 - 4/4 = 0, 2000/4000 - 1/4 = 0.25 and 0 - 0 = 0."""
    workers = make_candidates(safe_tokens=[4000, 2000, 0], backlog_s=[4, 1, 0])

    assert make_policy("affinity").costs(make_request(4000), workers).tolist() == [0.0, -0.25, 0.0]


def test_an_idle_fleet_is_scored_by_its_matches_alone(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(safe_tokens=[1000, 3000])

    assert make_policy("affinity").costs(make_request(4000), workers).tolist() == [-0.25, -0.75]


def test_the_match_weight_multiplies_the_share_of_the_match(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """Weight 2: scores 2·1 - 1 = 1 and 2·0 - 0 = 0."""
    workers = make_candidates(safe_tokens=[4000, 0], backlog_s=[9, 0])

    policy = make_policy("affinity", {"match_weight": 2.0})

    assert policy.costs(make_request(4000), workers).tolist() == [-1.0, 0.0]
