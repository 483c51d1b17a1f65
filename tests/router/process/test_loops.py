"""Tasks that run for as long as a process serves."""

import asyncio

import pytest
from fakes.process import events

from router.process import loops
from router.process.loops import Loops


async def test_a_task_that_fails_or_ends_is_started_again_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "RESTART_S", 0.0)
    started, thrice = 0, asyncio.Event()

    async def run() -> None:
        nonlocal started
        started += 1
        if started == 1:
            raise ZeroDivisionError
        if started == 3:
            thrice.set()
            await asyncio.Event().wait()

    running = Loops()
    running.start([("fragile", run)])
    async with asyncio.timeout(60):
        await thrice.wait()
    await running.end()
    assert events(caplog) == ["task.failed", "task.ended"]
    assert running._tasks == []


async def test_at_the_end_all_tasks_are_over() -> None:
    ended: list[str] = []

    async def run(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    running = Loops()
    running.start([(name, lambda name=name: run(name)) for name in ("a", "b")])  # type: ignore[misc]
    await asyncio.sleep(0)
    await running.end()
    assert ended == ["a", "b"]


async def test_a_task_that_fails_at_once_starts_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its traceback fills the log."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            raise asyncio.CancelledError

    async def run() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(loops.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await loops._forever("fragile", run)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_a_task_that_ran_for_long_starts_again_at_once_however_often_it_failed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    runs_s = iter([0.0, 0.0, 0.0, loops.SOON_S, 0.0])
    loop = asyncio.get_running_loop()
    now_s = loop.time()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    async def run() -> None:
        nonlocal now_s
        now_s += next(runs_s)
        raise ZeroDivisionError

    monkeypatch.setattr(loops.asyncio, "sleep", pause)
    monkeypatch.setattr(loop, "time", lambda: now_s)
    with pytest.raises(asyncio.CancelledError):
        await loops._forever("fragile", run)
    assert pauses == [1.0, 2.0, 4.0, 1.0, 2.0]
