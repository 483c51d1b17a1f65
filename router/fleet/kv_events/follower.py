"""What one worker's engine says of its cache, and what all replicas are told of it.

    feeds (one per data-parallel rank) ──events──> residency ──coalesced──> Insert, Trim, ... in the log
                                                       └── all of it known? ──> Tracked

    silent       its engine publishes no events, or nobody knows where
    refused      its events are where the gateway does not connect to
    connecting   no connection yet, or none any more
    joining      old batches are asked for
    partial      what is told is true, but not all: history describes it
    live         everything its engine holds is known: its events describe it (`state.slot_registers`)

A process that is another one has an empty cache, and a gap that cannot be filled hides what was removed:
then what was used before is forgotten. After a gap the worker is described by history again, until its
engine clears its cache or starts anew. So is a worker that cannot be heard for `DEAF_S`, until it has proved
that nothing was missed. A worker that was described by history anyway is not forgotten for a gap.

What is forgotten was used before the oldest prefill that is still under way there: what was placed since is
not in the cache yet, and will be.

**When somebody else says that the worker lost everything** (a restart that a health check saw, a flush by the
admin API), its events may not have said so yet: engines tell a flush with the next step that changes
something. The tree forgets at once, and the next batch decides. If it clears the cache, or comes from
another process, all is said; if it just goes on, nothing was lost, and everything is told once more.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from policies import FleetState, Forget, Op, Tracked
from radix import Residency
from router.engines.sources import Source
from router.fleet.kv_events.feed import Feed
from router.fleet.kv_events.sequence import Loss
from router.fleet.kv_events.wire import Batch
from router.fleet.local_worker import LocalWorker

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

DEAF_S = 10.0
"""A connection that is away for longer is no short trouble."""

SPARED_S = 300.0
"""What the tree saw used since is not compared with what the engine holds. What differs there is mostly not
wrong but no token ids: prompts with images, of which events say nothing that could be matched."""

OPS_AT_ONCE = 200
"""Operations that a worker publishes between two looks at the clock: a millisecond or two."""

Start = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]


class State(StrEnum):
    """How far following a worker has come."""

    SILENT = "silent"
    REFUSED = "refused"
    CONNECTING = "connecting"
    JOINING = "joining"
    PARTIAL = "partial"
    LIVE = "live"


class Follower:
    """See the module.

    Args:
        local: The worker.
        fleet: What all replicas know of it.
        residency: Takes what its engine says.
        publish: Tells all replicas.
        now_us: Log time.
        now_unix_s: Wall clock.
        replica: Id of this replica.
        woken: Called when there is something to read or to tell.

    Attributes:
        local: As given.
        worker_id: Of the worker.
        feeds: One per data-parallel rank; none until it is known where they are.
        detail: Why there are none, in words.
        refused: Whether that is because the gateway does not connect there.
    """

    def __init__(
        self,
        local: LocalWorker,
        fleet: FleetState,
        residency: Residency,
        *,
        publish: Callable[[Op], None],
        now_us: Callable[[], int],
        now_unix_s: Callable[[], float],
        replica: str,
        woken: "Callable[[Follower], None]",
    ) -> None:
        self.local = local
        self.worker_id = local.worker.worker_id
        self.feeds: list[Feed] = []
        self.detail = "its endpoints are not known yet"
        self.refused = False
        self._fleet = fleet
        self._residency = residency
        self._publish = publish
        self._now_us = now_us
        self._now_unix_s = now_unix_s
        self._replica = replica
        self._woken = woken
        self._pending: deque[Op] = deque()
        self._changed = False
        self._sought = False  # whether it is known where its publishers are, or that there are none
        self._forgets = False
        self._retells = False
        self._told_us = 0
        self._forgot_us = fleet.forgot_us(local.worker.slot)
        self._heard_us = now_us()
        self._counts: Counter[str] = Counter()

    # What people and metrics ask.

    @property
    def connected(self) -> bool:
        """Whether all of its publishers are there."""
        return all(feed.connected for feed in self.feeds)

    @property
    def deaf_s(self) -> float:
        """For how long one of them has been away."""
        return (self._now_us() - self._heard_us) / 1e6

    @property
    def asking(self) -> bool:
        """Whether an answer is awaited that may change what is known."""
        return any(feed.sequence.asked is not None for feed in self.feeds)

    @property
    def knows_all(self) -> bool:
        """Whether everything its engine holds is known."""
        return (
            bool(self.feeds)
            and all(feed.sequence.complete for feed in self.feeds)
            and self._residency.readable
        )

    @property
    def state(self) -> State:
        """How far it has come."""
        if not self.feeds:
            return State.REFUSED if self.refused else State.SILENT
        if not self.connected:
            return State.CONNECTING
        if self.asking:
            return State.JOINING
        return State.LIVE if self.knows_all else State.PARTIAL

    @property
    def settled(self) -> bool:
        """Whether all replicas were told everything that was read."""
        return not (self._changed or self._pending)

    @property
    def blocks(self) -> int:
        """KV blocks of its engine that are followed."""
        return self._residency.blocks

    @property
    def opaque_blocks(self) -> int:
        """Those beside, of which nobody knows which tokens they are."""
        return self._residency.opaque

    @property
    def lag_s(self) -> float | None:
        """How old the last batch of a rank was when it was read, at most; None if none came."""
        return max((feed.lag_s for feed in self.feeds if feed.lag_s is not None), default=None)

    def counts(self) -> Counter[str]:
        """What came and happened, by name, since it is followed."""
        counts = Counter(self._counts)
        for feed in self.feeds:
            counts.update(feed.counts())
        return counts

    # What its feeds tell.

    def told(self, feed: Feed, batch: Batch) -> None:
        """See `router.fleet.kv_events.feed.Owner`."""
        if feed.doubted:
            feed.doubted = False
            self._retells = self._retells or not batch.clears
        self._forgets = self._forgets or batch.clears
        self._residency.apply(feed.source.rank, batch.events)
        self._change()

    def lost(self, feed: Feed, loss: Loss) -> None:
        """See `router.fleet.kv_events.feed.Owner`."""
        feed.doubted = False
        # History stays only while it is all there is. What is told from the beginning is all there is itself.
        self._forgets = self._forgets or loss is not Loss.GAP or feed.sequence.complete
        self._residency.lost(feed.source.rank)
        self._change()
        self._counts[loss.value] += 1
        if feed.understood_us and loss is not Loss.AGAIN:
            logger.warning(
                "what a worker's KV events said is void: %s",
                "its engine is another process" if loss is Loss.RESTART else "some are missing for good",
                extra={
                    "event": "kv_events.lost",
                    "worker_id": self.worker_id,
                    "rank": feed.source.rank,
                    "reason": loss.value,
                },
            )

    # What its owner does.

    def open(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        places: Sequence[tuple[Source, str, str | None]],
        asking: asyncio.Semaphore,
    ) -> None:
        """Subscribe.

        Args:
            context: Of the process.
            places: Its publishers, each with its address and that of old batches.
            asking: Limits how many ask for old batches at a time.

        Raises:
            OSError: An endpoint cannot be used; then there are none.
        """
        self._sought = True
        self.refused, self.detail = False, "" if places else "its engine publishes no events"
        self._heard_us = self._now_us()
        try:
            for source, endpoint, replay_at in places:
                feed = Feed(self, source, self._now_us, self._now_unix_s, asking)
                feed.open(context, endpoint, replay_at, partial(self._woken, self))
                self.feeds.append(feed)
        except OSError:
            self.close()
            self.feeds.clear()
            raise
        self._woken(self)

    def refuse(self, detail: str) -> None:
        """It cannot be followed, for this reason."""
        if (self.refused, self.detail) != (True, detail):
            logger.warning(
                "a worker's KV events cannot be followed",
                extra={"event": "kv_events.refused", "worker_id": self.worker_id, "detail": detail},
            )
        self._sought, self.refused, self.detail = True, True, detail

    def read(self, start: Start) -> bool:
        """Take in what has come, a bounded number of batches. Whether there was anything."""
        came = False
        for feed in self.feeds:
            came = feed.read(start) or came
        return came

    def arm(self) -> None:
        """Be woken when there is something to read; nothing was left."""
        for feed in self.feeds:
            feed.arm()

    def look(self, start: Start) -> None:
        """See what is true now; called every second or so."""
        now_us = self._now_us()
        for feed in self.feeds:
            feed.look(start)
        if self.connected:
            self._heard_us = now_us
        self._see_forgets()
        deaf = self.deaf_s > DEAF_S
        if not self._sought or (self.asking and not deaf):
            return
        exact, tracked = self.knows_all and not deaf, self._fleet.tracks(self.worker_id)
        if exact and not tracked and not self.settled:
            return  # first all of it is told
        if exact != tracked:
            self._publish(Tracked(self.worker_id, now_us, self._replica, exact))
            logger.info(
                "a worker's cache is known by its KV events" if exact else "a worker is known by history",
                extra={
                    "event": "kv_events.live" if exact else "kv_events.given_up",
                    "worker_id": self.worker_id,
                    "blocks": self.blocks,
                    "state": self.state.value,
                },
            )

    def flush(self) -> bool:
        """Tell all replicas what changed, a bounded number of operations. Whether there is more."""
        if not self._pending:
            self._gather()
        for _ in range(min(len(self._pending), OPS_AT_ONCE)):
            op = self._pending.popleft()
            self._publish(op)
            if isinstance(op, Forget):
                self._forgot_us = max(self._forgot_us, op.before_us)
                self._counts["forgets"] += 1
        return bool(self._pending)

    def compare(self) -> None:
        """Compare a part of what the tree believes of it with what it holds, if all of that is known."""
        if not self.settled or self.state is not State.LIVE:
            return
        slot, now_us = self.local.worker.slot, max(self._now_us(), self._told_us + 1)
        before_us = min(now_us - round(SPARED_S * 1e6), self._fleet.loads.oldest_prefill_us(slot))
        ops = self._residency.reconcile(self._fleet.tree, slot, self.worker_id, now_us, before_us)
        if ops:
            self._told_us = now_us
            self._counts["corrections"] += len(ops)
            self._pending.extend(ops)
            self._woken(self)

    def close(self) -> None:
        """Follow it no more."""
        for feed in self.feeds:
            feed.close()

    # Inside.

    def _change(self) -> None:
        self._changed = True
        self._woken(self)

    def _gather(self) -> None:
        """Ask what all replicas must be told."""
        if self._retells and not any(feed.doubted for feed in self.feeds):
            self._retells = False
            self._residency.retell()
            self._changed = True
        if not self._changed:
            return
        self._changed = False
        now_us = max(self._now_us(), self._told_us + 1)
        ops: list[Op] = [*self._residency.changes(self.worker_id, now_us)]
        if not ops:
            return
        if isinstance(ops[0], Forget):
            del ops[0]
            if self._forgets:
                ops.insert(0, Forget(self.worker_id, self._lost_before_us(now_us)))
        self._forgets = False
        self._told_us = now_us
        self._pending.extend(ops)

    def _lost_before_us(self, now_us: int) -> int:
        """Before when what was used is gone: what events told, and what no prefill under way will bring."""
        oldest_us = self._fleet.loads.oldest_prefill_us(self.local.worker.slot)
        return max(self._told_us + 1, min(now_us, oldest_us))

    def _see_forgets(self) -> None:
        """Somebody else may have said that the worker lost everything."""
        forgot_us = self._fleet.forgot_us(self.local.worker.slot)
        if forgot_us <= self._forgot_us:
            return
        self._forgot_us = forgot_us
        for feed in self.feeds:
            if feed.unproven:
                feed.sequence.doubted()
            elif feed.sequence.next:
                feed.doubted = True
