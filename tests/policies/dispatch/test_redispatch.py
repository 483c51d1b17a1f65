"""Failed attempts go elsewhere within bounds."""

import pytest

from policies import GiveUp, Redispatch, RedispatchRules, RetryBudget, redispatch

RULES = RedispatchRules(retry_max_retries=2, retry_budget_ratio=0.2)


@pytest.mark.parametrize(
    ("status", "attempts", "age_s", "outcome"),
    [
        (None, 1, 0.0, Redispatch()),
        (503, 2, 0.0, Redispatch()),
        (429, 1, 0.0, Redispatch()),
        (400, 1, 0.0, GiveUp("not_retriable")),
        (501, 1, 0.0, GiveUp("not_retriable")),
        (None, 3, 0.0, GiveUp("attempts")),
        (None, 1, 100.0, GiveUp("deadline")),
    ],
)
def test_what_may_be_sent_again(
    status: int | None, attempts: int, age_s: float, outcome: Redispatch | GiveUp
) -> None:
    verdict = redispatch(
        RetryBudget(RULES), status=status, attempts=attempts, age_s=age_s, timeout_s=100.0, now_s=0.0
    )
    assert verdict == outcome


@pytest.mark.parametrize(
    "rules", [RedispatchRules(retry_max_retries=0), RedispatchRules(disable_retries=True)]
)
def test_zero_retries_turn_it_off(rules: RedispatchRules) -> None:
    verdict = redispatch(RetryBudget(rules), status=None, attempts=1, age_s=0.0, timeout_s=100.0, now_s=0.0)
    assert verdict == GiveUp("disabled")


def test_a_sick_fleet_is_not_hammered() -> None:
    """A burst of 100 is saved up; then 20 % of 1,000 requests, and ten a second."""
    budget = RetryBudget(RULES)
    assert sum(budget.withdraw(0.0) for _ in range(1000)) == 100
    allowed = 0
    for _ in range(1000):
        budget.deposit()
        allowed += budget.withdraw(0.0)
    assert allowed == pytest.approx(200, abs=1)
    assert sum(budget.withdraw(1.0) for _ in range(100)) == pytest.approx(10, abs=1)
    verdict = redispatch(budget, status=None, attempts=1, age_s=0.0, timeout_s=100.0, now_s=1.0)
    assert verdict == GiveUp("budget")


def test_the_budget_is_never_more_than_ten_seconds_of_its_floor() -> None:
    budget = RetryBudget(RedispatchRules(retry_budget_ratio=1.0))
    for _ in range(10_000):
        budget.deposit()
    assert budget.withdraw(0.0)
    assert sum(budget.withdraw(1e6) for _ in range(1000)) == 100
