from collections.abc import Callable

import pytest

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [70.0, 100.0]),
        ({"active_request_weight": 5}, [80.0, 100.0]),
        ({"prefill_load_scale": 2}, [120.0, 200.0]),
        ({"overlap_score_credit": 3}, [20.0, 0.0]),
        ({"block_tokens": 32}, [35.0, 50.0]),
    ],
)
def test_prefill_and_decode_blocks_add_up(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    options: dict[str, float],
    expected: list[float],
) -> None:
    """A prompt of 1,600 tokens, blocks of 16.

    First: 1600 - 800 = 800 tokens to prefill are 50 blocks, 320 in flight are 20; 2 requests.
    Second: 1600 + 1600 - 1600 = 1600 to prefill are 100 blocks. A credit of 3 leaves nothing to
    prefill on either, never less than nothing.
    """
    workers = make_candidates(
        safe_tokens=[800, 1600],
        prefill_tokens=[0, 1600],
        inflight_tokens=[320, 0],
        inflight_requests=[2, 0],
    )

    assert make_policy("kv_cost", options).costs(make_request(1600), workers).tolist() == expected
