from collections.abc import Callable

import pytest

from policies import Candidates, RequestView
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


@pytest.mark.parametrize(
    ("safe", "load", "expected"),
    [
        pytest.param([301, 0], [9, 0], [-301, 0], id="a match above 30 % of 1,000 decides"),
        pytest.param([300, 0], [9, 0], [50, 40], id="one of just 30 % does not: smallest tree"),
        pytest.param([900, 0], [101, 36], [101, 36], id="65 requests apart and above 1.5 x: least load"),
        pytest.param([900, 0], [100, 36], [-900, 0], id="64 apart is not above 64"),
        pytest.param([900, 0], [200, 134], [-900, 0], id="66 apart, but 200 is not above 1.5 x 134 = 201"),
    ],
)
def test_thresholds_choose_between_load_match_and_tree(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    safe: list[float],
    load: list[float],
    expected: list[float],
) -> None:
    workers = make_candidates(safe_tokens=safe, inflight_requests=load, held_tokens=[50, 40])

    assert make_policy("cache_aware").costs(make_request(1000), workers).tolist() == expected


def test_thresholds_are_options(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    workers = make_candidates(safe_tokens=[600, 0], inflight_requests=[4, 1], held_tokens=[50, 40])
    strict = make_policy("cache_aware", {"cache_threshold": 0.7})
    nervous = make_policy("cache_aware", {"balance_abs_threshold": 2, "balance_rel_threshold": 2})

    assert strict.costs(make_request(1000), workers).tolist() == [50.0, 40.0]
    assert nervous.costs(make_request(1000), workers).tolist() == [4.0, 1.0]
