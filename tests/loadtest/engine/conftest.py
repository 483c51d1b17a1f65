from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from loadtest.engine import EmulatedEngine, EngineSettings

FAST: dict[str, Any] = {
    "prefill_base_ms": 0.5,
    "prefill_tokens_per_s": 1e6,
    "tpot_ms": 1.0,
    "emit_interval_ms": 1.0,
}


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[tuple[EmulatedEngine, httpx.AsyncClient]]]]:
    """Starts engines that are fast by default; gives each with a client for it."""
    async with AsyncExitStack() as stack:

        async def start_one(**settings: Any) -> Any:
            engine = await stack.enter_async_context(EmulatedEngine(EngineSettings(**FAST | settings)))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=engine.url, timeout=60))
            return engine, client

        yield start_one
