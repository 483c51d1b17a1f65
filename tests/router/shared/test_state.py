"""Promises of a shared state without any Redis. With one: `tests/integration/test_shared_state.py`."""

import asyncio
import contextlib
from collections.abc import Collection, Generator, Iterator, Sequence

import pytest
from fakes.loads import AnyKind, FakeLoads
from fakes.virtual_loop import EPOCH_S, MemoryRedis, VirtualLoop, run_virtually

from policies import Finished, Op, OpRefused, Placed
from router.errors import StateError
from router.shared import Hooks, LogClock, SharedState, SharingRules, Warming

NOWHERE = "unix:///nonexistent/valkey.sock"


class Counted:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.load_reports = FakeLoads()
        self.handlers = AnyKind(self.apply)

    def apply(self, op: Op) -> None:
        self.ops.append(op)

    @property
    def snapshot_version(self) -> int:
        return 1

    def snapshot_steps(self) -> Iterator[bytes | None]:
        yield b""

    left_out_ops = 0

    def digests(self) -> dict[int, list[int]]:
        return {}

    def words(self, tags: Collection[int]) -> Iterator[Op]:
        return iter(())

    def restore_steps(
        self, pieces: Sequence[bytes], own: str, *, missed: bool
    ) -> Generator[float, None, int]:
        raise AssertionError


def make(fold: Counted, url: str = NOWHERE, namespace: str = "default") -> SharedState:
    return SharedState(SharingRules(namespace=namespace, buffer_ops_max=2), url, "a", fold, LogClock())


async def test_a_published_operation_is_applied_when_publish_returns() -> None:
    fold = Counted()
    state = make(fold)
    state.publish(Finished("r", 1))
    assert fold.ops == [Finished("r", 1)]
    assert state.status.buffered_ops == 1
    assert not state.status.connected
    assert not state.status.ready
    assert state.status.warming == Warming("connect", 0.0)
    assert state.status.replicas == ("a",)


async def test_what_cannot_be_published_is_not_applied_and_nothing_that_was_to_be_published_with_it() -> None:
    fold = Counted()
    state = make(fold)
    with pytest.raises(OpRefused):
        state.publish(Finished("r", 1), Placed("r", 1, "w", "a", 1, 1, 10**17))
    assert fold.ops == []
    assert state.status.buffered_ops == 0


async def test_what_the_fold_refuses_is_not_published() -> None:
    class Refusing(Counted):
        def apply(self, op: Op) -> None:
            raise ValueError

    state = make(Refusing())
    with pytest.raises(ValueError):
        state.publish(Finished("r", 1))
    assert state.status.buffered_ops == 0


async def test_without_redis_it_is_degraded_and_goes_on() -> None:
    fold = Counted()
    state = make(fold)
    task = asyncio.create_task(state.run())
    async with asyncio.timeout(60):
        while state.status.degraded_reason is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    for number in range(5):
        state.publish(Finished(f"r{number}", number))
    assert len(fold.ops) == 5
    assert (state.status.buffered_ops, state.status.dropped_ops) == (2, 3)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_nonsense_fails_at_once_and_not_in_the_background() -> None:
    with pytest.raises(StateError):
        make(Counted(), url="http://host")
    with pytest.raises(ValueError, match="namespace"):
        make(Counted(), namespace="a}b")


def sharing(name: str, loop: VirtualLoop, redis: MemoryRedis) -> tuple[SharedState, Counted]:
    """A replica in virtual time that never writes a snapshot."""
    fold = Counted()
    clock = LogClock(loop.time_ns, lambda: EPOCH_S * 10**9)
    hooks = Hooks(link=redis.link, monotonic_s=loop.time)
    rules = SharingRules(snapshot_interval_s=1e9)
    return SharedState(rules, "unix:///memory", name, fold, clock, hooks=hooks), fold


def test_a_lone_replica_asks_little_of_redis_and_seldom_wakes_up() -> None:
    """Per second: 2.5 heartbeats of 8 commands, 2.5 reads that find nothing, and a look at the snapshot."""

    async def main(loop: VirtualLoop) -> None:
        redis = MemoryRedis(loop)
        state, _ = sharing("a", loop, redis)
        running = asyncio.create_task(state.run())
        await asyncio.sleep(10)
        redis.commands.clear()
        waits = loop.waits
        await asyncio.sleep(100)
        assert redis.commands["xread"] <= 252
        assert redis.commands["set"] <= 252
        assert sum(redis.commands.values()) <= 252 * 9 + 250
        assert loop.waits - waits <= 1500
        running.cancel()
        await asyncio.wait((running,))

    run_virtually(main)


def test_a_lone_replica_under_load_writes_and_reads_five_times_a_second() -> None:
    async def main(loop: VirtualLoop) -> None:
        redis = MemoryRedis(loop)
        state, _ = sharing("a", loop, redis)
        running = asyncio.create_task(state.run())
        await asyncio.sleep(10)
        redis.commands.clear()
        for number in range(1000):
            state.publish(Finished(f"r{number}", 1))
            await asyncio.sleep(0.01)
        appends = redis.commands["xadd"] - redis.commands["set"]  # each heartbeat asks if the log takes more
        assert 45 <= appends <= 55
        assert redis.commands["xread"] <= 55
        running.cancel()
        await asyncio.wait((running,))

    run_virtually(main)


@pytest.mark.parametrize("start_s", [0.0, 0.05, 0.13, 0.19])
def test_a_newcomer_misses_nothing_of_a_lone_replica_at_leisure(start_s: float) -> None:
    """Both publish all the time: each operation arrives, as late as a lone pause at first, at once soon."""

    async def main(loop: VirtualLoop) -> None:
        redis, late_s = MemoryRedis(loop), []
        old, old_fold = sharing("a", loop, redis)
        new, new_fold = sharing("b", loop, redis)
        tasks = [asyncio.create_task(old.run())]
        await asyncio.sleep(10 + start_s)
        sent: dict[str, list[str]] = {"a": [], "b": []}
        began_s = loop.time()
        for number in range(300):
            if number == 50:
                tasks.append(asyncio.create_task(new.run()))
            for state, fold, name in ((old, new_fold, "a"), (new, old_fold, "b")):
                if name == "a" or new.status.ready:
                    sent[name].append(f"{name}{number}")
                    state.publish(Finished(sent[name][-1], number))
                if number > 50 and new.status.ready:
                    seen = {op.request_id for op in fold.ops if isinstance(op, Finished)}
                    missing = [each for each in sent[name] if each not in seen]
                    oldest = min((int(each[1:]) for each in missing), default=number)
                    late_s.append((loop.time() - began_s, (number - oldest) * 0.01))
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        for fold, name in ((new_fold, "a"), (old_fold, "b")):
            assert set(sent[name]) <= {op.request_id for op in fold.ops if isinstance(op, Finished)}
        assert max(late for _, late in late_s) <= 0.22
        assert max(late for at_s, late in late_s if at_s > 1.5) <= 0.03
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_virtually(main)
