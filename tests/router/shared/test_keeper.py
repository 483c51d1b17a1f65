"""When a snapshot is due, and who writes it. On a real Valkey; the log's reader is played by the test."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.loads import FakeLoads

from policies import Finished, LoadVectors, encode_op
from router.shared import LogClock, NoListener
from router.shared.degraded_reasons import DegradedReasons
from router.shared.keeper import HURRY_ENTRIES, SnapshotKeeper
from router.shared.keys import Keys
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import PlacedForms
from router.shared.publisher import Publisher, PublisherRules
from router.shared.server import RedisLink
from router.shared.snapshot import SnapshotStore
from router.shared.streams import START, stream_id

VERSION = 3
NEVER_S = 3600.0


class Fold:
    snapshot_version = VERSION
    left_out_ops = 0

    def snapshot_steps(self) -> Iterator[bytes | None]:
        yield b"everything"


@dataclass
class Replica:
    """A keeper and what it looks at."""

    keeper: SnapshotKeeper
    reader: SimpleNamespace
    publisher: Publisher
    link: RedisLink
    keys: Keys

    async def look(self) -> bool:
        return await self.keeper.look(self.link, self.link)

    async def head(self) -> dict[bytes, bytes]:
        fields: list[bytes] = await self.link.call("HGETALL", self.keys.snapshot)
        return dict(zip(fields[::2], fields[1::2], strict=True))

    async def marks(self) -> int:
        entries = await self.link.call("XRANGE", self.keys.log, "-", "+")
        return sum(b"s" in fields for _, fields in entries)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, 5.0)
    yield link
    await link.aclose()


def replica(
    link: RedisLink,
    namespace: str,
    name: str = "a",
    snapshot_interval_s: float = NEVER_S,
    waits: Callable[[], bool] = lambda: False,
    hold_s: float = NEVER_S,
) -> Replica:
    keys, writer = Keys(namespace), f"{name}/1".encode()
    publisher = Publisher(
        writer,
        keys,
        NoListener(),
        DegradedReasons(NoListener()),
        presence := PeerPresence(lambda: 0),
        PlacedForms("me"),
        LoadVectors(FakeLoads(), LogClock().now_us, lambda: presence.alone, time.monotonic),
        PublisherRules(0.0, 2, 1000),
    )
    store = SnapshotStore(writer, keys, NoListener(), 10.0, VERSION)
    reader = SimpleNamespace(position=(1000, 0), entries=0, marked=START, cold=False)
    keeper = SnapshotKeeper(
        snapshot_interval_s,
        LogClock(),
        cast(Any, Fold()),
        store,
        cast(Any, reader),
        publisher,
        waits,
        hold_s,
    )
    keeper.connected()
    return Replica(keeper, reader, publisher, link, keys)


async def test_a_fresh_replica_on_an_empty_redis_waits_one_interval(link: RedisLink, namespace: str) -> None:
    waiting = replica(link, namespace)
    assert await waiting.look()
    assert not await waiting.head()
    done = replica(link, namespace, snapshot_interval_s=0.0)
    assert await done.look()
    assert (await done.head())[b"id"] == stream_id(done.reader.position).encode()
    assert not await done.marks()


async def test_one_survivor_refills_an_empty_redis_at_once_and_asks_all_to_merge_it(
    link: RedisLink, namespace: str
) -> None:
    first, second = replica(link, namespace), replica(link, namespace, "b")
    for survivor in (first, second):
        survivor.keeper.refill((1000, 0))
    assert await first.look()
    assert (await first.head())[b"r"] == b"a/1"
    assert await first.marks() == 1
    second.reader.marked = (1001, 0)  # it has read the mark and merged
    assert await second.look()
    assert await first.look()
    assert await first.marks() == 1
    assert (await first.head())[b"r"] == b"a/1"


async def test_a_mark_that_is_older_than_what_a_survivor_wrote_last_does_not_have_that(
    link: RedisLink, namespace: str
) -> None:
    """As after a split brain: the others' mark is from the failover, and this replica wrote on elsewhere."""
    one = replica(link, namespace)
    one.keeper.refill((2000, 0))
    one.reader.marked = (1999, 7)
    assert await one.look()
    assert await one.marks() == 1


async def test_what_was_dropped_goes_into_a_marked_snapshot_and_what_is_buffered_to_the_log(
    link: RedisLink, namespace: str
) -> None:
    one = replica(link, namespace)
    for number in range(3):
        one.publisher.put(encode_op(Finished(f"r{number}", number)))
    assert await one.look()
    assert await one.marks() == 1
    assert not len(one.publisher)
    assert await one.look()
    assert await one.marks() == 1


async def test_a_snapshot_that_vanished_is_noticed_and_written_again(link: RedisLink, namespace: str) -> None:
    one = replica(link, namespace)
    one.keeper.refill(START)
    assert await one.look()
    assert one.keeper.at_us is not None
    await link.call("DEL", one.keys.snapshot)
    assert not await one.look()
    assert one.keeper.at_us is None
    one.reader.position = (9_000_000_000_000, 0)
    assert await one.look()
    assert await one.head()


async def test_an_unsound_snapshot_is_replaced_by_a_warm_replica_and_not_by_a_cold_one(
    link: RedisLink, namespace: str
) -> None:
    one = replica(link, namespace)
    one.keeper.refill(START)
    assert await one.look()
    await link.call("HSET", one.keys.snapshot, "bad", 1)
    one.reader.cold = True
    assert await one.look()
    assert b"bad" in await one.head()
    one.reader.cold = False
    assert await one.look()
    assert b"bad" not in await one.head()


async def test_a_snapshot_of_a_newer_version_is_left_alone(link: RedisLink, namespace: str) -> None:
    one = replica(link, namespace, snapshot_interval_s=0.0)
    now_us = LogClock().now_us()
    await link.call("HSET", one.keys.snapshot, "v", VERSION + 1, "id", "1-0", "at", now_us)
    one.keeper.refill(START)
    assert await one.look()
    assert (await one.head())[b"v"] == str(VERSION + 1).encode()


async def test_too_much_log_behind_a_snapshot_makes_the_next_one_due(link: RedisLink, namespace: str) -> None:
    one = replica(link, namespace)
    one.keeper.refill(START)
    assert await one.look()
    one.reader.position, one.reader.entries = (2000, 0), 10
    assert await one.look()
    assert (await one.head())[b"id"] == b"1000-0"
    one.reader.entries = 1_000_000
    one.reader.position = (9_000_000_000_000, 0)
    assert await one.look()
    assert (await one.head())[b"id"] == b"9000000000000-0"


async def test_what_takes_long_to_write_is_written_half_of_the_time_unless_the_log_grows_too_fast(
    link: RedisLink, namespace: str
) -> None:
    """A sibling wrote one that began 20 s ago, so the next one is due 40 s after that began."""
    one = replica(link, namespace, snapshot_interval_s=1.0)
    one.keeper.refill(START)
    assert await one.look()
    began_us = LogClock().now_us() - 20_000_000
    await link.call("HSET", one.keys.snapshot, "at", began_us, "id", "1001-0")
    one.reader.position = (9_000_000_000_000, 0)
    assert await one.look()
    one.reader.entries = HURRY_ENTRIES - 1
    assert await one.look()
    assert (await one.head())[b"id"] == b"1001-0"
    one.reader.entries = HURRY_ENTRIES
    assert await one.look()
    assert (await one.head())[b"id"] == b"9000000000000-0"


async def test_a_snapshot_hurries_once_the_log_has_grown_too_much_behind_it(
    link: RedisLink, namespace: str
) -> None:
    one = replica(link, namespace)
    asked: list[bool] = []

    async def write(*_: object, hurries: Callable[[], bool], **__: object) -> None:
        asked.append(hurries())
        one.reader.entries += HURRY_ENTRIES
        asked.append(hurries())

    one.keeper._store.write = write  # type: ignore[method-assign,assignment]
    one.reader.entries = 5
    one.keeper.refill(START)
    assert await one.look()
    assert asked == [False, True]


@pytest.mark.parametrize(
    "field",
    [
        {"v": 999, "at": 1},  # of a version that no replica has written for ten minutes
        {"v": 999, "at": 2**60},
        {"v": "junk"},
        {"at": 2**60},  # never due
        {"id": "99999999999999-0"},  # a place that the log has not come to
        {"mark": "99999999999999-0"},
        {"n": 10**12},
        {"name": b"\xff"},
        {"size": "many"},
    ],
    ids=str,
)
async def test_no_head_of_a_snapshot_keeps_the_next_one_from_being_written(
    link: RedisLink, namespace: str, field: dict[str, bytes | str | int]
) -> None:
    one = replica(link, namespace, snapshot_interval_s=0.0)
    await link.call("XADD", one.keys.log, "1000-0", "v", 1)
    assert await one.look()
    for name, value in field.items():
        await link.call("HSET", one.keys.snapshot, name, value)
    one.reader.position = (2000, 0)
    assert await one.look()
    head = await one.head()
    assert (head[b"v"], head[b"id"], head.get(b"mark")) == (str(VERSION).encode(), b"2000-0", None)


async def test_a_lease_that_never_ends_keeps_nobody_from_writing(link: RedisLink, namespace: str) -> None:
    one = replica(link, namespace, snapshot_interval_s=0.0)
    await link.call("SET", one.keys.lease, "for ever")
    assert await one.look()
    assert (await one.head())[b"r"] == b"a/1"
    await link.call("LPUSH", one.keys.lease, "another type")
    await link.call("DEL", one.keys.snapshot)
    assert not await one.look()  # it is gone
    assert await one.look()
    assert (await one.head())[b"r"] == b"a/1"


async def test_a_snapshot_of_another_type_is_replaced(link: RedisLink, namespace: str) -> None:
    one = replica(link, namespace, snapshot_interval_s=0.0)
    await link.call("SET", one.keys.snapshot, "junk")
    assert await one.look()
    assert (await one.head())[b"r"] == b"a/1"


async def test_a_snapshot_waits_for_prompts_that_were_asked_for_but_not_for_long(
    link: RedisLink, namespace: str
) -> None:
    missing = [True]
    one = replica(link, namespace, waits=lambda: bool(missing), snapshot_interval_s=0.0)
    assert await one.look()
    assert not await one.head()
    missing.clear()
    assert await one.look()
    assert await one.head()
    patient = replica(link, namespace + "2", waits=lambda: True, hold_s=0.0, snapshot_interval_s=0.0)
    assert await patient.look()
    assert await patient.head()
