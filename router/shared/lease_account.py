"""One replica's units in hand and uses of one account's limits: the arithmetic, without Redis or a clock.

    take -- enough in hand? --yes--> charged at once, here
              no `--> an ask in the next call --> granted: charged | refused
                                              `-> nothing in time: `take_share` decides here

`call` makes the next script call (`router.shared.lease_script`), `answered` and `failed` take its result. At
most one call of an account is under way. Units in hand are *held* in Redis, so no other replica has them, and
their use need not be told at once. So most requests of a busy account do not wait.

A request is charged by estimate when it is admitted (one request, its tokens, its tokens in flight) and
settled when it ends: tokens that were not used are taken back where they were counted; more than estimated
counts when it is known, and may leave less than nothing in hand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from router.shared.lease_script import PLENTY, SLOT_US, SLOTS, LeaseCall, LeaseReply

AHEAD_US = 200_000
"""Time that units leased ahead of need last at the present rate: seven calls per second at any rate,
and nothing ahead where requests are rarer than that."""

IDLE_US = 100_000
"""Time without any use after which a replica gives all units back."""

RENEW_US = 1_000_000
"""Longest time between two reports of uses, and between two renewals of tokens in flight."""

REFUSED_US = 50_000
"""Time that a refusal holds for requests of that size or more without asking again: a limit that is hammered
costs twenty calls per second, and units that others give back are found that much later."""

SAID_US = 1_000_000
"""Time that the rest of a limit, as Redis told it, holds where Redis does not answer in time."""

CONCURRENT_RETRY_US = 1_000_000
"""Time until the next try if tokens in flight are the limit: requests end after seconds, in any order."""

UNBOUNDED = float("inf")

REQUESTS, TOKENS, CONCURRENT = 1, 2, 3
"""Numbers of the limits in verdicts; 0 means granted."""


class Limits(Protocol):
    """Limits of an account, over all replicas; 0 stands for no limit."""

    @property
    def requests_per_minute(self) -> int:
        """Requests in any 60 s."""

    @property
    def tokens_per_minute(self) -> int:
        """Their tokens."""

    @property
    def concurrent_tokens(self) -> int:
        """Tokens of requests that have not ended."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A limit does not allow a request.

    Attributes:
        kind: The limit: `REQUESTS`, `TOKENS` or `CONCURRENT`.
        retry_us: Until it might; 0 if it never will, because the request alone is larger than the limit.
    """

    kind: int
    retry_us: int


class Charge:
    """One request's part of an account.

    Attributes:
        account: Account that is charged.
        tokens: Estimated tokens.
        decided: Called with it once it is granted or refused, if it had to wait.
        slot: Slot in which it was charged.
        granted: True if it was granted.
        refusal: Reason of the refusal; None as long as it waits.
        ended: True if it was refused, withdrawn or settled.
    """

    __slots__ = ("account", "decided", "ended", "granted", "refusal", "slot", "tokens")

    def __init__(self, account: "LeaseAccount", tokens: int, decided: "Callable[[Charge], None]") -> None:
        self.account = account
        self.tokens = tokens
        self.decided = decided
        self.slot = 0
        self.granted = False
        self.refusal: Refusal | None = None
        self.ended = False

    def refuse(self, refusal: Refusal) -> None:
        """End it ungranted."""
        self.refusal = refusal
        self.ended = True


class LeaseAccount:
    """One account on one replica. Times are log times in microseconds.

    Args:
        name: Name of the account.
        writer: Name under which it tells its uses; never used before.
        limits: Limits of the account.

    Attributes:
        requests: Requests in hand; `UNBOUNDED` if they are not limited. So are the next two.
        tokens: Tokens in hand; after a correction less than 0.
        concurrent: Tokens that may be put in flight.
        low_requests: With less in hand it is time to lease more. So is the next.
        low_tokens: As above.
        in_flight: Tokens of charges that have not ended.
        used_requests: Own requests in the window. So is the next.
        used_tokens: Own tokens in the window.
        left: Rest of each limit, beyond the units that replicas hold, when Redis was last asked.
        grows_us: Log time at which the oldest use leaves the window, of requests and of tokens, as far as
            known; 0 if none.
    """

    __slots__ = (
        *("_asked", "_asks", "_batch", "_last_us", "_refusal", "_refused_tokens", "_refused_until_us"),
        *("_told_us", "_unacknowledged", "_untold", "_uses", "_whole", "_writer", "concurrent", "grows_us"),
        *("in_flight", "left", "limits", "low_requests", "low_tokens", "name", "requests", "tokens"),
        *("used_requests", "used_tokens"),
    )

    def __init__(self, name: str, writer: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self._writer = writer
        self.requests: float = _nothing_of(limits.requests_per_minute)
        self.tokens: float = _nothing_of(limits.tokens_per_minute)
        self.concurrent: float = _nothing_of(limits.concurrent_tokens)
        self.low_requests = self.low_tokens = 0
        self.in_flight = 0
        self.used_requests = self.used_tokens = 0
        self.left = (0, 0, 0)
        self.grows_us = (0, 0)
        self._uses: dict[int, list[int]] = {}
        self._untold: dict[int, list[int]] = {}
        self._unacknowledged: tuple[tuple[int, int, int], ...] | None = None
        self._batch = 0
        self._whole = False
        self._asks: list[Charge] = []
        self._asked: list[Charge] = []
        self._last_us = self._told_us = 0
        self._refusal = Refusal(REQUESTS, 0)  # of the newest request refused, until then
        self._refused_tokens = self._refused_until_us = 0

    @property
    def waits(self) -> bool:
        """True if a charge waits for Redis, or uses must be told again."""
        return bool(self._asks) or self._unacknowledged is not None or self._whole

    @property
    def active(self) -> bool:
        """True if Redis must hear of this account again, sooner or later."""
        return self.waits or self._must_tell or self._in_hand != (0, 0, 0)

    @property
    def _must_tell(self) -> bool:
        """True if Redis knows less than it must before long."""
        return bool(self._untold) or (self.in_flight > 0 and self.limits.concurrent_tokens > 0)

    @property
    def requests_left(self) -> int:
        """Requests of the limit that are left over all replicas, as far as known here."""
        return self._left(0, self.limits.requests_per_minute - self.used_requests, self.requests)

    @property
    def tokens_left(self) -> int:
        """The same for tokens."""
        return self._left(1, self.limits.tokens_per_minute - self.used_tokens, self.tokens)

    def _left(self, rate: int, unused_here: int, in_hand: float) -> int:
        known = min(unused_here, self.left[rate] + in_hand) if self._told_us else unused_here
        return max(0, int(known))

    def grows_in_us(self, rate: int, at_us: int) -> int:
        """In how long more will be left of a rate, 0 for requests and 1 for tokens; 0 if nothing is used."""
        end_us = self.grows_us[rate]
        for slot in self._uses:  # the oldest own one, which Redis may not know yet
            own_us = _end_us(slot)
            if own_us > at_us and not at_us < end_us < own_us:
                end_us = own_us
            break
        return max(0, end_us - at_us)

    @property
    def _in_hand(self) -> tuple[int, int, int]:
        """Units of the limits that there are."""
        hand = (self.requests, self.tokens, self.concurrent)
        one, two, three = (0 if units == UNBOUNDED else max(0, int(units)) for units in hand)
        return one, two, three

    def change(self, limits: Limits) -> None:
        """Take other limits from now on: units in hand of a limit that was there remain."""
        old, self.limits = self.limits, limits
        if bool(old.requests_per_minute) != bool(limits.requests_per_minute):
            self.requests = _nothing_of(limits.requests_per_minute)
        if bool(old.tokens_per_minute) != bool(limits.tokens_per_minute):
            self.tokens = _nothing_of(limits.tokens_per_minute)
        if bool(old.concurrent_tokens) != bool(limits.concurrent_tokens):
            self.concurrent = _nothing_of(limits.concurrent_tokens)
        self._refused_until_us = 0

    # A request.

    def take(self, charge: Charge, at_us: int) -> bool:
        """Charge a request to the units in hand, if they suffice and no charge waits."""
        tokens = charge.tokens
        if self.requests < 1 or self.tokens < tokens or self.concurrent < tokens or self._asks:
            return False
        self._spend(charge, at_us)
        return True

    def refuse(self, charge: Charge, at_us: int) -> bool:
        """Refuse a request that never fits, or the like of which was refused just now; without asking."""
        limits, tokens = self.limits, charge.tokens
        if 0 < limits.tokens_per_minute < tokens:
            charge.refuse(Refusal(TOKENS, 0))
        elif 0 < limits.concurrent_tokens < tokens:
            charge.refuse(Refusal(CONCURRENT, 0))
        elif 0 < self._refused_until_us - at_us <= REFUSED_US and tokens >= self._refused_tokens:
            charge.refuse(self._refusal)
        return charge.ended

    def ask(self, charge: Charge) -> None:
        """Have the next call ask for a request; `answered` tells."""
        self._asks.append(charge)

    def take_share(self, charge: Charge, at_us: int, rank: int, replicas: int) -> bool:
        """Decide without Redis, by this replica's fair share of each limit; the shares add up to the limit.

        A request that is larger than the share may go if nothing else does: else it never could. So may one
        request if the limit is smaller than the number of replicas. The last answer of Redis holds for a
        while: a limit that was used up then is not made larger by an answer that comes late.

        Args:
            charge: Charge of a request that waits, or would.
            at_us: Log time.
            rank: Rank of this replica among the living, 0 for the first.
            replicas: Number of living replicas.
        """
        self._prune(at_us // SLOT_US)
        limits, tokens = self.limits, charge.tokens
        left = self.left if 0 <= at_us - self._told_us <= SAID_US else (PLENTY, PLENTY, PLENTY)

        def beyond(limit: int, used: int, more: int) -> bool:
            return used > 0 and used + more > _share(limit, rank, replicas)

        if left[0] + self.requests < 1 or beyond(limits.requests_per_minute, self.used_requests, 1):
            charge.refuse(Refusal(REQUESTS, self.grows_in_us(0, at_us) or SLOT_US))
        elif left[1] + self.tokens < tokens or beyond(limits.tokens_per_minute, self.used_tokens, tokens):
            charge.refuse(Refusal(TOKENS, self.grows_in_us(1, at_us) or SLOT_US))
        elif left[2] + self.concurrent < tokens or beyond(limits.concurrent_tokens, self.in_flight, tokens):
            charge.refuse(Refusal(CONCURRENT, CONCURRENT_RETRY_US))
        else:
            self._spend(charge, at_us)
        return charge.granted

    def settle(self, charge: Charge, tokens: int, at_us: int) -> None:
        """A granted request has ended: count its real use.

        Args:
            charge: A granted charge, not settled yet.
            tokens: Tokens that it used.
            at_us: Log time.
        """
        self._ended(charge)
        more = tokens - charge.tokens
        if more > 0:
            self.tokens -= more
            self._use(at_us // SLOT_US, 0, more)
        elif more < 0 and charge.slot in self._uses:
            self.tokens -= more
            self._use(charge.slot, 0, more)

    def withdraw(self, charge: Charge) -> None:
        """A request was not served, and is not to count; it may still wait."""
        if not charge.granted:
            charge.ended = True
            return
        self._ended(charge)
        if charge.slot in self._uses:
            self.requests += 1
            self.tokens += charge.tokens
            self._use(charge.slot, -1, -charge.tokens)

    # A call.

    def due(self, at_us: int) -> bool:
        """True if a call is due without a waiting charge: to give units back, or to renew them."""
        if self._must_tell and not 0 <= at_us - self._told_us < RENEW_US:
            return True
        hand, ahead = self._in_hand, self._ahead(at_us)
        return hand[0] > 2 * ahead[0] or hand[1] > 2 * ahead[1] or hand[2] > 2 * ahead[2]

    def forgotten(self, at_us: int) -> bool:
        """True if nothing of it is left to remember."""
        self._prune(at_us // SLOT_US)
        return not self._uses and not self.active and not self.in_flight

    def call(self, at_us: int, ttl_us: int, *, last: bool = False) -> LeaseCall:
        """Make the next call: uses and wants. `answered` or `failed` follows, before the next one.

        Args:
            at_us: Log time.
            ttl_us: Time for which the held units are believed.
            last: True to give everything back, since there will be no further call.
        """
        self._prune(at_us // SLOT_US)
        told = self._unacknowledged
        again = told is not None
        if told is None:
            uses, self._untold = self._uses if self._whole else self._untold, {}
            told = self._unacknowledged = tuple((slot, use[0], use[1]) for slot, use in uses.items())
            self._batch += 1
        in_hand = self._in_hand
        wants = (0, 0, 0)
        if again:
            # Uses since the first time are told next time, and held till then.
            later = self._untold.values()
            requests, tokens = sum(use[0] for use in later), sum(use[1] for use in later)
            held = (in_hand[0] + max(0, requests), in_hand[1] + max(0, tokens), in_hand[2])
        else:
            self._asked, self._asks = (
                [charge for charge in self._asks if not (charge.granted or charge.ended)],
                [],
            )
            ahead = (0, 0, 0) if last else self._ahead(at_us)
            # A replica that asks gives all back first: else it would stand in its own way.
            held = (0, 0, 0) if self._asked else _least(in_hand, ahead)
            wants = (ahead[0] - held[0], ahead[1] - held[1], ahead[2] - held[2])
            self._keep(held)
        limits = self.limits
        return LeaseCall(
            self._writer,
            self._batch,
            self._whole,
            ttl_us,
            (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_tokens),
            (held[0], held[1], held[2] + self.in_flight if limits.concurrent_tokens else 0),
            wants,
            told,
            tuple(charge.tokens for charge in self._asked),
        )

    def answered(self, reply: LeaseReply, at_us: int) -> list[Charge]:
        """Take the result of a call.

        Returns:
            Charges that waited and are granted or refused now.
        """
        self._unacknowledged = None
        asked, self._asked = self._asked, []
        if not reply.told:
            self._whole = True
            self._asks[:0] = asked
            return []
        self._whole = False
        self._told_us = at_us
        self.left = reply.left
        requests_us, tokens_us = reply.grows_us
        self.grows_us = (at_us + requests_us if requests_us else 0, at_us + tokens_us if tokens_us else 0)
        self.requests += reply.leased[0]
        self.tokens += reply.leased[1]
        self.concurrent += reply.leased[2]
        decided = []
        for charge, kind in zip(asked, reply.verdicts, strict=True):
            if charge.granted or charge.ended:
                continue  # decided meanwhile
            decided.append(charge)
            if not kind:
                self._spend(charge, at_us)
                continue
            refusal = Refusal(kind, CONCURRENT_RETRY_US if kind == CONCURRENT else reply.retry_us)
            charge.refuse(refusal)
            if at_us >= self._refused_until_us or charge.tokens < self._refused_tokens:
                self._refused_tokens = 0 if kind == REQUESTS else charge.tokens
            self._refusal, self._refused_until_us = refusal, at_us + REFUSED_US
        requests, tokens, _ = self._in_hand
        self.low_requests, self.low_tokens = requests // 4, tokens // 4
        return decided

    def failed(self) -> None:
        """A call was not answered: it may have been heard or not, so tell the same again."""
        self._asks[:0] = self._asked
        self._asked = []

    # Inside.

    def _spend(self, charge: Charge, at_us: int) -> None:
        tokens = charge.tokens
        charge.granted = True
        charge.slot = slot = at_us // SLOT_US
        self._last_us = at_us
        self.requests -= 1
        self.tokens -= tokens
        self.concurrent -= tokens
        self.in_flight += tokens
        self._use(slot, 1, tokens)

    def _ended(self, charge: Charge) -> None:
        assert charge.granted
        assert not charge.ended
        charge.ended = True
        self.in_flight -= charge.tokens
        self.concurrent += charge.tokens

    def _use(self, slot: int, requests: int, tokens: int) -> None:
        """Count a use in the own window and for the next call; negative numbers take one back."""
        self.used_requests += requests
        self.used_tokens += tokens
        use = self._uses.get(slot)
        if use is None:
            self._prune(slot)
            use = self._uses[slot] = [0, 0]
        use[0] += requests
        use[1] += tokens
        use = self._untold.get(slot)
        if use is None:
            use = self._untold[slot] = [0, 0]
        use[0] += requests
        use[1] += tokens

    def _prune(self, slot: int) -> None:
        """Forget uses that have left the window, and those noted before the clock was set."""
        uses, first = self._uses, slot - SLOTS
        while uses and not first <= (oldest := next(iter(uses))) <= slot:
            requests, tokens = uses.pop(oldest)
            self.used_requests -= requests
            self.used_tokens -= tokens
            self._untold.pop(oldest, None)

    def _ahead(self, at_us: int) -> tuple[int, int, int]:
        """Units that will be needed within `AHEAD_US`, from the uses of the last one to two slots."""
        if not 0 <= at_us - self._last_us <= IDLE_US:
            return 0, 0, 0
        slot = at_us // SLOT_US
        now, before = self._uses.get(slot, (0, 0)), self._uses.get(slot - 1, (0, 0))
        took_us = at_us - (slot - 1) * SLOT_US
        requests = max(0, now[0] + before[0]) * AHEAD_US // took_us
        tokens = max(0, now[1] + before[1]) * AHEAD_US // took_us
        limits = self.limits
        return (
            requests if limits.requests_per_minute else 0,
            tokens if limits.tokens_per_minute else 0,
            tokens if limits.concurrent_tokens else 0,
        )

    def _keep(self, held: tuple[int, int, int]) -> None:
        """Hold these units of each limit that exists."""
        if self.requests != UNBOUNDED:
            self.requests = held[0]
        if self.tokens != UNBOUNDED:
            self.tokens = held[1]
        if self.concurrent != UNBOUNDED:
            self.concurrent = held[2]


def _end_us(slot: int) -> int:
    """Log time at which a slot has left the window."""
    return (slot + SLOTS + 1) * SLOT_US


def _nothing_of(limit: int) -> float:
    return 0 if limit else UNBOUNDED


def _least(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])


def _share(limit: int, rank: int, replicas: int) -> float:
    """This replica's whole part of a limit; the first ones take the remainder."""
    if not limit:
        return UNBOUNDED
    return limit // replicas + (rank < limit % replicas)
