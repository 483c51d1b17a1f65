"""A well-behaved client: a request every 50 ms at each replica, beside all cases.

Each must be answered with 200: no case makes an engine of the bystander busy, so overload is no excuse. While
a worker that lists no models is there (`excused`), its 502 and 504 are excused.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from loadtest.fuzz.stage import CALM, Gateway

INTERVAL_S = 0.05


class Bystander:
    """Sends requests while it is entered, and keeps errors.

    Attributes:
        wrong: Other answers, since this was last emptied.
        served: Number of good answers.
        gap_s: Longest time between two good answers of one replica.
        excused: Called when an answer comes that is not 200.
    """

    def __init__(self, gateways: list[Gateway]) -> None:
        self._gateways = gateways
        self.wrong: list[str] = []
        self.served = 0
        self.gap_s = 0.0
        self.excused: Callable[[], bool] = lambda: False

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask for as long as the context lasts, and have the last answers when it ends."""
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for gateway in self._gateways:
                group.create_task(self._ask(gateway, stopped), name=f"bystander at {gateway.name}")
            try:
                yield
            finally:
                stopped.set()

    async def _ask(self, gateway: Gateway, stopped: asyncio.Event) -> None:
        number, good_s = 0, time.monotonic()
        while not stopped.is_set():
            number += 1
            trouble = await self._trouble(gateway, f"hello {number % 50}")
            now_s = time.monotonic()
            if trouble:
                self.wrong.append(f"a bystander at {gateway.name}: {trouble}")
            else:
                self.served += 1
                self.gap_s, good_s = max(self.gap_s, now_s - good_s), now_s
            await asyncio.sleep(INTERVAL_S)

    async def _trouble(self, gateway: Gateway, prompt: str) -> str:
        body = {"model": CALM, "prompt": prompt, "max_tokens": 2}
        try:
            answer = await gateway.client.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            return f"{type(error).__name__} {error}"
        if answer.status_code == 200 or (self.excused() and answer.status_code in (502, 504)):
            return ""
        return f"{answer.status_code}: {answer.text[:300]}"
