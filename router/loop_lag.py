"""Lag of the event loop: the one number that shows whether something blocks it.

A timer falls due every `INTERVAL_S`, and its delay is observed. A step of 20 ms delays every stream of the
process by up to 20 ms, and shows here as often as a chunk meets it: the histogram's quantiles are those of a
stream's chunks. uvloop counts whole milliseconds, so a lag below one means nothing. While no request is in
flight, no chunk can be late, and looks are `IDLE_INTERVAL_S` apart: waking up costs an idle process more than
the look.

`router.app` owns `LoopLag.run`, restarts it if it ever fails, and cancels it at the end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

INTERVAL_S = 0.1
"""Between two looks, 10 µs each, and some 40 µs where a look wakes the process."""

IDLE_INTERVAL_S = 0.2
"""The same without requests in flight."""


class LoopLag:
    """Samples the lag of the running event loop.

    ``observe`` gets each lag, in seconds >= 0; ``busy`` returns a true value while requests are in flight.
    """

    def __init__(
        self,
        observe: Callable[[float], None],
        busy: Callable[[], object] = lambda: True,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._observe, self._busy = observe, busy
        self._now_s = now_s
        self._sleep = sleep
        self._worst_s = 0.0

    def worst_s(self) -> float:
        """The worst lag since this was last asked, seconds."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            interval_s = INTERVAL_S if self._busy() else IDLE_INTERVAL_S
            due_s = self._now_s() + interval_s
            await self._sleep(interval_s)
            lag_s = max(self._now_s() - due_s, 0.0)
            self._worst_s = max(self._worst_s, lag_s)
            self._observe(lag_s)
