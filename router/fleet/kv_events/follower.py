"""The KV events of a worker, or of one of its ranks, and the operations that all replicas get of them.

    feeds (one per data-parallel rank) ──events──> residency ──coalesced──> Insert, Trim, ... in the log
                                                       └── all of it known? ──> Tracked

    silent       its engine publishes no events, or their endpoints are unknown
    refused      the gateway may not connect to its events
    connecting   no connection yet, or none any more
    joining      old batches are asked for
    partial      the events are true, but not complete: history describes it
    live         everything its engine holds is known: its events describe it (`state.slot_registers`)

After a restart, or a gap that hides removals, earlier use is forgotten up to the oldest prefill still under
way there, whose blocks are yet to come. Then, or while it is deaf for `DEAF_S`, history describes the worker;
history that described it anyway survives a gap.

A restart or flush that another source reports may precede its events. The tree forgets at once, and the next
batch decides: if it neither clears the cache nor comes from another process, everything is published again.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from policies import Forget, Op, Tracked, Worker
from radix.residency import Residency
from router.engines.sources import Source
from router.fleet.core import Core
from router.fleet.kv_events.feed import Feed
from router.fleet.kv_events.sequence import Loss
from router.fleet.kv_events.wire import Batch
from router.fleet.local_worker import LocalWorker
from router.log_pace import LogPace

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

DEAF_S = 10.0
"""Seconds without a connection that are no short trouble."""

SPARED_S = 300.0
"""Seconds of recent use that are not compared with the engine's blocks. Most differences there are right:
prompts with images, whose events have no matching token ids."""

OPS_AT_ONCE = 200
"""Operations that a worker publishes between two looks at the clock: a millisecond or two."""

Start = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]


class State(StrEnum):
    """Progress of following a worker."""

    SILENT = "silent"
    REFUSED = "refused"
    CONNECTING = "connecting"
    JOINING = "joining"
    PARTIAL = "partial"
    LIVE = "live"


class Follower:
    """One followed worker, with a feed per data-parallel rank; `detail` says why there are none.

    A worker whose ranks are places has a follower of each of them, with one feed.
    """

    def __init__(
        self,
        local: LocalWorker,
        place: Worker,
        core: Core,
        residency: Residency,
        *,
        now_unix_s: Callable[[], float],
        woken: "Callable[[Follower], None]",
    ) -> None:
        self.local = local
        self.place = place
        self.worker_id = place.worker_id
        self.feeds: list[Feed] = []
        self.detail = "its endpoints are not known yet"
        self.refused = False
        self._fleet = core.fleet
        self._log = core.log
        self._residency = residency
        self._now_unix_s = now_unix_s
        self._woken = woken
        self._pending: deque[Op] = deque()
        self._changed = False
        self._searched = False  # its publishers are known, or that there are none
        self._forgets = False
        self._retells = False
        self._published_us = 0
        self._forgot_us = core.fleet.forgot_us(place.slot)
        self._connected_us = core.log.now_us()
        self._counts: Counter[str] = Counter()
        self._pace = LogPace()

    # State for operators and metrics

    @property
    def connected(self) -> bool:
        """True if all of its publishers are connected."""
        return all(feed.connected for feed in self.feeds)

    @property
    def deaf_s(self) -> float:
        """Seconds since all publishers were connected."""
        return (self._log.now_us() - self._connected_us) / 1e6

    @property
    def asking(self) -> bool:
        """True while an answer is awaited that may change the known blocks."""
        return any(feed.sequence.asked is not None for feed in self.feeds)

    @property
    def knows_all(self) -> bool:
        """True if everything its engine holds is known."""
        return (
            bool(self.feeds)
            and all(feed.sequence.complete for feed in self.feeds)
            and self._residency.readable
        )

    @property
    def state(self) -> State:
        """Current progress."""
        if not self.feeds:
            return State.REFUSED if self.refused else State.SILENT
        if not self.connected:
            return State.CONNECTING
        if self.asking:
            return State.JOINING
        return State.LIVE if self.knows_all else State.PARTIAL

    @property
    def settled(self) -> bool:
        """True if everything that was read is published."""
        return not (self._changed or self._pending)

    @property
    def blocks(self) -> int:
        """KV blocks of its engine that are followed."""
        return self._residency.blocks

    @property
    def opaque_blocks(self) -> int:
        """Further blocks of unknown tokens."""
        return self._residency.opaque

    @property
    def lag_s(self) -> float | None:
        """Greatest age of a rank's last batch when it was read; None for none."""
        return max((feed.lag_s for feed in self.feeds if feed.lag_s is not None), default=None)

    def counts(self) -> Counter[str]:
        """Batches, events, losses and operations by name."""
        counts = Counter(self._counts)
        for feed in self.feeds:
            counts.update(feed.counts())
        return counts

    # Owner of the feeds

    def apply(self, feed: Feed, batch: Batch) -> None:
        """Apply a feed's batch."""
        if feed.doubted:
            feed.doubted = False
            self._retells = self._retells or not batch.clears
        self._forgets = self._forgets or batch.clears
        self._residency.apply(feed.source.rank, batch.events)
        self._change()

    def lost(self, feed: Feed, loss: Loss) -> None:
        """Void a feed's earlier batches."""
        feed.doubted = False
        # History stays only if it described the worker, and no batches from the beginning replace it.
        self._forgets = self._forgets or loss is not Loss.GAP or feed.sequence.complete
        self._residency.lost(feed.source.rank)
        self._change()
        self._counts[loss.value] += 1
        if not feed.understood_us or loss is Loss.AGAIN:
            return
        left_out = self._pace.due(loss.value)
        if left_out is not None:
            logger.warning(
                "a worker's KV events are void: %s; history describes its cache meanwhile",
                "its engine is another process" if loss is Loss.RESTART else "some are missing for good",
                extra={
                    "event": "kv_events.lost",
                    "worker_id": self.worker_id,
                    "rank": feed.source.rank,
                    "reason": loss.value,
                    "left_out": left_out,
                },
            )

    # Calls of the loop

    def open(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        places: Sequence[tuple[Source, str, str | None]],
        asking: asyncio.Semaphore,
    ) -> None:
        """Subscribe to publishers, each with its address and the one for old batches; may raise `OSError`."""
        self._searched = True
        self.refused, self.detail = False, "" if places else "its engine publishes no events"
        self._connected_us = self._log.now_us()
        try:
            for source, endpoint, replay_at in places:
                feed = Feed(self, source, self._log.now_us, self._now_unix_s, asking)
                feed.open(context, endpoint, replay_at, partial(self._woken, self))
                self.feeds.append(feed)
        except OSError:
            self.close()
            self.feeds.clear()
            raise
        self._woken(self)

    def refuse(self, detail: str) -> None:
        """Note why it cannot be followed."""
        if (self.refused, self.detail) != (True, detail):
            logger.warning(
                "a worker's KV events cannot be followed",
                extra={"event": "kv_events.refused", "worker_id": self.worker_id, "detail": detail},
            )
        self._searched, self.refused, self.detail = True, True, detail

    def read(self, start: Start) -> bool:
        """Apply a bounded number of batches; return True if there were any."""
        came = False
        for feed in self.feeds:
            came = feed.read(start) or came
        return came

    def arm(self) -> None:
        """Wake the owner when there is something to read; nothing is left."""
        for feed in self.feeds:
            feed.arm()

    def check(self, start: Start) -> None:
        """Check connections and publish `Tracked`; called every second or so."""
        now_us = self._log.now_us()
        for feed in self.feeds:
            feed.check(start)
        if self.connected:
            self._connected_us = now_us
        self._see_forgets()
        deaf = self.deaf_s > DEAF_S
        if not self._searched or (self.asking and not deaf):
            return
        exact, tracked = self.knows_all and not deaf, self._fleet.tracks(self.worker_id)
        if exact and not tracked and not self.settled:
            return  # publish all blocks first
        if exact != tracked:
            self._log.publish(Tracked(self.worker_id, now_us, self._log.replica, exact))
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
        """Publish a bounded number of operations; return True if there are more."""
        if not self._pending:
            self._gather()
        for _ in range(min(len(self._pending), OPS_AT_ONCE)):
            op = self._pending.popleft()
            self._log.publish(op)
            if isinstance(op, Forget):
                self._forgot_us = max(self._forgot_us, op.before_us)
                self._counts["forgets"] += 1
        return bool(self._pending)

    def compare(self) -> None:
        """Correct a part of the tree by the engine's blocks, if all of them are known.

        Before that is published, the tree is bounded by the worker's believed capacity. An engine with
        more, in host memory say, would be corrected without end, and never `settled`.
        """
        if not self.settled or self.state is not State.LIVE or not self._fleet.tracks(self.worker_id):
            return
        slot, now_us = self._slot, max(self._log.now_us(), self._published_us + 1)
        before_us = min(now_us - round(SPARED_S * 1e6), self._fleet.loads.oldest_prefill_us(slot))
        ops = self._residency.reconcile(self._fleet.tree, slot, self.worker_id, now_us, before_us)
        if ops:
            self._published_us = now_us
            self._counts["corrections"] += len(ops)
            self._pending.extend(ops)
            self._woken(self)

    def close(self) -> None:
        """Unsubscribe."""
        for feed in self.feeds:
            feed.close()

    # Inside.

    @property
    def _slot(self) -> int:
        """Slot of the worker or rank; another one if it was removed and came back."""
        worker = self._fleet.worker(self.worker_id)
        return self.place.slot if worker is None else worker.slot

    def _change(self) -> None:
        self._changed = True
        self._woken(self)

    def _gather(self) -> None:
        if self._retells and not any(feed.doubted for feed in self.feeds):
            self._retells = False
            self._residency.retell()
            self._changed = True
        if not self._changed:
            return
        self._changed = False
        now_us = max(self._log.now_us(), self._published_us + 1)
        ops: list[Op] = [*self._residency.changes(self.worker_id, now_us)]
        if not ops:
            return
        if isinstance(ops[0], Forget):
            del ops[0]
            if self._forgets:
                ops.insert(0, Forget(self.worker_id, self._lost_before_us(now_us)))
        self._forgets = False
        self._published_us = now_us
        self._pending.extend(ops)

    def _lost_before_us(self, now_us: int) -> int:
        """Log time before which use is void: prefills still under way are yet to come."""
        oldest_us = self._fleet.loads.oldest_prefill_us(self._slot)
        return max(self._published_us + 1, min(now_us, oldest_us))

    def _see_forgets(self) -> None:
        """Doubt the feeds if another source reports that the worker lost everything."""
        forgot_us = self._fleet.forgot_us(self._slot)
        if forgot_us <= self._forgot_us:
            return
        self._forgot_us = forgot_us
        for feed in self.feeds:
            if feed.unproven:
                feed.sequence.doubted()
            elif feed.sequence.next:
                feed.doubted = True
