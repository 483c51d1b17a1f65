"""May a failed attempt be sent to another worker?

Only while nothing of the answer has gone to the client; that is the caller's to know. Two bounds keep
retries from making a bad day worse: attempts per request, and a *budget* for all requests of a replica.

The budget is a token bucket (as in Finagle's retry budgets and gRPC's retry throttling): each
request deposits ``ratio`` of a token, time deposits ``floor_per_s``, a redispatch takes one. A
fleet where every attempt fails is thus asked at most ``1 + ratio`` times per request, while a
single failure at night may always be redispatched.
"""

from dataclasses import dataclass

RETRIED_STATUSES = frozenset((408, 429, 500, 502, 503, 504))
"""A worker's answers that another worker may better: the peers' list (`wire.md` 4)."""

FLOOR_PER_S = 10.0
"""Redispatches per second that need no deposit (Finagle's ``minRetriesPerSec``)."""

BALANCE_S_MAX = 10.0
"""The floor saved up at most, in seconds of it."""


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Send it to another worker."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Let the failure stand.

    Attributes:
        reason: ``disabled``, ``not_retriable``, ``attempts``, ``deadline`` or ``budget``; callers add reasons
            of their own.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class RedispatchRules:
    """Bounds.

    Attributes:
        retries_max: Redispatches per request; 0 turns them off.
        ratio: Redispatches per request allowed beside the floor, averaged over all requests.
        timeout_s: A request older than this is not tried again.
    """

    retries_max: int
    ratio: float
    timeout_s: float


class RetryBudget:
    """The token bucket of one replica.

    Attributes:
        ratio: What a request deposits; may change.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._balance_max = FLOOR_PER_S * BALANCE_S_MAX
        self._balance = self._balance_max
        self._filled_s: float | None = None

    def deposit(self) -> None:
        """A request began."""
        self._balance = min(self._balance + self.ratio, self._balance_max)

    def withdraw(self, now_s: float) -> bool:
        """Take a redispatch out, if there is one."""
        if self._filled_s is not None:
            grown = self._balance + (now_s - self._filled_s) * FLOOR_PER_S
            self._balance = min(grown, self._balance_max)
        self._filled_s = now_s
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


def redispatch(
    rules: RedispatchRules,
    budget: RetryBudget,
    *,
    status: int | None,
    attempts: int,
    age_s: float,
    now_s: float,
) -> Redispatch | GiveUp:
    """Decide about one failed attempt; a `Redispatch` is paid for from the budget.

    Args:
        rules: Bounds.
        budget: The replica's budget.
        status: What the worker answered; None if it did not.
        attempts: Attempts so far, this one included.
        age_s: Seconds since the request was complete.
        now_s: Monotonic seconds.
    """
    if rules.retries_max == 0:
        return GiveUp("disabled")
    if status is not None and status not in RETRIED_STATUSES:
        return GiveUp("not_retriable")
    if attempts > rules.retries_max:
        return GiveUp("attempts")
    if age_s >= rules.timeout_s:
        return GiveUp("deadline")
    if not budget.withdraw(now_s):
        return GiveUp("budget")
    return Redispatch()
