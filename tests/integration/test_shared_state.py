"""Several replicas in one process share one real Valkey: all learn what one publishes."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.loads import AnyKind, FakeLoads
from redis.asyncio import Redis
from xxhash import xxh3_64_hexdigest

from loadtest.chaos import ClusterGroup, SentinelGroup, TcpProxy, ValkeyServer
from policies import Finished, FirstToken, Left, LoadVector, Op, Placed, decode_ops, encode_ops
from router.shared import EmbeddedValkey, Hooks, LogClock, NoListener, SharedState, SharingRules, Warming
from router.shared.address import Endpoint
from router.shared.connection import Connection
from router.shared.keys import Keys
from router.shared.placed_forms import Onward, decode_entry


class OpSet:
    """The simplest fold: the set of operations seen. Finishing ``bad`` raises an error of the fold itself."""

    def __init__(self) -> None:
        self.ops: set[Op] = set()
        self.applied = 0
        self.load_reports = FakeLoads()
        self.handlers = AnyKind(self.apply)

    def apply(self, op: Op) -> None:
        if isinstance(op, Finished) and op.request_id == "bad":
            raise RuntimeError("this fold cannot")
        self.applied += 1
        self.ops.add(op)

    left_out_ops = 0

    def digests(self) -> dict[int, list[int]]:
        return {}

    def words(self, tags: Collection[int]) -> Iterator[Op]:
        return iter(())

    @property
    def snapshot_version(self) -> int:
        return 7

    def snapshot_steps(self) -> Iterator[bytes | None]:
        for op in tuple(self.ops):
            yield None
            yield encode_ops((op,))

    def restore_steps(
        self, pieces: Sequence[bytes], own: str, *, missed: bool
    ) -> Generator[float, None, int]:
        skipped = 0
        for number, piece in enumerate(pieces):
            yield number / len(pieces)
            decoded = decode_ops(piece)
            self.ops.update(decoded.ops)
            skipped += decoded.invalid
        return skipped


class Heard(NoListener):
    """Remembers the calls that a test looks at."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.gaps = 0
        self.snapshots_read = 0
        self.snapshots_written = 0
        self.lefts: list[str] = []
        self.refused: list[str] = []
        self.skips: list[tuple[int, str]] = []

    def degraded(self, reason: str | None) -> None:
        self.reasons.append(reason)

    def gap(self) -> None:
        self.gaps += 1

    def snapshot_read(self, size_bytes: int, took_s: float) -> None:
        self.snapshots_read += 1

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        self.snapshots_written += 1

    def snapshot_refused(self, reason: str) -> None:
        self.refused.append(reason)

    def replica_left(self, replica: str) -> None:
        self.lefts.append(replica)

    def skipped(self, ops: int, reason: str) -> None:
        self.skips.append((ops, reason))


class Replica:
    """A shared state with its fold, running."""

    def __init__(
        self,
        name: str,
        url: str,
        namespace: str,
        fold: OpSet | None = None,
        *,
        trim_margin_s: float = 10.0,
        **rules: Any,
    ) -> None:
        margin = {"trim_margin_s": trim_margin_s}
        self.fold = fold or OpSet()
        self.heard = Heard()
        self.clock = LogClock()
        self.given_up: list[int] = []
        self.state = SharedState(
            type("Rules", (SharingRules,), margin)(namespace=namespace, **rules),
            url,
            name,
            self.fold,
            self.clock,
            self.heard,
            Hooks(on_given_up=self.given_up.append),
        )
        self.task = asyncio.create_task(self.state.run())

    def finish(self, request: str) -> Finished:
        op = Finished(request, self.clock.now_us())
        self.state.publish(op)
        return op

    async def stop(self) -> None:
        """End as in a clean shutdown."""
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


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait for an effect of another replica or the server."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def degraded(*some: Replica) -> None:
    for replica in some:
        await until(lambda replica=replica: replica.state.status.degraded_reason)  # type: ignore[misc]


async def well(*some: Replica) -> None:
    for replica in some:
        await until(lambda replica=replica: replica.state.status.degraded_reason is None)  # type: ignore[misc]


async def both_ready(*some: Replica) -> None:
    async with asyncio.timeout(60):
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
    """A replica's entries come back from the log behind a sibling's, so the sibling's were read."""
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
    # The joiner read little of the log itself: the fold got most from the snapshot.
    assert late.fold.applied < 301


async def test_a_snapshot_trims_the_log_behind_it(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """Redis trims whole nodes of 100 entries, so some older entries may stay."""
    key = f"cw:{{{namespace}}}:log"
    old = encode_ops([Finished("old", 1)])
    for number in range(1000):
        await redis.xadd(key, {"v": 1, "r": "gone", "o": old}, id=f"1000-{number + 1}")
    a = start("a", snapshot_interval_s=0.2, trim_margin_s=0.5)
    await both_ready(a)
    a.finish("new")
    async with asyncio.timeout(60):
        while await redis.xlen(key) > 101:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    fields = await redis.hgetall(f"cw:{{{namespace}}}:snap")
    assert fields[b"v"] == b"7"


async def test_only_the_holder_of_the_lease_writes_and_another_takes_over(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    lease = f"cw:{{{namespace}}}:lease"
    await redis.set(lease, "somebody else", px=60_000)
    a, b = start("a", snapshot_interval_s=0.1), start("b", snapshot_interval_s=0.1)
    await both_ready(a, b)
    a.finish("r1")
    # Two full rounds of looking at the log: neither replica may write.
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
    await redis.hset(Keys(namespace).onward, "dead", f"{seen_us} abcdef12 vectors")  # type: ignore[misc]
    a, b = start("a", heartbeat_ttl_s=0.6), start("b", heartbeat_ttl_s=0.6)
    await both_ready(a, b)
    await until(lambda: a.state.status.replicas == b.state.status.replicas == ("a", "b"))
    await until(lambda: a.fold.ops == b.fold.ops == {Left("dead", seen_us + 600_000)})


async def test_a_replica_that_was_given_up_goes_on(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a, b = start("a"), start("b")
    await both_ready(a, b)
    left = Left("b", a.clock.now_us())
    a.state.publish(left)
    await until(lambda: b.fold.ops)
    assert b.given_up == [left.at_us]
    assert not a.given_up
    op = b.finish("still here")
    await until(lambda: op in a.fold.ops)
    await until(lambda: "b" in a.state.status.replicas)


async def test_operations_and_entries_of_the_future_are_skipped_and_counted_and_said_once_each(
    start: StartReplica, redis: "Redis", namespace: str, caplog: pytest.LogCaptureFixture
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
    await until(lambda: sum(a.state.status.skipped_ops.values()) == 4)
    assert a.fold.ops == {known}
    assert a.heard.skips == [
        (1, "unknown_op"),
        (1, "unknown_version"),
        (1, "invalid"),
        (1, "unknown_version"),
    ]
    said = [record for record in caplog.records if getattr(record, "event", "") == "log.skipped"]
    reasons = [record.reason for record in said]  # type: ignore[attr-defined]
    assert reasons == ["unknown_op", "unknown_version", "invalid"]


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


async def test_after_a_gap_the_snapshot_is_read_again(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """A second connection trims the log past the position of a replica whose reads are held back."""
    a = start("a", snapshot_interval_s=3600, trim_margin_s=0.1)
    b = start("b", snapshot_interval_s=3600)
    await both_ready(a, b)
    b.finish("first")
    await until(lambda: a.fold.ops)
    key = f"cw:{{{namespace}}}:log"
    entries: Any = await redis.xrevrange(key, count=1)
    at_ms = int(entries[0][0].split(b"-")[0])
    missed, kept = Finished("only in the snapshot", 5), Finished("in the log", 6)
    piece = encode_ops([missed])
    # One transaction with the missed operations, the snapshot that covers them, the trim, and old news.
    async with redis.pipeline(transaction=True) as steps:
        steps.xadd(key, {"v": 1, "r": "x", "o": encode_ops([missed])}, id=f"{at_ms}-900")
        steps.hset(f"cw:{{{namespace}}}:snap:x", "0", piece)
        steps.hset(
            f"cw:{{{namespace}}}:snap",
            mapping={
                "v": 7,
                "id": f"{at_ms}-900",
                "at": at_ms * 1000,
                "r": "x",
                "name": "x",
                "n": 1,
                "size": len(piece),
                "sum": xxh3_64_hexdigest(piece),
            },
        )
        steps.xtrim(key, maxlen=0, approximate=False)
        steps.xadd(key, {"v": 1, "r": "x", "o": encode_ops([kept])}, id=f"{at_ms}-901")
        await asyncio.sleep(0.1)  # older than half the margin, without which no gap is possible
        await steps.execute()
    await until(lambda: kept in a.fold.ops)
    assert missed in a.fold.ops
    assert a.heard.gaps == 1


async def test_a_warm_replica_replaces_at_once_what_a_newcomer_could_not_read(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """The newcomer may write only after an hour, so its own state does not replace the unreadable one."""
    a = start("a", snapshot_interval_s=0.1)
    await both_ready(a)
    known = a.finish("known")
    await until(lambda: a.heard.snapshots_written > 1)
    await a.stop()
    b = start("b", snapshot_interval_s=3600)
    await both_ready(b)
    assert known in b.fold.ops
    head = await redis.hgetall(f"cw:{{{namespace}}}:snap")
    await redis.hset(f"cw:{{{namespace}}}:snap:{head[b'name'].decode()}", "0", b"damaged")
    await redis.delete(f"cw:{{{namespace}}}:log")
    await redis.xadd(f"cw:{{{namespace}}}:log", {"v": 1, "r": "x", "o": encode_ops([])}, id=head[b"id"])
    late = start("late", snapshot_interval_s=3600)
    await both_ready(late)
    assert late.heard.refused == ["damaged"]
    assert known not in late.fold.ops
    await until(lambda: b.heard.snapshots_written)
    assert not late.heard.snapshots_written
    later = start("later")
    await both_ready(later)
    assert known in later.fold.ops


async def test_a_replica_is_alive_and_says_how_far_it_is_while_it_restores(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """Restoring continues until its heartbeat was seen later than the first could have lived."""
    a = start("a", snapshot_interval_s=0.1, heartbeat_ttl_s=0.6)
    await both_ready(a)
    a.finish("known")
    await until(lambda: a.heard.snapshots_written > 2)
    released = asyncio.Event()

    class Slow(OpSet):
        def restore_steps(self, pieces: Sequence[bytes], own: str, *, missed: bool) -> Iterator[float]:
            while not released.is_set():
                yield 0.5
            yield from super().restore_steps(pieces, own, missed=missed)

    late = start("late", heartbeat_ttl_s=0.6, fold=Slow())
    await until(lambda: late.state.status.warming == Warming("snapshot", 0.55))

    async def seen_us() -> float:
        return float(await redis.zscore(f"cw:{{{namespace}}}:replicas", "late") or 0)

    first_us = await seen_us()
    async with asyncio.timeout(60):
        while await seen_us() < first_us + 1_200_000:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not late.state.status.ready
    assert "late" in a.state.status.replicas
    released.set()
    await both_ready(late)
    assert late.state.status.warming is None
    assert not a.heard.lefts


async def test_a_full_buffer_drops_the_oldest_and_the_rest_arrives(tmp_path: Path, namespace: str) -> None:
    """Redis is down: of 150 operations 100 fit. When Redis comes, a snapshot has the dropped ones."""
    url = f"unix://{tmp_path / 'valkey.sock'}"
    async with replicas(url, namespace) as start:
        a = start("a", buffer_ops_max=100)
        b = start("b")
        for number in range(150):
            a.finish(f"r{number}")
        assert (a.state.status.buffered_ops, a.state.status.dropped_ops) == (100, 50)
        await until(lambda: a.state.status.degraded_reason)
        async with EmbeddedValkey(tmp_path):
            await both_ready(a, b)
            await until(lambda: b.fold.ops >= a.fold.ops)
            assert len({op for op in b.fold.ops if isinstance(op, Finished)}) == 150
            assert a.state.status.degraded_reason is None
            await a.stop()
            await b.stop()


async def test_a_replica_that_dropped_operations_reserves_anew_what_is_in_flight(
    tmp_path: Path, namespace: str
) -> None:
    """They may include the end of a request, which no other replica would learn."""
    url = f"unix://{tmp_path / 'valkey.sock'}"
    async with replicas(url, namespace) as start:
        a, b = start("a", buffer_ops_max=100), start("b")
        for number in range(150):
            a.finish(f"r{number}")
        newest_us = max(op.at_us for op in a.fold.ops if isinstance(op, Finished))
        async with EmbeddedValkey(tmp_path):
            await both_ready(a, b)
            await until(lambda: a.given_up)
            (left_us,) = a.given_up
            assert left_us > newest_us
            await until(lambda: Left("a", left_us) in b.fold.ops)
            assert not b.given_up
            await a.stop()
            await b.stop()


async def test_a_replica_killed_and_started_again_under_its_id_releases_what_its_former_life_had_in_flight(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """Its heartbeat never stops, so no sibling reports that it left."""
    b = start("b")
    await both_ready(b)
    beat_us = b.clock.now_us()
    await redis.zadd(f"cw:{{{namespace}}}:replicas", {"a": beat_us})
    a = start("a")
    await both_ready(a)
    await until(lambda: a.given_up)
    (left_us,) = a.given_up
    assert left_us > beat_us
    await until(lambda: Left("a", left_us) in b.fold.ops)
    assert not b.given_up


async def test_after_redis_lost_the_log_every_replica_says_again_what_is_in_flight(
    tmp_path: Path, namespace: str
) -> None:
    """The lost operations may include an end; or it came before the snapshot that a sibling starts from."""
    async with EmbeddedValkey(tmp_path) as server, replicas(server.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        old = a.finish("old")
        await until(lambda: old in b.fold.ops)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: a.given_up and b.given_up)
        await until(lambda: Left("a", a.given_up[0]) in b.fold.ops and Left("b", b.given_up[0]) in a.fold.ops)
        assert a.given_up[0] > old.at_us


async def test_a_redis_that_was_emptied_under_load_is_noticed_and_refilled(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """The log continues at once, with ids after those that were read: no entry looks older."""
    a, b = start("a", snapshot_interval_s=0.3), start("b", snapshot_interval_s=0.3)
    await both_ready(a, b)
    before = a.finish("before")
    await until(lambda: before in b.fold.ops)

    def snapshot_seen() -> bool:
        return all(replica.state.status.snapshot_age_s is not None for replica in (a, b))

    await until(snapshot_seen)
    await redis.delete(f"cw:{{{namespace}}}:log", f"cw:{{{namespace}}}:snap", f"cw:{{{namespace}}}:lease")
    during = a.finish("during")
    await until(
        lambda: any("gone from Redis" in (reason or "") for r in (a, b) for reason in r.heard.reasons)
    )
    late = start("late", snapshot_interval_s=3600)
    await until(lambda: {before, during} <= late.fold.ops)
    await until(lambda: not (a.state.status.degraded_reason or b.state.status.degraded_reason))


async def test_redis_that_comes_back_empty_is_refilled_by_a_survivor(tmp_path: Path, namespace: str) -> None:
    async with EmbeddedValkey(tmp_path) as server, replicas(server.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        old = a.finish("before the crash")
        await until(lambda: b.fold.ops)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: a.state.status.degraded_reason and b.state.status.degraded_reason)
        assert not a.state.status.connected
        during = a.finish("while Redis was gone")
        await until(lambda: a.state.status.degraded_reason is None and b.state.status.degraded_reason is None)
        await until(lambda: during in b.fold.ops)
        await until(lambda: a.heard.snapshots_written or b.heard.snapshots_written)
        late = start("late")
        await both_ready(late)
        assert {old, during} <= late.fold.ops
        assert not a.heard.lefts
        assert not b.heard.lefts
        assert None in a.heard.reasons


async def test_a_redis_that_says_nothing_degrades_before_it_is_given_up_and_publishing_goes_on(
    tmp_path: Path, namespace: str
) -> None:
    async with EmbeddedValkey(tmp_path) as server, replicas(server.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        os.kill(server.pid, signal.SIGSTOP)
        await degraded(a, b)
        assert a.heard.reasons[-1] == b.heard.reasons[-1] == "Redis has not answered for 0.25 s"
        assert a.state.status.connected
        op = a.finish("nobody listens")
        assert op in a.fold.ops
        os.kill(server.pid, signal.SIGCONT)
        await until(lambda: op in b.fold.ops)
        await well(a, b)
        assert not a.heard.gaps


async def test_a_redis_that_says_nothing_for_long_is_lost_and_found_again(
    tmp_path: Path, namespace: str
) -> None:
    async with EmbeddedValkey(tmp_path) as server, replicas(server.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        os.kill(server.pid, signal.SIGSTOP)
        await until(lambda: not a.state.status.connected and not b.state.status.connected)
        op = a.finish("nobody listens")
        os.kill(server.pid, signal.SIGCONT)
        await until(lambda: op in b.fold.ops)
        await well(a, b)
        assert not a.heard.gaps


@pytest.mark.parametrize("round_trip_s", [0.1, 0.4])
async def test_a_slow_redis_is_said_to_be_slow_and_works(
    valkey: EmbeddedValkey, namespace: str, round_trip_s: float
) -> None:
    """Also without traffic; replicas keep their connections, and recover when Redis is fast again."""
    async with (
        TcpProxy(valkey.url.removeprefix("unix://")) as proxy,
        replicas(proxy.url, namespace) as start,
        Redis.from_url(valkey.url, protocol=2) as redis,
    ):
        a, b = start(f"{namespace}-a"), start(f"{namespace}-b")
        await both_ready(a, b)
        connected = await connections(redis, namespace)
        assert len(connected) >= 4
        proxy.delay_s = round_trip_s / 2
        await degraded(a, b)
        op = a.finish("in the end")
        await until(lambda: op in b.fold.ops)
        proxy.delay_s = 0.0
        await well(a, b)
        assert connected <= await connections(redis, namespace)


async def connections(redis: "Redis", namespace: str) -> set[int]:
    """Return the connections of the replicas that have the namespace in their names."""
    listed: Any = await redis.client_list()
    return {int(client["id"]) for client in listed if namespace in client["name"]}


async def test_a_redis_that_is_slow_from_the_start_is_joined(valkey: EmbeddedValkey, namespace: str) -> None:
    async with (
        TcpProxy(valkey.url.removeprefix("unix://")) as proxy,
        replicas(proxy.url, namespace) as start,
    ):
        proxy.delay_s = 0.2
        a, b = start("a"), start("b")
        await both_ready(a, b)
        await until(lambda: any(str(reason).startswith("Redis ") for reason in a.heard.reasons))
        op = a.finish("slowly")
        await until(lambda: op in b.fold.ops)


@pytest.mark.parametrize(("option", "word"), [("maxmemory", "OOM"), ("min_replicas_to_write", "NOREPLICAS")])
async def test_a_redis_that_refuses_to_write_is_noticed_without_any_traffic(
    namespace: str, option: str, word: str
) -> None:
    async with ValkeyServer() as server, replicas(server.url, namespace) as start:
        a = start("a")
        await both_ready(a)
        await server.configure(**{option: 1})
        await degraded(a)
        assert word in str(a.state.status.degraded_reason)
        await server.configure(**{option: 0})
        await well(a)
        assert a.state.status.connected


async def test_a_log_that_may_not_be_appended_to_is_noticed_without_any_traffic(namespace: str) -> None:
    async with ValkeyServer() as server, replicas(server.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        await server.command("ACL", "SETUSER", "default", "-xadd")
        await degraded(a, b)
        assert "NOPERM" in str(a.state.status.degraded_reason)
        op = a.finish("refused for now")
        await server.command("ACL", "SETUSER", "default", "+xadd")
        await until(lambda: op in b.fold.ops)
        await well(a, b)


async def test_a_redis_that_is_read_only_or_wants_a_password_is_lost_until_it_does_not(
    namespace: str,
) -> None:
    async with ValkeyServer() as server, replicas(server.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        await server.read_only()
        await degraded(a, b)
        first = a.finish("while it is read-only")
        await server.read_only(on=False)
        await until(lambda: first in b.fold.ops)
        await well(a, b)
        await server.require_password("hunter2")
        await until(lambda: "NOAUTH" in str(a.heard.reasons) and "NOAUTH" in str(b.heard.reasons))
        assert "hunter2" not in str(a.heard.reasons)
        second = a.finish("while it wants a password")
        await server.require_password("")
        await until(lambda: second in b.fold.ops)
        await well(a, b)


async def test_a_redis_that_is_rolled_back_learns_again_what_it_forgot(namespace: str) -> None:
    """Operations after the copy are in no snapshot or log; in the end all replicas have them."""
    async with ValkeyServer() as server, replicas(server.url, namespace) as start:
        a, b = start("a", snapshot_interval_s=1.0), start("b")
        await both_ready(a, b)
        a.finish("in the copy")
        await until(lambda: b.fold.ops and a.heard.snapshots_written)
        await server.keep_copy()
        # Two replicas may stamp their operations with the same microsecond.
        forgotten = [
            replica.finish(f"forgotten {number} {whose}")
            for number in range(50)
            for whose, replica in (("a", a), ("b", b))
        ]
        await until(lambda: len(a.fold.ops) == len(b.fold.ops) == 101)
        await server.roll_back()
        await until(lambda: a.heard.gaps and b.heard.gaps)
        await well(a, b)
        late = start("late")
        await both_ready(late)
        # Each may also report that it left, since Redis forgot its requests: others read that a moment later.
        await until(lambda: a.fold.ops == b.fold.ops == late.fold.ops >= set(forgotten))


async def test_what_redis_acknowledged_and_lost_is_appended_again(namespace: str) -> None:
    async with ValkeyServer() as server, replicas(server.url, namespace) as start:
        a = start("a", snapshot_interval_s=3600)
        await both_ready(a)
        op = a.finish("acknowledged")
        await until(lambda: not a.state.status.buffered_ops)
        await server.restart(empty=True)
        async with asyncio.timeout(60):
            while True:
                entries = await server.command("XRANGE", f"cw:{{{namespace}}}:log", "-", "+")
                if any(op in decode_ops(fields[b"o"])[0] for _, fields in entries if b"o" in fields):
                    break
                await asyncio.sleep(0.02)


async def test_a_failover_by_sentinels_is_survived(namespace: str) -> None:
    async with SentinelGroup() as group, replicas(group.url, namespace) as start:
        a, b = start("a"), start("b")
        await both_ready(a, b)
        before = a.finish("before")
        await until(lambda: before in b.fold.ops)
        await (await group.primary()).kill()
        await degraded(a, b)
        during = b.finish("during")
        await until(lambda: during in a.fold.ops)
        await well(a, b)
        late = start("late")
        await both_ready(late)
        await until(lambda: {before, during} <= late.fold.ops)


async def test_a_primary_that_was_replaced_is_left_although_it_takes_writes(namespace: str) -> None:
    """It slept through a failover, say; each write it takes is lost as soon as a sentinel finds it."""
    async with contextlib.AsyncExitStack() as stack:
        old, new = [await stack.enter_async_context(ValkeyServer()) for _ in range(2)]
        watching = {"sentinel monitor main": f"127.0.0.1 {old.port} 9"}
        sentinel = await stack.enter_async_context(ValkeyServer(watching, sentinel=True))
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        start = await stack.enter_async_context(replicas(url, namespace))
        a, b = start("a"), start("b")
        await both_ready(a, b)
        op = a.finish("acknowledged by the old one")
        await until(lambda: op in b.fold.ops)
        await sentinel.command("SENTINEL", "REMOVE", "main")
        await sentinel.command("SENTINEL", "MONITOR", "main", "127.0.0.1", str(new.port), "9")
        late = start("late")
        await both_ready(late)
        await until(lambda: op in late.fold.ops)
        later = late.finish("said to the new one")
        await until(lambda: later in a.fold.ops and later in b.fold.ops)
        await well(a, b, late)


async def test_links_that_found_two_servers_are_made_again(namespace: str) -> None:
    """During a failover one connection may find the old primary, and the next one the new one."""
    async with contextlib.AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(ValkeyServer()) for _ in range(2)]
        start = await stack.enter_async_context(replicas(one.url, namespace))
        a, b = start("a"), start("b")
        await both_ready(a, b)
        elsewhere = Endpoint("127.0.0.1", other.port or 0)
        await until(lambda: a.state._blocking.connected)  # the reader connects when it first reads
        before = a.state._blocking._connection
        assert before is not None
        a.state._blocking._connection = await Connection.open(elsewhere, {}, 5.0)
        await until(lambda: a.state._blocking.endpoint == a.state._commands.endpoint != elsewhere)
        await before.aclose()
        op = b.finish("where everybody reads")
        await until(lambda: op in a.fold.ops)
        await well(a, b)


async def test_a_cluster_is_shared_and_a_slot_that_moves_is_followed(namespace: str) -> None:
    async with (
        ClusterGroup() as cluster,
        replicas("redis+cluster://" + ",".join(cluster.addresses), namespace) as start,
    ):
        a, b = start("a"), start("b")
        await both_ready(a, b)
        first = a.finish("first")
        await until(lambda: first in b.fold.ops)
        log = f"cw:{{{namespace}}}:log"
        owner = await cluster.owner(log)
        await cluster.move(log, next(server for server in cluster.servers if server is not owner))
        second = b.finish("second")
        await until(lambda: second in a.fold.ops)
        await well(a, b)
        assert not a.heard.lefts


async def test_a_redis_without_memory_degrades_and_recovers(tmp_path: Path, namespace: str) -> None:
    """The log is refused, reading goes on, and nothing is lost once there is room again."""
    async with (
        EmbeddedValkey(tmp_path) as server,
        Redis.from_url(server.url) as redis,
        replicas(server.url, namespace) as start,
    ):
        a, b = start("a"), start("b")
        await both_ready(a, b)
        await redis.config_set("maxmemory", 1)
        op = a.finish("no room")
        await until(lambda: a.state.status.degraded_reason)
        assert a.state.status.connected
        assert op not in b.fold.ops
        await redis.config_set("maxmemory", 0)
        await until(lambda: op in b.fold.ops)
        await until(lambda: a.state.status.degraded_reason is None)


async def test_a_log_that_is_flushed_while_connected_is_refilled(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a = start("a")
    await both_ready(a)
    op = a.finish("before")
    b = start("b")
    await both_ready(a, b)
    await until(lambda: op in b.fold.ops)
    await redis.delete(*[f"cw:{{{namespace}}}:{name}" for name in ("log", "snap", "replicas")])
    await until(lambda: a.heard.snapshots_written or b.heard.snapshots_written)
    late = start("late")
    await both_ready(late)
    assert op in late.fold.ops


def turn(replica: Replica, blocks: int) -> Placed:
    """Publish a turn of one conversation, which then has this many blocks."""
    path = b"".join(block.to_bytes(8, "little") for block in range(1, blocks + 1))
    now_us = replica.clock.now_us()
    op = Placed(f"r{blocks}", now_us, "w", replica.state._replica, 1, 1, 1, (path,))
    replica.state.publish(op)
    return op


def reads_on(replica: Replica) -> bool:
    """True if a replica knows that it has siblings, all of which read shortened placements."""
    return replica.state._heartbeat.onward


async def test_turns_are_told_by_their_new_part_and_read_as_they_were(start: StartReplica) -> None:
    a, b = start("a"), start("b")
    await both_ready(a, b)
    await until(lambda: reads_on(a) and reads_on(b))
    ops = []
    for blocks in (20, 22, 25, 26):
        ops.append(turn(a if blocks % 2 else b, blocks))
        await until(lambda: {*ops} <= a.fold.ops & b.fold.ops)
    assert a.state.status.onward_ops + b.state.status.onward_ops >= 2, "the last beat may have been late"
    assert a.state.status.unknown_paths == b.state.status.unknown_paths == 0


async def test_a_replica_that_reads_an_unknown_anchor_asks_for_it(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a, c = start("a"), start("c")
    await both_ready(a, c)
    await until(lambda: reads_on(a))
    first = turn(a, 20)
    await until(lambda: a.state.status.buffered_ops == 0)
    await asyncio.sleep(0.1)
    second = turn(a, 22)
    await until(lambda: a.state.status.onward_ops == 1)
    await until(lambda: a.state.status.buffered_ops == 0)
    (entry_id, _), *_ = await redis.xrange(Keys(namespace).log)
    await redis.xdel(Keys(namespace).log, entry_id)
    b = start("b")
    await both_ready(b)
    await until(lambda: second in b.fold.ops)
    assert msgspec.structs.replace(second, paths=()) in b.fold.ops, "its reservation is there at once"
    assert first not in b.fold.ops
    assert b.state.status.unknown_paths == 1
    third = turn(a, 25)
    await until(lambda: third in b.fold.ops)
    assert b.state.status.unknown_paths == 1, "a newcomer is told whole prompts first"


async def test_beside_an_older_version_prompts_are_told_whole(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a, c, keys = start("a"), start("c"), Keys(namespace)
    await both_ready(a, c)

    async def beat() -> None:
        await redis.set(keys.replica("old"), "{}", px=3000)
        await redis.zadd(keys.replicas, {"old": a.clock.now_us()})

    await until(lambda: reads_on(a))
    await beat()
    await until(lambda: a.state.status.replicas == ("a", "c", "old"))
    for blocks in (20, 22, 25):
        turn(a, blocks)
        await until(lambda: a.state.status.buffered_ops == 0)
        await beat()
    assert a.state.status.onward_ops == 0
    entries = await redis.xrange(keys.log)
    assert [decode_ops(fields[b"o"]).unknown for _, fields in entries] == [0] * len(entries)
    await redis.delete(keys.replica("old"))
    await redis.zrem(keys.replicas, "old")
    await until(lambda: reads_on(a))
    turn(a, 26)  # whole: beside the older version all replicas published everything again
    turn(a, 27)
    await until(lambda: a.state.status.onward_ops >= 1)


async def test_after_the_log_was_lost_prompts_are_told_whole_again(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    a, c = start("a"), start("c")
    await both_ready(a, c)
    await until(lambda: reads_on(a))
    turn(a, 20)
    turn(a, 22)
    await until(lambda: a.state.status.onward_ops == 1)
    await until(lambda: a.state.status.buffered_ops == 0)
    await asyncio.sleep(0.1)
    await redis.delete(Keys(namespace).log)
    found: dict[str, type] = {}
    async with asyncio.timeout(60):
        while "r20" not in found:  # operations that Redis acknowledged last are sent again
            await asyncio.sleep(0.05)
            entries = await redis.xrange(Keys(namespace).log)
            ops = [op for _, fields in entries if b"o" in fields for op in decode_entry(fields[b"o"]).ops]
            placements = [op for op in ops if isinstance(op, Placed | Onward)]
            found = {
                (op.placed if isinstance(op, Onward) else op).request_id: type(op)
                for op in placements
                if isinstance(op, Onward) or op.paths
            }
    assert found["r20"] is Placed


async def test_ends_are_told_one_by_one_only_beside_an_older_version(
    start: StartReplica, redis: "Redis", namespace: str
) -> None:
    """A new sibling may have read placements without their ends: all are published again."""
    a, b, keys = start("a"), start("b"), Keys(namespace)
    await both_ready(a, b)
    await until(lambda: a.state.status.replicas == b.state.status.replicas == ("a", "b"))
    a.fold.load_reports.untold = {Finished}
    quiet, heard = a.finish("quiet"), FirstToken("heard", a.clock.now_us())
    a.state.publish(heard)
    await until(lambda: heard in b.fold.ops)
    assert quiet in a.fold.ops
    assert quiet not in b.fold.ops
    assert a.given_up == []

    await redis.set(keys.replica("old"), "{}", px=60_000)
    await redis.zadd(keys.replicas, {"old": a.clock.now_us()})
    await redis.hset(keys.onward, "old", f"{a.clock.now_us()} abcdef12")  # type: ignore[misc]
    await until(lambda: a.given_up)
    told = a.finish("told")
    await until(lambda: {told, Left("a", a.given_up[0])} <= b.fold.ops)


async def test_what_is_in_flight_is_told_as_a_vector(start: StartReplica) -> None:
    a, b = start("a"), start("b")
    await both_ready(a, b)
    await until(lambda: a.state.status.replicas == b.state.status.replicas == ("a", "b"))
    a.fold.load_reports.untold = {Finished}
    a.fold.load_reports.due, a.fold.load_reports.inflight = True, ("w:1",)
    a.finish("r")
    await until(lambda: any(isinstance(op, LoadVector) for op in b.fold.ops))
    assert {op for op in b.fold.ops if isinstance(op, LoadVector)} <= set(a.fold.load_reports.made)
