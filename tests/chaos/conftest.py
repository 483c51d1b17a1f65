"""What every test of this folder starts from: real engines, and as many real replicas as it wants."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from fakes.replicas import ENGINE, Start, starter
from fakes.running import Fleet


@pytest.fixture
async def fleet(namespace: str) -> AsyncIterator[Fleet]:
    """Three engines, alive for one test."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet("", namespace, stack)
        for _ in range(3):
            await fleet.engine(ENGINE)
        yield fleet


@pytest.fixture
async def start(fleet: Fleet) -> AsyncIterator[Start]:
    """Starts a replica in front of the engines that uses the Redis of a URL."""
    async with starter(fleet) as start:
        yield start
