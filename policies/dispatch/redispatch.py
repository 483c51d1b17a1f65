"""May a failed attempt be sent to another worker?

Only while nothing of the answer has gone to the client; the caller sees to that. Two bounds keep retries from
making an overload worse: attempts per request, and a *budget* for all requests of a replica, a token bucket
(as in Finagle's retry budgets and gRPC's retry throttling). Each request deposits ``retry_budget_ratio`` of a
token, time deposits `FLOOR_PER_S`, a redispatch takes one. A fleet where every attempt fails is thus asked at
most ``1 + retry_budget_ratio`` times per request, while a single failure may always be redispatched.
"""

from dataclasses import dataclass

from policies.declared import setting

RETRIED_STATUSES = frozenset((408, 429, 500, 502, 503, 504))
"""Answers of a worker that another worker may better: the peers' list (`wire.md` 4)."""

FLOOR_PER_S = 10.0
"""Redispatches per second that need no deposit (Finagle's ``minRetriesPerSec``)."""

BALANCE_MAX = 10.0 * FLOOR_PER_S
"""Most redispatches that are saved up: ten seconds of the floor."""


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Send the request to another worker."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Let the failure stand.

    Its reason is ``disabled``, ``not_retriable``, ``attempts``, ``deadline``, ``budget``, or one of a caller.
    """

    reason: str


@dataclass(frozen=True)
class RedispatchRules:
    """Bounds of redispatches."""

    retry_max_retries: int = setting(
        5,
        "Most redispatches of a request that failed before the first byte of its answer. The default is the "
        "peers'; no worker gets the same request twice while another can take it.",
        ge=0,
        le=100,
        live=True,
    )
    disable_retries: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never redispatch: a worker's own error passes through.",
        live=True,
    )
    retry_budget_ratio: float = setting(
        0.2,
        "Redispatches allowed as a share of all requests, 0 to 1, beyond a small floor. It keeps a sick "
        "fleet from being hammered.",
        ge=0,
        le=1,
        live=True,
    )

    @property
    def retries_max(self) -> int:
        """Redispatches of one request."""
        return 0 if self.disable_retries else self.retry_max_retries


class RetryBudget:
    """Token bucket of one replica. ``rules`` are replaced when settings change.

    While it is ``full``, a deposit changes nothing.
    """

    def __init__(self, rules: RedispatchRules) -> None:
        self.rules = rules
        self._balance = BALANCE_MAX
        self.full = True
        self._filled_s: float | None = None

    def deposit(self) -> None:
        """Count a request that begins."""
        self._balance = min(self._balance + self.rules.retry_budget_ratio, BALANCE_MAX)
        self.full = self._balance >= BALANCE_MAX

    def withdraw(self, now_s: float) -> bool:
        """Take a redispatch out; False if there is none."""
        if self._filled_s is not None:
            self._balance = min(self._balance + (now_s - self._filled_s) * FLOOR_PER_S, BALANCE_MAX)
        self._filled_s = now_s
        self.full = False
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


def redispatch(
    budget: RetryBudget,
    *,
    status: int | None,
    attempts: int,
    age_s: float,
    timeout_s: float,
    now_s: float,
) -> Redispatch | GiveUp:
    """Decide about one failed attempt; a `Redispatch` is paid for from the budget.

    ``status`` is None without an answer; ``attempts`` includes this one; ``age_s`` counts from when the
    request was complete, and above ``timeout_s`` it is not tried again.
    """
    rules = budget.rules
    if rules.retries_max == 0:
        return GiveUp("disabled")
    if status is not None and status not in RETRIED_STATUSES:
        return GiveUp("not_retriable")
    if attempts > rules.retries_max:
        return GiveUp("attempts")
    if age_s >= timeout_s:
        return GiveUp("deadline")
    if not budget.withdraw(now_s):
        return GiveUp("budget")
    return Redispatch()
