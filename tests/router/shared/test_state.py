"""Promises of a shared state without any Redis. With one: `tests/integration/test_shared_state.py`."""

import asyncio
import contextlib
from collections.abc import Collection, Generator, Iterator, Sequence

import pytest
from fakes.loads import FakeLoads

from policies import Finished, Op, OpRefused, Placed
from router.errors import StateError
from router.shared import LogClock, SharedState, SharingRules, Warming

NOWHERE = "unix:///nonexistent/valkey.sock"


class Counted:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.load_reports = FakeLoads()

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
