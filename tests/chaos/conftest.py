"""Fixtures of the chaos tests: real engines, and as many real replicas as a test starts."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from fakes.replicas import ENGINE, Start, starter
from fakes.running import Fleet


@pytest.fixture
async def fleet(namespace: str) -> AsyncIterator[Fleet]:
    """Three engines for one test."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet("", namespace, stack)
        for _ in range(3):
            await fleet.engine(ENGINE)
        yield fleet


@pytest.fixture
async def start(fleet: Fleet) -> AsyncIterator[Start]:
    """Starts a replica in front of the engines, with the Redis of a URL."""
    async with starter(fleet) as start:
        yield start
