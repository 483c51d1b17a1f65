"""The reader skips its own, merges snapshots when asked, and knows when its place in the log is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence

import pytest

from policies import Finished, Left, Op, encode_ops
from router.shared.clock import LogClock
from router.shared.completing_fold import CompletingFold
from router.shared.config import Warming
from router.shared.degraded_reasons import DegradedReasons
from router.shared.keys import Keys
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import PlacedForms
from router.shared.ports import NoListener
from router.shared.reader import Reader, ReaderRules
from router.shared.redis_latency import RedisLatency
from router.shared.server import RedisLink
from router.shared.snapshot import SnapshotStore
from router.shared.streams import START, parse_id

ME, OTHER = b"me/1", b"other/1"
VERSION = 7


class Listed:
    """A fold whose snapshots are the names of what to remember."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.restored: list[bytes] = []
        self.missed: list[bool] = []

    def apply(self, op: Op) -> None:
        self.ops.append(op)

    @property
    def snapshot_version(self) -> int:
        return VERSION

    def snapshot_steps(self) -> Iterator[bytes | None]:
        raise AssertionError

    left_out_ops = 0

    def restore_steps(
        self, pieces: Sequence[bytes], own: str, *, missed: bool
    ) -> Generator[float, None, int]:
        if pieces == [b"of the future"]:
            raise ValueError("not yet")
        assert own == "me"
        self.missed.append(missed)
        for number, piece in enumerate(pieces):
            yield number / len(pieces)
            self.restored.append(piece)
        return 0


async def nothing() -> None:
    """No operations of its own wait to be sent."""


class Heard(NoListener):
    def __init__(self) -> None:
        self.applied_ops: list[int] = []

    def applied(self, ops: int, lag_s: float) -> None:
        self.applied_ops.append(ops)


class Bench:
    """A reader on a real log."""

    def __init__(self, link: RedisLink, namespace: str) -> None:
        self.link = link
        self.keys = Keys(namespace)
        self.fold = Listed()
        self.lefts: list[Left] = []
        self.degraded_reasons = DegradedReasons(NoListener())
        self.store = SnapshotStore(OTHER, self.keys, NoListener(), 10.0, VERSION)
        self.listener = Heard()
        self.siblings = 0
        self.sent: list[bytes] = []
        self.presence = PeerPresence(lambda: self.siblings)
        self.reader = Reader(
            ReaderRules(ME, "me", self.keys, 10.0, 0.05),
            CompletingFold(self.fold, PlacedForms("me"), LogClock(), self.sent.append),
            LogClock(),
            self.store,
            self.listener,
            lambda op, _writer: self.lefts.append(op),
            redis_latency=RedisLatency(self.degraded_reasons),
            presence=self.presence,
        )

    async def append(self, writer: bytes, *ops: Op) -> bytes:
        entry_id: bytes = await self.link.call(
            "XADD", self.keys.log, "*", "v", 1, "r", writer, "o", encode_ops(ops)
        )
        return entry_id

    async def write_snapshot(self, payload: bytes, covered: bytes) -> None:
        assert await self.store.acquire(self.link)
        assert await self.store.write(self.link, parse_id(covered), 1, iter([payload]), nothing, mark=False)

    async def locate(self) -> bool:
        return await self.reader.locate(self.link, self.link)

    async def read_until(self, condition: Callable[[], object]) -> None:
        task = asyncio.create_task(self.reader.run(self.link, self.link, self.link))
        try:
            async with asyncio.timeout(60):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def bench(redis_url: str, namespace: str) -> AsyncIterator[Bench]:
    link = RedisLink(redis_url, 5.0)
    yield Bench(link, namespace)
    await link.aclose()


async def test_own_entries_are_skipped_and_a_left_is_passed_on(bench: Bench) -> None:
    await bench.append(ME, Finished("mine", 1))
    await bench.append(OTHER, Finished("theirs", 2), Left("gone", 3))
    await bench.locate()
    assert not bench.reader.ready.is_set()
    await bench.read_until(bench.reader.ready.is_set)
    assert bench.fold.ops == [Finished("theirs", 2), Left("gone", 3)]
    assert bench.lefts == [Left("gone", 3)]


async def test_the_listener_is_told_of_all_entries_of_a_reply_at_once(bench: Bench) -> None:
    """Three entries of two operations, one of them from a future that no replica knows; none of our own."""
    await bench.append(OTHER, Finished("a", 1), Finished("b", 2))
    await bench.append(ME, Finished("mine", 3))
    await bench.append(OTHER, Finished("c", 4), Finished("late", 1 << 52))
    await bench.append(OTHER, Finished("d", 5), Finished("e", 6))
    await bench.locate()
    await bench.read_until(bench.reader.ready.is_set)
    assert [op.request_id for op in bench.fold.ops if isinstance(op, Finished)] == ["a", "b", "c", "d", "e"]
    assert bench.listener.applied_ops == [5]
    assert bench.reader.entries == 4
    assert bench.reader.skipped_ops == {"future": 1}


async def test_who_reads_an_entry_of_another_replica_is_not_alone(bench: Bench) -> None:
    await bench.locate()
    await bench.append(ME, Finished("mine", 1))
    await bench.read_until(lambda: bench.reader.entries == 1)
    assert bench.presence.alone
    await bench.append(OTHER, Finished("theirs", 2))
    await bench.read_until(lambda: bench.fold.ops)
    assert not bench.presence.alone


async def test_an_empty_log_is_read_to_its_end_at_once(bench: Bench) -> None:
    assert await bench.locate()
    assert bench.reader.ready.is_set()


async def test_reading_begins_behind_the_snapshot(bench: Bench) -> None:
    covered = await bench.append(OTHER, Finished("covered", 1))
    await bench.append(OTHER, Finished("behind it", 2))
    await bench.write_snapshot(b"payload", covered)
    assert bench.reader.warming == Warming("connect", 0.0)
    await bench.locate()
    await bench.read_until(bench.reader.ready.is_set)
    assert bench.fold.restored == [b"payload"]
    assert bench.fold.ops == [Finished("behind it", 2)]
    assert not bench.reader.cold


async def test_who_listens_hears_of_a_merged_snapshot_before_this_replica_is_ready(bench: Bench) -> None:
    ready: list[bool] = []
    bench.listener.snapshot_merged = lambda: ready.append(bench.reader.ready.is_set())  # type: ignore[method-assign]
    await bench.write_snapshot(b"payload", await bench.append(OTHER, Finished("covered", 1)))
    await bench.locate()
    assert ready == [False]


async def test_a_snapshot_that_cannot_be_read_leaves_the_log(bench: Bench) -> None:
    covered = await bench.append(OTHER, Finished("covered", 1))
    await bench.write_snapshot(b"of the future", covered)
    await bench.locate()
    assert bench.reader.cold
    assert bench.reader.warming == Warming("log", 0.0)
    await bench.read_until(bench.reader.ready.is_set)
    assert bench.fold.ops == [Finished("covered", 1)]
    assert bench.reader.warming is None
    head = await bench.store.head(bench.link)
    assert head is not None
    assert not head.sound


async def test_a_mark_of_another_replica_has_the_snapshot_merged(bench: Bench) -> None:
    first = await bench.append(OTHER, Finished("first", 1))
    await bench.locate()
    await bench.read_until(lambda: bench.fold.ops)
    await bench.write_snapshot(b"what the log does not tell", first)
    await bench.link.call("XADD", bench.keys.log, "*", "v", 1, "r", ME, "s", 1)
    await bench.link.call("XADD", bench.keys.log, "*", "v", 1, "r", OTHER, "s", 1)
    await bench.read_until(lambda: bench.fold.restored)
    await bench.append(OTHER, Finished("next", 2))
    await bench.read_until(lambda: len(bench.fold.ops) == 2)
    assert bench.fold.restored == [b"what the log does not tell"]
    assert bench.fold.missed == [False]
    assert not bench.reader.skipped_ops


async def test_a_log_that_was_emptied_is_noticed_and_read_from_its_start(bench: Bench) -> None:
    await bench.append(OTHER, Finished("old", 1))
    await bench.locate()
    await bench.read_until(lambda: bench.fold.ops)
    assert not await bench.reader.vanished(bench.link)
    await bench.link.call("DEL", bench.keys.log)
    assert await bench.reader.vanished(bench.link)
    assert not await bench.locate()
    assert bench.reader.position == START


async def test_a_log_that_was_rolled_back_and_has_grown_again_is_noticed(bench: Bench) -> None:
    """Its end is beyond our position again, but the entry that we read last is not in it."""
    await bench.append(OTHER, Finished("kept", 1))
    lost = await bench.append(OTHER, Finished("rolled back", 2))
    await bench.locate()
    await bench.read_until(lambda: len(bench.fold.ops) == 2)
    await bench.link.call("XDEL", bench.keys.log, lost)
    await bench.write_snapshot(b"older than the fold", b"0-1")
    assert await bench.append(OTHER, Finished("new", 3)) > lost
    assert await bench.reader.vanished(bench.link)
    assert not await bench.locate()
    assert bench.fold.missed == [True]
    await bench.read_until(lambda: Finished("new", 3) in bench.fold.ops)
    assert bench.reader.gaps == 1


async def test_a_place_that_was_trimmed_behind_a_snapshot_is_no_loss(bench: Bench) -> None:
    await bench.append(OTHER, Finished("first", 1))
    await bench.locate()
    await bench.read_until(lambda: bench.fold.ops)
    covered = await bench.append(OTHER, Finished("second", 2))
    await bench.write_snapshot(b"both", covered)
    await bench.link.call("XTRIM", bench.keys.log, "MAXLEN", 0)
    assert not await bench.reader.vanished(bench.link)
    assert await bench.locate()
    assert bench.fold.restored == [b"both"]
    assert bench.fold.missed == [True]
    assert bench.reader.gaps == 1


async def test_redis_that_refuses_to_be_read_is_a_problem_until_it_lets_us(
    bench: Bench, redis_url: str
) -> None:
    await bench.locate()
    await bench.link.call("SET", bench.keys.log, "not a stream")
    await bench.read_until(lambda: bench.degraded_reasons.reason)
    assert "WRONGTYPE" in str(bench.degraded_reasons.reason)
    await bench.link.call("DEL", bench.keys.log)
    await bench.read_until(lambda: bench.degraded_reasons.reason is None)
