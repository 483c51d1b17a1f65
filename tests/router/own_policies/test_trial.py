"""Policies are tried on idle and busy fleets, cold and cached, few and many."""

from policies import Chosen, make_policy, place
from router.own_policies.trial import SIZES, trials


def test_trials_hold_what_production_holds() -> None:
    seen = [  # a view is of its moment
        (
            len(candidates),
            candidates.backlog_s.max(),
            candidates.matched_tokens.max(),
            place(request, candidates, make_policy("expected_cost")),
        )
        for request, candidates in trials()
    ]
    assert {size for size, _, _, _ in seen} == set(SIZES)
    assert {bool(backlog_s) for _, backlog_s, _, _ in seen} == {False, True}
    assert {0, 2 * 256, 16 * 256} == {round(matched) for _, _, matched, _ in seen}
    assert all(isinstance(chosen, Chosen) for *_, chosen in seen)
