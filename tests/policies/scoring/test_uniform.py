from collections import Counter
from collections.abc import Callable

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_turns_of_one_prompt_spread_evenly(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """8,000 turns over 8 workers: 1,000 each, give or take 5 standard deviations (30)."""
    workers = make_candidates(slots=range(8))
    policy = make_policy("random")

    wins = Counter(int(policy.costs(make_request(sequence=turn), workers).argmin()) for turn in range(8000))

    assert len(wins) == 8
    assert all(abs(count - 1000) < 150 for count in wins.values())


def test_one_turn_can_be_repeated(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    workers = make_candidates(slots=range(8))
    policy = make_policy("random")
    request = make_request(sequence=3)

    assert policy.costs(request, workers).tolist() == policy.costs(request, workers).tolist()
