"""A batch that makes no sense voids what was known; one that clears the cache makes all known again."""

import asyncio

import msgspec
from fakes.kv_fleet import CLEARED, stored

from router.engines.sources import Source
from router.fleet.kv_events.feed import Feed
from router.fleet.kv_events.sequence import Loss
from router.fleet.kv_events.wire import Batch


class Owner:
    def __init__(self) -> None:
        self.events = 0
        self.losses: list[Loss] = []

    def apply(self, _: Feed, batch: Batch) -> None:
        self.events += len(batch.events)

    def lost(self, _: Feed, loss: Loss) -> None:
        self.losses.append(loss)


async def test_damage_ends_what_is_complete_once_and_a_clear_begins_it_anew() -> None:
    owner = Owner()
    feed = Feed(owner, Source(0, "ipc://x"), lambda: 7, lambda: 20.0, asyncio.Semaphore(1))
    sequence = feed.sequence
    sequence.connected()
    sequence.ended(answered=True)
    sequence.came(0, msgspec.msgpack.encode((12.5, [stored(1, 0, 1)], 0)))
    assert sequence.live
    assert (feed.understood_us, feed.lag_s, owner.events) == (7, 7.5, 1)
    sequence.came(1, b"\xc1")
    sequence.came(2, b"\xc1")
    assert not sequence.complete
    assert owner.losses == [Loss.GAP]
    sequence.came(3, msgspec.msgpack.encode((0, [CLEARED, stored(1, 0, 1)], 0)))
    assert sequence.live
    counts = feed.counts()
    assert (counts["damaged"], counts["cleared"], counts["stored"]) == (2, 1, 2)
