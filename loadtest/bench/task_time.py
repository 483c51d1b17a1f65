"""CPU of an event loop by task: where the time of a process goes that does several things at once.

`TaskTimes.install` makes every task that is created from then on count the thread time of its steps
under its name. What no task did is the loop's own: waiting for sockets, timers, and the callbacks of
protocols.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any


class TaskTimes:
    """Seconds of CPU by name of the task."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure the tasks of a loop that are created from now on."""
        loop.set_task_factory(self._make)  # type: ignore[arg-type]

    def _make(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(self._measured(coro), loop=loop, **more)

    async def _measured(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return await self._stepped(coro)

    @coroutine
    def _stepped(self, coro: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run a coroutine step by step, as ``await`` would, with a look at the clock around each."""
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began_s = time.thread_time()
            try:
                awaited = coro.send(sent) if thrown is None else coro.throw(thrown)
            except StopIteration as stop:
                return stop.value
            finally:
                task = asyncio.current_task()
                assert task is not None
                self.seconds[task.get_name()] += time.thread_time() - began_s
            sent = thrown = None
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
                thrown = error
