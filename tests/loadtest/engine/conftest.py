import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from loadtest.engine import EmulatedEngine, EngineSettings

FAST = {"prefill_base_ms": 0.5, "prefill_tokens_per_s": 1e6, "tpot_ms": 1.0, "emit_interval_ms": 1.0}


class VirtualClock:
    """Time that passes when it is told to."""

    class Timer:
        def __init__(self, callback: Any) -> None:
            self.callback = callback

        def cancel(self) -> None:
            self.callback = None

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, int, VirtualClock.Timer]] = []
        self._order = 0

    def time(self) -> Any:
        return self.now_s

    def call_at(self, when: Any, callback: Any) -> Any:
        timer = self.Timer(callback)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, timer))
        return timer

    def run(self, until_s: float = float("inf")) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self.now_s = max(self.now_s, when)
                timer.callback()
        if until_s < float("inf"):
            self.now_s = max(self.now_s, until_s)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[tuple[EmulatedEngine, httpx.AsyncClient]]]]:
    """Starts engines that are fast unless told otherwise; gives each with a client for it."""
    async with AsyncExitStack() as stack:

        async def start_one(**settings: Any) -> Any:
            engine = await stack.enter_async_context(EmulatedEngine(EngineSettings(**FAST | settings)))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=engine.url, timeout=30))
            return engine, client

        yield start_one
