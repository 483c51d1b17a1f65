from collections.abc import Callable

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_tokens_ahead_are_multiplied_by_the_batch(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """(0 + 1000 - 200)·(1 + 1) = 1600 and (500 + 1000 - 1000)·(0 + 1) = 500."""
    workers = make_candidates(safe_tokens=[200, 1000], prefill_tokens=[0, 500], inflight_requests=[1, 0])

    assert make_policy("lmetric").costs(make_request(1000), workers).tolist() == [1600.0, 500.0]


def test_among_idle_workers_the_match_decides(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(safe_tokens=[0, 600])

    assert make_policy("lmetric").costs(make_request(1000), workers).tolist() == [1000.0, 400.0]
