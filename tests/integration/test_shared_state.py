"""Several replicas in one process share one real Valkey: what one publishes, all know."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from policies import Finished, Left, Op, decode_ops, encode_ops
from router.shared import LogClock, NoListener, SharedConfig, SharedState


class OpSet:
    """The simplest fold: the set of operations seen. Finishing ``bad`` is a mistake of its own."""

    def __init__(self) -> None:
        self.ops: set[Op] = set()
        self.applied = 0

    def apply(self, op: Op) -> None:
        if isinstance(op, Finished) and op.request_id == "bad":
            raise RuntimeError("this fold cannot")
        self.applied += 1
        self.ops.add(op)

    def snapshot(self) -> bytes:
        return encode_ops(tuple(self.ops))

    def restore(self, data: bytes) -> None:
        self.ops.update(decode_ops(data)[0])


class Heard(NoListener):
    """Remembers what a test looks at."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.gaps = 0
        self.snapshots_read = 0
        self.snapshots_written = 0
        self.lefts: list[str] = []
        self.skips: list[tuple[int, str]] = []

    def degraded(self, reason: str | None) -> None:
        self.reasons.append(reason)

    def gap(self) -> None:
        self.gaps += 1

    def snapshot_read(self, size_bytes: int, took_s: float) -> None:
        self.snapshots_read += 1

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        self.snapshots_written += 1

    def replica_left(self, replica: str) -> None:
        self.lefts.append(replica)

    def skipped(self, ops: int, reason: str) -> None:
        self.skips.append((ops, reason))


class Replica:
    """A shared state with its fold, running."""

    def __init__(self, name: str, url: str, namespace: str, **config: Any) -> None:
        self.fold = OpSet()
        self.heard = Heard()
        self.clock = LogClock()
        self.state = SharedState(
            SharedConfig(url, namespace, name, **config), self.fold, self.clock, self.heard
        )
        self.task = asyncio.create_task(self.state.run())

    def finish(self, request: str) -> Finished:
        op = Finished(request, self.clock.now_us())
        self.state.publish(op)
        return op

    async def stop(self) -> None:
        """As a clean shutdown does."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


StartReplica = Callable[..., Replica]


@pytest.fixture
async def start(redis_url: str, namespace: str) -> AsyncIterator[StartReplica]:
    async with replicas(redis_url, namespace) as starter:
        yield starter


@asynccontextmanager
async def replicas(url: str, namespace: str) -> AsyncIterator[StartReplica]:
    started: list[Replica] = []

    def one(name: str, **config: Any) -> Replica:
        started.append(Replica(name, url, namespace, **config))
        return started[-1]

    yield one
    for replica in started:
        await replica.stop()


async def until(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    """Wait for something that another replica or the server brings about."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def both_ready(*some: Replica) -> None:
    async with asyncio.timeout(15):
        for replica in some:
            await replica.state.wait_ready()
            await until(lambda replica=replica: replica.state.status.connected)  # type: ignore[misc]


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_url, protocol=2) as client:
        yield client


async def test_what_one_replica_publishes_every_other_applies(start: StartReplica) -> None:
    a, b = start("a"), start("b")
    await both_ready(a, b)
    for number in range(500):
        (a, b)[number % 2].finish(f"r{number}")
    await until(lambda: len(a.fold.ops) == len(b.fold.ops) == 500)
    assert a.fold.ops == b.fold.ops
    assert not a.state.status.buffered_ops


async def test_a_replica_applies_its_own_operations_once(start: StartReplica) -> None:
    """Its entries come back from the log behind a sibling's, which shows that they were read."""
    a, b = start("a"), start("b")
    await both_ready(a, b)
    a.finish("mine")
    await until(lambda: len(b.fold.ops) == 1)
    b.finish("theirs")
    await until(lambda: len(a.fold.ops) == 2)
    assert a.fold.applied == 2


async def test_operations_published_before_the_first_contact_are_sent(start: StartReplica) -> None:
    a, b = start("a"), start("b")
    a.finish("early")
    assert a.state.status.buffered_ops == 1
    await until(lambda: b.fold.ops)


async def test_a_replica_that_starts_again_reads_what_it_wrote_in_its_former_life(
    start: StartReplica,
) -> None:
    first = start("a")
    await both_ready(first)
    op = first.finish("r1")
    await first.stop()
    second = start("a")
    await both_ready(second)
    assert op in second.fold.ops


async def test_a_late_joiner_is_warm_from_the_snapshot_and_the_log_behind_it(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a = start("a", snapshot_interval_s=0.3, trim_margin_s=0.0)
    await both_ready(a)
    b = start("b", snapshot_interval_s=3600)
    await both_ready(b)
    for number in range(300):
        b.finish(f"r{number}")
        if not number % 100:
            await asyncio.sleep(0.005)
    await until(lambda: len(a.fold.ops) == 300)
    seen = a.heard.snapshots_written
    await until(lambda: a.heard.snapshots_written > seen + 1)
    b.finish("after the snapshot")
    late = start("late", snapshot_interval_s=3600)
    await both_ready(late)
    await until(lambda: len(late.fold.ops) == 301)
    assert late.heard.snapshots_read == 1
    # The joiner's own log read was short: the fold got most from the snapshot.
    assert late.fold.applied < 301


async def test_a_snapshot_trims_the_log_behind_it(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """Redis trims whole nodes of 100 entries, so some more than the newest may stay."""
    key = f"cw:{{{namespace}}}:log"
    old = encode_ops([Finished("old", 1)])
    for number in range(1000):
        await redis.xadd(key, {"v": 1, "r": "gone", "o": old}, id=f"1000-{number + 1}")
    a = start("a", snapshot_interval_s=0.2, trim_margin_s=0.5)
    await both_ready(a)
    a.finish("new")
    async with asyncio.timeout(15):
        while await redis.xlen(key) > 101:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    fields = await redis.hgetall(f"cw:{{{namespace}}}:snap")
    assert fields[b"v"] == b"1"


async def test_only_the_holder_of_the_lease_writes_and_another_takes_over(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    lease = f"cw:{{{namespace}}}:lease"
    await redis.set(lease, "somebody else", px=60_000)
    a, b = start("a", snapshot_interval_s=0.1), start("b", snapshot_interval_s=0.1)
    await both_ready(a, b)
    a.finish("r1")
    # Two full rounds of looking at it: neither may write.
    for _ in range(2):
        await until(lambda: b.fold.ops)
        await asyncio.sleep(1.3)
    assert not a.heard.snapshots_written
    assert not b.heard.snapshots_written
    await redis.delete(lease)
    await until(lambda: a.heard.snapshots_written or b.heard.snapshots_written)


async def test_a_clean_shutdown_says_so_and_leaves_no_heartbeat(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a, b = start("a"), start("b")
    await both_ready(a, b)
    await until(lambda: "b" in a.state.status.replicas)
    b.finish("last words")
    await b.stop()
    await until(lambda: any(isinstance(op, Left) and op.replica == "b" for op in a.fold.ops))
    assert any(isinstance(op, Finished) for op in a.fold.ops)
    await until(lambda: a.state.status.replicas == ("a",))
    assert not await redis.exists(f"cw:{{{namespace}}}:replica:b")
    assert await redis.zrange(f"cw:{{{namespace}}}:replicas", 0, -1) == [b"a"]
    assert not a.heard.lefts


async def test_when_a_heartbeat_expires_all_say_the_same_left(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    seen_us = time.time_ns() // 1000
    await redis.zadd(f"cw:{{{namespace}}}:replicas", {"dead": seen_us})
    a, b = start("a", heartbeat_ttl_s=0.6), start("b", heartbeat_ttl_s=0.6)
    await both_ready(a, b)
    await until(lambda: a.state.status.replicas == b.state.status.replicas == ("a", "b"))
    await until(lambda: a.fold.ops == b.fold.ops == {Left("dead", seen_us + 600_000)})


async def test_a_replica_that_was_given_up_goes_on(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a, b = start("a"), start("b")
    await both_ready(a, b)
    a.state.publish(Left("b", a.clock.now_us()))
    await until(lambda: b.fold.ops)
    op = b.finish("still here")
    await until(lambda: op in a.fold.ops)
    await until(lambda: "b" in a.state.status.replicas)


async def test_operations_and_entries_of_the_future_are_skipped_and_counted(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a = start("a")
    await both_ready(a)
    known = Finished("known", 7)
    mixed = msgspec.msgpack.encode([[99, "whatever", 1], known])
    key = f"cw:{{{namespace}}}:log"
    await redis.xadd(key, {"v": 1, "r": "new", "o": mixed})
    await redis.xadd(key, {"v": 2, "r": "new", "o": mixed})
    await redis.xadd(key, {"v": 1, "r": "new", "o": b"\xc1"})
    await redis.xadd(key, {"unheard": "of"})
    await until(lambda: a.state.status.skipped_ops == 4)
    assert a.fold.ops == {known}
    assert a.heard.skips == [
        (1, "unknown_op"),
        (1, "unknown_version"),
        (1, "unknown_op"),
        (1, "unknown_version"),
    ]


async def test_an_operation_that_cannot_be_applied_does_not_stop_the_reader(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a = start("a")
    await both_ready(a)
    ops = [Finished("bad", 1), Finished("good", 2)]
    await redis.xadd(f"cw:{{{namespace}}}:log", {"v": 1, "r": "x", "o": encode_ops(ops)})
    await until(lambda: a.fold.ops)
    assert a.fold.ops == {ops[1]}
    assert a.heard.skips == [(1, "failed")]
