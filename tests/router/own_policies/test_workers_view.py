"""A user's policy sees read-only columns, and its answer is judged."""

from typing import Any

import numpy as np
import pytest

from policies import Chosen, Rule, is_own, make_policy, place
from router.own_policies import WorkersView
from router.own_policies.trial import trials
from router.own_policies.workers_view import OwnCosts, judged_costs

COLUMNS = (
    *("matched_tokens", "cached_tokens", "backlog_s", "prefill_tokens", "inflight_requests"),
    *("inflight_tokens", "held_tokens", "estimated_ttft_s", "service_s"),
)


def test_columns_are_those_of_the_candidates() -> None:
    for request, candidates in trials():
        workers = WorkersView(candidates, request.prompt_tokens)
        assert len(workers) == len(candidates)
        assert workers.worker_hash.tolist() == candidates.worker_hash.tolist()
        assert workers.cached_tokens.tolist() == candidates.safe_tokens.tolist()
        for name in set(COLUMNS) - {"cached_tokens", "estimated_ttft_s", "service_s"}:
            assert getattr(workers, name).tolist() == getattr(candidates, name).tolist()
        chosen = place(request, candidates, make_policy("min_ttft"))
        assert isinstance(chosen, Chosen)
        assert chosen.estimated_ttft_s == pytest.approx(workers.estimated_ttft_s[chosen.slot])
        assert chosen.service_s == pytest.approx(workers.service_s[chosen.slot])


@pytest.mark.parametrize("name", COLUMNS)
def test_a_slip_cannot_change_what_replicas_agree_on(name: str) -> None:
    request, candidates = next(iter(trials()))
    column = getattr(WorkersView(candidates, request.prompt_tokens), name)
    with pytest.raises(ValueError, match="read-only"):
        column += 1.0


def test_a_rule_of_a_user_is_a_policy_like_any_other(make_candidates: Any, make_request: Any) -> None:
    def fewest(request: Any, workers: WorkersView) -> Any:
        return workers.inflight_requests

    policy = make_policy("m:fewest", own={"m:fewest": Rule(OwnCosts(fewest, judged_costs))})
    assert policy.costs(make_request(), make_candidates(inflight_requests=[3.0, 1.0])).tolist() == [3.0, 1.0]
    with pytest.raises(ValueError, match="unknown policy 'm:fewest'"):
        make_policy("m:fewest")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([1.0, 2.0], "it returned list"),
        (None, "it returned NoneType"),
        (np.array([1.0]), r"shape \(1,\) for 2 workers"),
        (np.array([[1.0, 2.0]]), r"shape \(1, 2\)"),
        (np.array(["a", "b"]), "not of numbers"),
        (np.array([True, False]), "not of numbers"),
        (np.array([1j, 2]), "not of numbers"),
        (np.array([1.0, np.nan]), "returned nan"),
        (np.array([1.0, -np.inf]), "returned -inf"),
        (np.array([np.inf, np.inf]), "leaves out every worker"),
    ],
)
def test_an_answer_that_decides_nothing_is_refused(answer: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        judged_costs(answer, 2)


def test_whole_numbers_are_costs_too() -> None:
    costs = judged_costs(np.array([3, 1], dtype=np.int32), 2)
    assert costs.dtype == np.float64
    assert judged_costs(np.array([1.0, np.inf]), 2).tolist() == [1.0, np.inf]


def test_names_of_users_policies() -> None:
    assert all(map(is_own, ("a:b", "my_package.rules:calm", "a.b:C.d")))
    assert not any(map(is_own, ("expected_cost", "", "a:", ":b", "a:b:c", "a b:c", "a/b:c", "1:b", "a:b\n")))
