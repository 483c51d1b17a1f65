"""Gateways to attack."""

import contextlib
from collections.abc import AsyncIterator

import pytest_asyncio
from fakes.running import Fleet, until


@pytest_asyncio.fixture
async def fleet(redis_url: str, namespace: str) -> AsyncIterator[Fleet]:
    """Engines and gateways for one test; after each attack, no reservation is left."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(redis_url, namespace, stack)
        yield fleet
        for gateway in fleet.gateways:
            await until(gateway.idle)
