from collections.abc import Callable

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_it_adds_the_longer_of_backlog_and_fetch_the_prefill_and_the_transfer(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """4,000 tokens at 1,000/s: 2 + 1, 0 + 4, max(1, 2) + 1 + 0.5; a = 0.25: 0.25 + 4."""
    workers = make_candidates(
        safe_tokens=[3000, 0, 0, 0],
        pooled_tokens=[0, 0, 3000, 0],
        backlog_s=[2, 0, 1, 0],
        base_s=[0, 0, 2, 0],
        transfer_s=[0, 0, 0.5, 0],
        a_s=[0, 0, 0, 0.25],
    )

    assert make_policy("min_ttft").costs(make_request(4000), workers).tolist() == [3.0, 4.0, 3.5, 4.25]


def test_what_others_lose_does_not_count(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    workers = make_candidates(backlog_s=[1, 1], congestion_per_s=[0, 50])

    assert make_policy("min_ttft").costs(make_request(4000), workers).tolist() == [5.0, 5.0]
