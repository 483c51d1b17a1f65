"""Tasks of a process that run for as long as it serves; each is restarted, loudly, if it ever fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

logger = logging.getLogger(__name__)

RESTART_S = 1.0
"""Between the end of a task that must not end and its next start, in seconds. It doubles up to
`RESTART_S_MAX` while the task ends sooner than `SOON_S` after its start."""

RESTART_S_MAX = 30.0
SOON_S = 60.0

Loop = tuple[str, Callable[[], Awaitable[None]]]
"""A name for the log, and a function that runs for ever."""


class Loops:
    """Tasks that run together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, loops: Iterable[Loop]) -> None:
        """Start these, in this order."""
        self._tasks += [asyncio.create_task(_forever(name, run), name=name) for name, run in loops]

    async def end(self) -> None:
        """Cancel all of them, and wait for them."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forever(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a loop that must not end; if it does, log it and start it again."""
    clock, pause_s = asyncio.get_running_loop().time, RESTART_S
    while True:
        started_s = clock()
        try:
            await run()
            logger.error("task ended: it starts again", extra={"event": "task.ended", "task": name})
        except Exception:
            logger.exception("task failed: it starts again", extra={"event": "task.failed", "task": name})
        if clock() - started_s >= SOON_S:
            pause_s = RESTART_S
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RESTART_S_MAX)
