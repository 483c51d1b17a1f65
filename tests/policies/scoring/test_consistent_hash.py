from collections.abc import Callable

import numpy as np

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]

WORKERS = list(range(100, 108))


def test_one_key_ranks_the_workers_alike_and_the_prefix_key_does_not_matter(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    policy = make_policy("consistent_hash")
    workers = make_candidates(worker_hash=WORKERS)

    first = policy.costs(make_request(key=5, prefix_key=1, sequence=1), workers)
    again = policy.costs(make_request(key=5, prefix_key=2, sequence=2), workers)
    another = policy.costs(make_request(key=6, prefix_key=1, sequence=1), workers)

    assert first.tolist() == again.tolist()
    assert first.tolist() != another.tolist()


def test_a_full_worker_is_left_out(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    """3 requests in flight on 4 workers: ceil(1.25·4/4) = 2 at most, ceil(4·4/4) = 4 with factor 4."""
    workers = make_candidates(inflight_requests=[3, 0, 0, 0])

    bounded = make_policy("consistent_hash").costs(make_request(), workers)
    wide = make_policy("consistent_hash", {"load_factor": 4}).costs(make_request(), workers)

    assert np.isfinite(bounded).tolist() == [False, True, True, True]
    assert np.isfinite(wide).all()


def test_a_worker_that_leaves_moves_only_its_own_keys(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    policy = make_policy("consistent_hash")
    before, after = make_candidates(worker_hash=WORKERS), make_candidates(worker_hash=WORKERS[:-1])

    for key in range(500):
        request = make_request(key=key)
        old = WORKERS[policy.costs(request, before).argmin()]
        new = WORKERS[policy.costs(request, after).argmin()]
        assert new == old or old == WORKERS[-1]
