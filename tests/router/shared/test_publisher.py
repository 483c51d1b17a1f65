"""Own operations are packed exactly like the codec's, in bounded entries, and none is lost."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes.loads import FakeLoads
from redis.asyncio import Redis

from policies import Finished, LoadVectors, Placed, decode_ops, encode_op, encode_ops
from router.shared.clock import LogClock
from router.shared.degraded_reasons import DegradedReasons
from router.shared.keys import Keys
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import Onward, PlacedForms, decode_entry
from router.shared.ports import NoListener
from router.shared.publisher import ENTRY_BYTES_MAX, ENTRY_OPS_MAX, Publisher, PublisherRules, array_header
from router.shared.server import RedisLink, RedisLost


def make(
    namespace: str,
    *,
    ops_max: int = 1000,
    bytes_max: int = 1 << 30,
    onward: bool = True,
    loads: FakeLoads | None = None,
) -> Publisher:
    listener, presence = NoListener(), PeerPresence(lambda: 1)
    return Publisher(
        b"me/1",
        Keys(namespace),
        listener,
        DegradedReasons(listener),
        presence,
        PlacedForms("me", onward=lambda: onward),
        LoadVectors(
            FakeLoads() if loads is None else loads,
            LogClock().now_us,
            lambda: presence.alone,
            time.monotonic,
        ),
        PublisherRules(0.001, ops_max, bytes_max),
    )


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, 5.0)
    yield link
    await link.aclose()


async def entries(redis_url: str, namespace: str) -> list[dict[bytes, bytes]]:
    async with Redis.from_url(redis_url, protocol=2) as redis:
        found: Any = await redis.xrange(Keys(namespace).log)
    return [fields for _, fields in found]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 65_535, 65_536])
def test_an_array_header_is_what_the_codec_writes(length: int) -> None:
    op = Finished("r", 1)
    assert array_header(length) + encode_ops([op])[1:] * length == encode_ops([op] * length)


async def test_one_flush_is_one_entry_with_the_operations_in_order(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    publisher = make(namespace)
    ops = [Finished(f"r{number}", number) for number in range(40)]
    for op in ops:
        publisher.put(encode_op(op))
    await publisher.flush(link)
    (entry,) = await entries(redis_url, namespace)
    assert entry == {b"v": b"1", b"r": b"me/1", b"o": encode_ops(ops)}
    assert not len(publisher)


async def test_large_operations_are_split_over_several_entries(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    """Three operations of 0.6 MiB: no two fit into one entry of 1 MiB."""
    publisher = make(namespace, onward=False)
    path = bytes(600 << 10)
    for number in range(3):
        publisher.put(encode_op(Placed(f"r{number}", number, "w", "me", 1, 1, 1, (path,))))
    await publisher.flush(link)
    found = await entries(redis_url, namespace)
    assert [decode_ops(entry[b"o"])[0][0].request_id for entry in found] == ["r0", "r1", "r2"]  # type: ignore[union-attr]
    assert all(len(entry[b"o"]) < ENTRY_BYTES_MAX for entry in found)


async def test_the_oldest_are_dropped_by_count_and_by_bytes_and_the_log_says_so_once(
    link: RedisLink, redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = make(namespace, ops_max=10)
    for number in range(25):
        publisher.put(encode_op(Finished(f"r{number}", number)))
    assert (len(publisher), publisher.dropped_ops) == (10, 15)
    assert [record.event for record in caplog.records] == ["log.dropped"]  # type: ignore[attr-defined]
    await publisher.flush(link)
    (entry,) = await entries(redis_url, namespace)
    assert decode_ops(entry[b"o"])[0][0] == Finished("r15", 15)

    small = make(namespace, bytes_max=100)
    for number in range(25):
        small.put(encode_op(Finished(f"r{number}", number)))
    assert 0 < len(small) < 25
    assert len(small) + small.dropped_ops == 25


async def test_what_was_not_acknowledged_stays_in_the_buffer_in_order(namespace: str, redis_url: str) -> None:
    publisher = make(namespace)
    for number in range(5):
        publisher.put(encode_op(Finished(f"r{number}", number)))
    nowhere = RedisLink("unix:///nonexistent/valkey.sock", 0.5)
    with pytest.raises(RedisLost):
        await publisher.flush(nowhere)
    await nowhere.aclose()
    assert len(publisher) == 5
    link = RedisLink(redis_url, 5.0)
    await publisher.flush(link)
    await link.aclose()
    (entry,) = await entries(redis_url, namespace)
    assert decode_ops(entry[b"o"])[0] == [Finished(f"r{number}", number) for number in range(5)]


async def test_what_was_acknowledged_last_can_be_sent_once_more(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    publisher = make(namespace)
    for number in range(3):
        publisher.put(encode_op(Finished(f"r{number}", number)))
    await publisher.flush(link)
    publisher.put(encode_op(Finished("new", 3)))
    await link.call("DEL", Keys(namespace).log)
    publisher.resend()
    assert len(publisher) == 4
    await publisher.flush(link)
    (entry,) = await entries(redis_url, namespace)
    assert [op.request_id for op in decode_ops(entry[b"o"])[0]] == ["r0", "r1", "r2", "new"]  # type: ignore[union-attr]


async def test_what_was_acknowledged_is_not_worth_dropping_anything_for(
    link: RedisLink, namespace: str
) -> None:
    publisher = make(namespace, ops_max=3)
    for number in range(3):
        publisher.put(encode_op(Finished(f"r{number}", number)))
    await publisher.flush(link)
    publisher.put(encode_op(Finished("new", 3)))
    publisher.resend()
    assert (len(publisher), publisher.dropped_ops) == (1, 0)


async def test_the_loop_sends_what_is_put_later(link: RedisLink, redis_url: str, namespace: str) -> None:
    publisher = make(namespace)
    task = asyncio.create_task(publisher.run(link))
    publisher.put(encode_op(Finished("a", 1)))
    async with asyncio.timeout(60):
        while not await entries(redis_url, namespace):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    publisher.put(encode_op(Finished("b", 2)))
    async with asyncio.timeout(60):
        while len(await entries(redis_url, namespace)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def turn(number: int, blocks: int) -> Placed:
    """Return a turn of one conversation, which then has this many blocks."""
    path = b"".join(block.to_bytes(8, "little") for block in range(1, blocks + 1))
    return Placed(f"r{number}", number, "w", "me", 1, 1, 1, (path,))


def told(entry: dict[bytes, bytes]) -> list[tuple[type, int]]:
    """Return the forms of the placements in an entry, and the number of blocks of each."""
    return [
        (type(op), len((op.placed if isinstance(op, Onward) else op).paths[0]) // 8)  # type: ignore[union-attr]
        for op in decode_entry(entry[b"o"]).ops
    ]


async def test_a_placement_goes_out_with_its_new_part_and_is_sent_again_whole(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    publisher = make(namespace)
    for number, blocks in enumerate((20, 22, 25)):
        publisher.put(encode_op(turn(number, blocks)))
        await publisher.flush(link)
    publisher.resend()
    await publisher.flush(link)
    found = [told(entry) for entry in await entries(redis_url, namespace)]
    assert found[:3] == [[(Placed, 20)], [(Onward, 2)], [(Onward, 3)]]
    assert found[3] == [(Placed, 20), (Onward, 2), (Onward, 3)], "the first one tells what the others need"


async def test_after_a_failed_flush_nothing_that_it_told_is_referred_to(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    publisher = make(namespace)
    publisher.put(encode_op(turn(0, 20)))
    nowhere = RedisLink("unix:///nonexistent/valkey.sock", 0.5)
    with pytest.raises(RedisLost):
        await publisher.flush(nowhere)
    await nowhere.aclose()
    await publisher.flush(link)
    (entry,) = await entries(redis_url, namespace)
    assert told(entry) == [(Placed, 20)]


async def test_an_entry_has_a_thousand_operations_at_most(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    publisher = make(namespace, ops_max=3000)
    for number in range(ENTRY_OPS_MAX + 1):
        publisher.put(encode_op(Finished(f"r{number}", number)))
    await publisher.flush(link)
    assert [len(decode_ops(entry[b"o"]).ops) for entry in await entries(redis_url, namespace)] == [
        ENTRY_OPS_MAX,
        1,
    ]


async def test_a_vector_comes_last_in_its_flush_and_is_not_kept(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    """If its entry is lost, all loads are published again; an entry that is sent again goes without them."""
    loads = FakeLoads()
    publisher = make(namespace, loads=loads)
    loads.due, loads.inflight = True, ("a:1",)
    publisher.put(encode_op(Finished("r", 1)))
    nowhere = RedisLink("unix:///nonexistent/valkey.sock", 0.5)
    with pytest.raises(RedisLost):
        await publisher.flush(nowhere)
    await nowhere.aclose()
    await publisher.flush(link)
    publisher.resend()
    await publisher.flush(link)
    found = [decode_ops(entry[b"o"]).ops for entry in await entries(redis_url, namespace)]
    assert found == [[Finished("r", 1), loads.made[1]], [Finished("r", 1), loads.made[2]]]
    assert [vector.full for vector in loads.made] == [True, True, True]
    assert not len(publisher)


async def test_a_vector_is_flushed_by_itself_when_it_is_due(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    loads = FakeLoads()
    publisher = make(namespace, loads=loads)
    flusher = asyncio.create_task(publisher.run(link))
    publisher.loads_changed()
    await asyncio.sleep(0.01)
    assert await entries(redis_url, namespace) == []
    loads.due, loads.inflight = True, ("a:1",)
    publisher.loads_changed()
    while not (found := await entries(redis_url, namespace)):  # noqa: ASYNC110 - another task writes it
        await asyncio.sleep(0.001)
    flusher.cancel()
    await asyncio.gather(flusher, return_exceptions=True)
    assert [decode_ops(entry[b"o"]).ops for entry in found] == [loads.made]


async def test_a_vector_waits_for_the_last_entry_of_a_flush(
    link: RedisLink, redis_url: str, namespace: str
) -> None:
    loads = FakeLoads()
    publisher = make(namespace, loads=loads, ops_max=2 * ENTRY_OPS_MAX)
    loads.due = True
    for number in range(ENTRY_OPS_MAX + 1):
        publisher.put(encode_op(Finished("r", number)))
    await publisher.flush(link)
    first, last = [decode_ops(entry[b"o"]).ops for entry in await entries(redis_url, namespace)]
    assert (len(first), last) == (ENTRY_OPS_MAX, [Finished("r", ENTRY_OPS_MAX), loads.made[0]])
