from collections.abc import Callable

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def test_workers_take_turns_in_row_order(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    workers = make_candidates(slots=[0, 1, 2])
    policy = make_policy("round_robin")

    turns = [policy.costs(make_request(sequence=turn), workers).tolist() for turn in range(4)]

    assert turns == [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2]]
