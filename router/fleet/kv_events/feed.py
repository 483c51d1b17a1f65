"""One publisher of a worker: its socket, the order of its batches, and their events.

    socket ── numbers ──> `Sequence` ── batches in order ──> `Decoder` ── events ──> residency
                              └── missing batches ──> a task that asks for them

ZeroMQ is an extra, imported when the first feed is opened.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Protocol

from router.engines.sources import Source
from router.fleet.kv_events.sequence import Loss, Sequence
from router.fleet.kv_events.wire import Batch, Decoder

if TYPE_CHECKING:
    import zmq

    from router.fleet.kv_events.sockets import Subscription

logger = logging.getLogger(__name__)

READ_AT_ONCE = 16
"""Batches between two looks at the clock: a batch of a long prompt takes a tenth of a millisecond."""

TRIES = 3
TRY_AGAIN_S = 2.0
"""Seconds between `TRIES`: an engine that is busy starting may not answer at first."""

SETTLE_S = 0.2
"""Seconds between a connection and the question for old batches: by then the subscription has arrived,
too."""

ASKING_AT_ONCE = 4


class Owner(Protocol):
    """Owner of a feed."""

    def apply(self, feed: "Feed", batch: Batch) -> None:
        """Apply a batch."""

    def lost(self, feed: "Feed", loss: Loss) -> None:
        """Void all earlier batches."""


class Feed:
    """One publisher.

    Attributes:
        endpoint: Address of its subscription.
        understood_us: Log time at which the last batch was applied; 0 for none.
        lag_s: Age of that batch by the engine's clock; None if it has no time.
        doubted: The worker is said to have lost everything, and its next batch will decide.
        unproven: It connected again without proof that it is the same process.
    """

    def __init__(
        self,
        owner: Owner,
        source: Source,
        now_us: Callable[[], int],
        now_unix_s: Callable[[], float],
        asking: asyncio.Semaphore,
    ) -> None:
        self.source = source
        self.sequence = Sequence(self)
        self.subscription: Subscription | None = None
        self.endpoint = source.endpoint
        self.understood_us = 0
        self.lag_s: float | None = None
        self.doubted = False
        self.unproven = False
        self._answered = 0
        self._unanswered = 0
        self._owner = owner
        self._decoder = Decoder()
        self._now_us = now_us
        self._now_unix_s = now_unix_s
        self._asking = asking
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._replay_at: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._connections = 0

    def open(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        replay_at: str | None,
        wake: Callable[[], None],
    ) -> None:
        """Subscribe at an address, with one for old batches; raise `OSError` if it cannot be used."""
        from router.fleet.kv_events.sockets import Subscription

        self._context, self.endpoint, self._replay_at = context, endpoint, replay_at
        self.subscription = Subscription(context, self.source, endpoint, wake)

    @property
    def connected(self) -> bool:
        """True if the publisher is connected."""
        return self.subscription is not None and self.subscription.connected

    def read(self, start: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]) -> bool:
        """Apply a bounded number of batches; return True if there were any. `start` starts a task."""
        self.check(start)
        batches = [] if self.subscription is None else self.subscription.read(READ_AT_ONCE)
        for number, payload in batches:
            self.sequence.came(number, payload)
        return bool(batches)

    def arm(self) -> None:
        """Wake the owner when there is something to read."""
        if self.subscription is not None:
            self.subscription.arm()

    def check(self, start: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]) -> None:
        """Note a new connection of the publisher, and ask for missing batches."""
        subscription, sequence = self.subscription, self.sequence
        if subscription is None:
            return
        subscription.check()
        if subscription.connections != self._connections:
            self._connections = subscription.connections
            self._end_asking()
            self.unproven = bool(sequence.next)
            sequence.connected()
        if sequence.asked is not None and self._task is None and self._connections:
            self._task = start(self._ask(), f"kv replay {self.source.endpoint}")

    def counts(self) -> Counter[str]:
        """Batches, events and losses by name."""
        counts = Counter(self._decoder.counts)
        counts["invalid"] += 0 if self.subscription is None else self.subscription.invalid
        counts["gaps"] = self.sequence.gaps
        counts["answered"], counts["unanswered"] = self._answered, self._unanswered
        return counts

    def close(self) -> None:
        """Unsubscribe."""
        self._end_asking()
        if self.subscription is not None:
            self.subscription.close()

    # Listener of the sequence.

    def batch(self, payload: bytes) -> None:
        """Apply the next batch."""
        batch = self._decoder.decode(payload)
        if batch.damaged:
            if self.sequence.complete:
                self.lost(Loss.GAP)
                self.sequence.complete = False
        elif batch.clears:
            self.sequence.complete = True
        self._owner.apply(self, batch)
        self.understood_us = self._now_us()
        self.lag_s = self._now_unix_s() - batch.sent_unix_s if batch.sent_unix_s else None

    def lost(self, loss: Loss) -> None:
        """Void all earlier batches."""
        self.unproven = False
        self._owner.lost(self, loss)

    # Asking.

    def _end_asking(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _ask(self) -> None:
        try:
            await asyncio.sleep(SETTLE_S)
            async with self._asking:
                tries = 0
                while self.sequence.asked is not None:
                    answered = await self._answer()
                    tries += 1
                    if answered or self._replay_at is None or tries >= TRIES:
                        self.unproven = self.unproven and not answered
                        self.sequence.ended(answered=answered)
                        tries = 0
                    else:
                        await asyncio.sleep(TRY_AGAIN_S)
        except Exception:
            logger.exception(
                "asking for old KV events failed inside the gateway",
                extra={"event": "kv_replay.crashed", "endpoint": self.source.replay},
            )
            self.sequence.ended(answered=False)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _answer(self) -> bool:
        context, endpoint, first = self._context, self._replay_at, self.sequence.asked
        if context is None or endpoint is None or first is None:
            return False
        from router.fleet.kv_events.sockets import replay

        try:
            async for batches in replay(context, endpoint, first):
                for number, payload in batches:
                    self.sequence.replayed(number, payload)
                await asyncio.sleep(0)
        except (OSError, TimeoutError):
            self._unanswered += 1
            return False
        self._answered += 1
        return True
