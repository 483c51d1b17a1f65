"""An admin API to ask, with and without a key."""

from collections.abc import AsyncIterator

import pytest
from fakes.admin import Setup


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    async with setup.client, setup.workers_client:
        yield setup


@pytest.fixture
async def locked() -> AsyncIterator[Setup]:
    setup = Setup(admin_key="ours")
    async with setup.client, setup.workers_client:
        yield setup
