"""Limits over all replicas, kept in Redis and leased to each for a moment.

    charge -- in hand (`LeaseAccount.take`) ------------------------------> granted, at once
       `----- refused a moment ago, or larger than the limit -------------> refused, at once
       `----- ask ---> round: one script call per account that is due ----> granted or refused
                 `---- no answer within `WAIT_S`, or Redis gone ----------> this replica's fair share decides

Rounds follow each other for as long as an account is due; accounts that become due during one go into the
next. So there is one round under way at any time, at any load. Accounts are looked at every `LOOK_S`: unused
units go back, tokens in flight are renewed.

*Redis late or gone.* No charge waits longer than `WAIT_S` (and a second look: an answer that came while this
process was held up has come). While the round is overdue, or the link lost, no charge waits at all: each
replica admits its share of the limit, the limit divided by the replicas that lived last. It tells these uses
when Redis is back, one account first, so that replicas which come back together do not overload it.

*Another primary.* A primary that slept through a failover grants on until a Sentinel tells it, beside the one
that grants to all others; so a connected replica asks the Sentinels now and then, and goes over.

Nothing is asked, and no connection made, before the first charge.
"""

import asyncio
import itertools
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from router.errors import StateError
from router.shared.keys import Keys
from router.shared.lease_account import Charge, LeaseAccount, Limits
from router.shared.lease_script import SCRIPT, command, reply_of
from router.shared.server import RedisLink, RedisRefused, leave_replaced

logger = logging.getLogger(__name__)

WAIT_S = 0.01
"""Some ten times the answer time of Redis within a zone; little beside the time to a first token."""

SECOND_LOOK_S = 0.002
LOOK_S = 0.1
FORGET_LOOKS = 50
"""Looks after which accounts without anything left are forgotten."""

TIMEOUT_S = 1.0
GOODBYE_S = 1.0
BACKOFF_S = 0.05
BACKOFF_S_MAX = 1.5
SILENCE_S = 0.25

ROUND_MAX = 32
"""Accounts in a round; a script call takes Redis up to 100 us (`loadtest.bench.budgets`)."""

ASKS_MAX = 256
"""Charges of all accounts that wait at a time; the fair share decides about more."""


class Leases:
    """The limits of all accounts, as one replica sees them. Create and use it on the event loop.

    Args:
        url: Address of Redis.
        keys: The namespace.
        replica: Id of this replica.
        now_us: Log time, microseconds.
        replicas: Ids of the replicas that live, as far as known, this one included.
        ttl_s: Time that the units held by this replica outlive its last word, seconds.
        loop: Runs the timers.

    Attributes:
        now_us: As given.
        rounds: Round trips so far.
        alone: Charges that were decided without Redis so far.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        replica: str,
        *,
        now_us: Callable[[], int],
        replicas: Callable[[], Sequence[str]],
        ttl_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._keys = keys
        self._replica = replica
        # An account numbers its batches from one, so each is told under a name of its own.
        self._life = f"{replica}/{secrets.token_hex(4)}"
        self._lives = itertools.count()
        self.now_us = now_us
        self._replicas = replicas
        self._ttl_us = int(ttl_s * 1e6)
        self._loop = loop
        self._link = RedisLink(url, TIMEOUT_S, home=keys.log, name=f"cacheway-limits-{replica}")
        self._script: bytes | None = None
        self._accounts: dict[str, LeaseAccount] = {}
        self._active: dict[LeaseAccount, None] = {}
        self._due: dict[LeaseAccount, None] = {}
        self._wake = asyncio.Event()
        self._waiting: deque[tuple[float, Charge]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._looked = self._overdue = False
        self._looks = 0
        self._linked = False
        self._lost: str | None = None
        self.rounds = 0
        self.alone = 0

    @property
    def degraded_reason(self) -> str | None:
        """Reason why limits are kept by fair shares now; None if they are kept by Redis."""
        if self._lost is not None:
            return self._lost
        silence_s = self._link.silence_s
        return f"Redis has not answered for {silence_s:.2f} s" if silence_s > SILENCE_S else None

    def account(self, name: str, limits: Limits) -> LeaseAccount:
        """The account of a name, with these limits from now on."""
        account = self._accounts.get(name)
        if account is None:
            writer = f"{self._life}/{next(self._lives)}"
            account = self._accounts[name] = LeaseAccount(name, writer, limits)
        elif account.limits is not limits:
            account.change(limits)
        return account

    def known(self, name: str) -> LeaseAccount | None:
        """The account of a name, if it was charged here in the last minute."""
        return self._accounts.get(name)

    def charge(self, account: LeaseAccount, tokens: int, decided: Callable[[Charge], None]) -> Charge:
        """Charge a request.

        Args:
            account: As `account` gave it, a moment ago.
            tokens: Estimated tokens of the request.
            decided: Called later, from the event loop, if the charge that is returned is neither granted nor
                refused; also if it was withdrawn in between.
        """
        now_us = self.now_us()
        charge = Charge(account, tokens, decided)
        if account.take(charge, now_us):
            if account not in self._active:
                self._watch(account)
            if account.requests < account.low_requests or account.tokens < account.low_tokens:
                self._call_for(account)
            return charge
        if account.refuse(charge, now_us):
            return charge
        self._watch(account)
        self._call_for(account)
        if self._lost is not None or self._overdue or len(self._waiting) >= ASKS_MAX:
            self._take_share(charge)
            return charge
        account.ask(charge)
        self._waiting.append((self._loop.time() + WAIT_S, charge))
        if self._timer is None:
            self._timer = self._loop.call_later(WAIT_S, self._too_late)
        return charge

    def settle(self, charge: Charge, tokens: int) -> None:
        """A granted request ended; count the tokens it really used."""
        charge.account.settle(charge, tokens, self.now_us())
        self._watch(charge.account)

    def withdraw(self, charge: Charge) -> None:
        """A request was not served: it does not count. It may wait still."""
        charge.account.withdraw(charge)
        self._watch(charge.account)

    async def run(self) -> None:
        """Make the rounds until cancelled; then give everything back. Failures of Redis do not end it."""
        try:
            async with asyncio.TaskGroup() as group:
                # `_look` sees that the server was left, and tells its successor everything.
                group.create_task(leave_replaced(self._link), name="limits-server")
                await self._rounds()
        finally:
            for timer in (self._timer, self._look_timer):
                if timer is not None:
                    timer.cancel()
            await self._goodbye()

    # Inside.

    async def _rounds(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            try:
                await self._round()
                failures = 0
            except StateError as error:
                failures += 1
                self._fail(str(error))
                pause_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures, 10))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    def _call_for(self, account: LeaseAccount) -> None:
        self._due[account] = None
        self._wake.set()

    def _watch(self, account: LeaseAccount) -> None:
        self._active[account] = None
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Find the accounts that are due without a waiting charge, and forget those that are over."""
        now_us = self.now_us()
        for account in list(self._active):
            if account.due(now_us):
                self._call_for(account)
            elif not account.active:
                del self._active[account]
        if self._linked and not self._link.connected:
            # Another server, or this one after a restart, may not know the uses: all accounts ask it.
            self._linked = False
            for account in self._accounts.values():
                self._call_for(account)
        self._looks += 1
        if self._looks % FORGET_LOOKS == 0:
            for name in [name for name, account in self._accounts.items() if account.forgotten(now_us)]:
                del self._accounts[name]
        self._look_timer = self._loop.call_later(LOOK_S, self._look) if self._accounts else None

    async def _round(self) -> None:
        """Call for the accounts that are due, as many as go into one round."""
        accounts = list(islice(self._due, 1 if self._lost is not None else ROUND_MAX))
        if not accounts:
            self._wake.clear()
            return
        for account in accounts:
            del self._due[account]
        try:
            answers = await self._calls(accounts, self.now_us())
        except BaseException:
            for account in accounts:
                account.failed()
                self._call_for(account)
            raise
        finally:
            self._overdue = False
        self.rounds += 1
        self._linked = True
        if self._lost is not None:
            self._lost = None
            logger.info("limits are kept over all replicas again", extra={"event": "limits.recovered"})
        now_us = self.now_us()
        for account, answer in zip(accounts, answers, strict=True):
            # Called by the loop: an error in one of them does not keep the next from being told.
            for charge in account.answered(reply_of(answer), now_us):
                self._loop.call_soon(charge.decided, charge)
            if account.waits:
                self._call_for(account)

    async def _calls(
        self, accounts: Sequence[LeaseAccount], now_us: int, *, last: bool = False
    ) -> list[bytes]:
        """One round trip, or more if the server does not know the script yet."""
        if self._script is None:
            self._script = await self._link.call("SCRIPT", "LOAD", SCRIPT)
        commands = [
            command(
                self._script, self._keys.limits(account.name), account.call(now_us, self._ttl_us, last=last)
            )
            for account in accounts
        ]
        try:
            return await self._link.calls(*commands)
        except RedisRefused as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        self._script = await self._link.call("SCRIPT", "LOAD", SCRIPT)
        return await self._link.calls(*commands)

    def _fail(self, reason: str) -> None:
        """Redis is gone or refuses: decide here about all charges that wait."""
        if self._lost is None:
            logger.warning(
                "limits are kept by each replica's fair share",
                extra={"event": "limits.degraded", "reason": reason},
            )
        self._lost = reason
        while self._waiting:
            self._decide(self._waiting.popleft()[1])

    def _too_late(self) -> None:
        """Decide about charges that waited long enough, but let answers in first that are there unread."""
        self._timer = None
        now_s, waiting = self._loop.time(), self._waiting
        while waiting and (waiting[0][1].granted or waiting[0][1].ended):
            waiting.popleft()
        late = bool(waiting) and waiting[0][0] <= now_s
        if late and self._looked:
            self._overdue = True
            while waiting and waiting[0][0] <= now_s:
                self._decide(waiting.popleft()[1])
        self._looked = late and not self._looked
        if waiting:
            again_s = SECOND_LOOK_S if self._looked else max(0.001, waiting[0][0] - now_s)
            self._timer = self._loop.call_later(again_s, self._too_late)

    def _decide(self, charge: Charge) -> None:
        if not charge.granted and not charge.ended:
            self._take_share(charge)
            self._loop.call_soon(charge.decided, charge)

    def _take_share(self, charge: Charge) -> None:
        """Decide by this replica's share."""
        self.alone += 1
        replicas = self._replicas()
        rank = replicas.index(self._replica) if self._replica in replicas else 0
        charge.account.take_share(charge, self.now_us(), rank, max(1, len(replicas)))

    async def _goodbye(self) -> None:
        """Give back the units in hand, if Redis lets us in time; else it expires."""
        accounts = [] if self._lost is not None else list(self._active)
        try:
            async with asyncio.timeout(GOODBYE_S):
                for first in range(0, len(accounts), ROUND_MAX):
                    await self._calls(accounts[first : first + ROUND_MAX], self.now_us(), last=True)
        except (StateError, TimeoutError) as error:
            logger.warning(
                "leases were not given back", extra={"event": "limits.not_returned", "reason": str(error)}
            )
        finally:
            await self._link.aclose()
