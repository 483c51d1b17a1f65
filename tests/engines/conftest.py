"""The suite on real engines: only when it is asked for, in one event loop, ordered by the engines it wants.

python -m pytest tests/engines                          all of it
CACHEWAY_ENGINES_SHORT=1 python -m pytest tests/engines   a pair of gemma3 and what is quick with it
python -m pytest                                         none of it
"""

import contextlib
import os
import random
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fakes.real_engines import Engines, pair_of, wanted
from fakes.running import Fleet, until

from loadtest.vllm import VllmEngine, VllmServer

HERE = Path(__file__).parent
SHORT = "CACHEWAY_ENGINES_SHORT"
START_TIMEOUT_S = 900
"""Timeout of a test, whose engines may have to be started."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Engines take minutes and a gigabyte each: only a run that names this folder starts them."""
    named = [(config.invocation_params.dir / each.split("::")[0]).resolve() for each in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    if not ours:
        return
    for item in ours:
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        item.add_marker(pytest.mark.timeout(START_TIMEOUT_S), append=False)
    if os.environ.get(SHORT):
        short = pair_of("gemma3").args
        ours = [item for item in ours if wanted(item) == short and item.get_closest_marker("deep") is None]
    ours.sort(key=lambda item: (repr(wanted(item)), item.get_closest_marker("deep") is not None))
    items[:] = [*(item for item in items if not item.path.is_relative_to(HERE)), *ours]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def all_engines(pytestconfig: pytest.Config) -> AsyncIterator[Engines]:
    """One group of engines at a time."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def told(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    engines = Engines(told)
    try:
        yield engines
    finally:
        await engines.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engines(request: pytest.FixtureRequest, all_engines: Engines) -> list[VllmEngine]:
    """The engines that the test's mark names."""
    return await all_engines.group(wanted(request.node))


@pytest_asyncio.fixture(loop_scope="session")
async def servers(request: pytest.FixtureRequest, all_engines: Engines) -> list[VllmServer]:
    """The same engines, for tests that kill them."""
    return await all_engines.servers(wanted(request.node))


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(redis_url: str, namespace: str) -> AsyncIterator[Fleet]:
    """Gateways for one test; after each test, no reservation is left."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(redis_url, namespace, stack)
        yield fleet
        for gateway in fleet.gateways:
            await until(gateway.idle)


@pytest.fixture
def chance() -> random.Random:
    """For prompts that no cache holds; a failed test shows the seed."""
    seed = secrets.randbits(32)
    print(f"chance: {seed}")
    return random.Random(seed)
