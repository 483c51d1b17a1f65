"""Tests of `loadtest.bench.task_time`."""

import asyncio
import time

import pytest

from loadtest.bench.task_time import TaskTimes


def burn(seconds: float) -> None:
    ends_s = time.thread_time() + seconds
    while time.thread_time() < ends_s:
        pass


async def test_time_counts_for_the_task_that_used_it() -> None:
    times = TaskTimes()
    times.install(asyncio.get_running_loop())

    async def work(steps: int) -> str:
        for _ in range(steps):
            burn(0.002)
            await asyncio.sleep(0)
        return "done"

    try:
        results = await asyncio.gather(
            asyncio.create_task(work(2), name="some"), asyncio.create_task(work(6), name="more")
        )
    finally:
        asyncio.get_running_loop().set_task_factory(None)
    assert results == ["done", "done"]
    assert times.seconds["some"] >= 0.004
    assert times.seconds["more"] >= 0.012


async def test_a_task_behaves_as_without() -> None:
    times = TaskTimes()
    times.install(asyncio.get_running_loop())

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("as it should")

    async def waits(ended: list[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    try:
        with pytest.raises(KeyError):
            await asyncio.create_task(fails())
        ended: list[str] = []
        task = asyncio.create_task(waits(ended))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.create_task(asyncio.sleep(60))
    finally:
        asyncio.get_running_loop().set_task_factory(None)
