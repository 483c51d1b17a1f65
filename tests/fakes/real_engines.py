"""Real engines for tests: one group of them at a time, kept for all tests that want the same.

    @pair_of("gemma3")
    async def test_...(engines: list[VllmEngine], fleet: Fleet) -> None:

    @EACH_MODEL
    async def test_...(model: str, engines: list[VllmEngine]) -> None:

    @engines_with(VllmSettings(kv_blocks=300), VllmSettings(max_model_tokens=1024))
    async def test_...(servers: list[VllmServer]) -> None:

Tests are run in the order of their groups. Their caches are not empty: another test was there before, or,
with ``CACHEWAY_ENGINES_RUNNING="qwen3=URL,URL gemma3=URL"``, another run; so prompts come from `chance`. A
test that kills engines, or wants an empty cache, asks for `servers`, which are never borrowed.
"""

import asyncio
import os
import random
from collections.abc import Callable, Sequence

import httpx
import pytest

from loadtest.vllm import EnginesHome, VllmEngine, VllmServer, VllmSettings
from loadtest.vllm.home import HOW_TO_INSTALL
from loadtest.vllm.models import KINDS

RUNNING = "CACHEWAY_ENGINES_RUNNING"
"""Environment variable: engines that run already, by model."""

MARK = "engines"
HYBRID_KINDS = [kind for kind in KINDS if kind != "qwen3"]


def engines_with(*settings: VllmSettings) -> pytest.MarkDecorator:
    """Mark a test that wants engines with these settings, all at once."""
    return pytest.mark.engines(*settings)


def pair_of(model: str) -> pytest.MarkDecorator:
    """Mark a test that wants two engines of a model, with the usual settings."""
    return engines_with(VllmSettings(model=model), VllmSettings(model=model))


def _each(kinds: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", [pytest.param(kind, marks=pair_of(kind)) for kind in kinds])


EACH_MODEL = _each(KINDS)
"""A pair of each model in its turn, whose kind is the argument ``model``."""

EACH_HYBRID = _each(HYBRID_KINDS)
"""The same without the dense model."""


def wanted(item: pytest.Item) -> tuple[VllmSettings, ...]:
    """Return the settings of the engines that a test wants; none without a mark."""
    mark = item.get_closest_marker(MARK)
    return mark.args if mark is not None else ()


def random_ids(chance: random.Random, count: int) -> list[int]:
    """A prompt as token ids, none of them special."""
    return [chance.randrange(300, 2048) for _ in range(count)]


def random_words(chance: random.Random, count: int) -> str:
    """A prompt of words that no other prompt has."""
    return " ".join(f"{chance.randrange(16**6):06x}" for _ in range(count))


class Engines:
    """The group that runs now, if any.

    Args:
        told: Gets the progress of a start, which takes a minute or two.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._settings: tuple[VllmSettings, ...] = ()
        self._servers: list[VllmServer] = []
        self._home = EnginesHome.usual()

    async def group(self, settings: tuple[VllmSettings, ...]) -> list[VllmEngine]:
        """Return engines with these settings: borrowed ones, those that run, or new ones."""
        borrowed = await _borrowed(settings)
        return borrowed or [*await self.servers(settings)]

    async def servers(self, settings: tuple[VllmSettings, ...]) -> list[VllmServer]:
        """Return engines of ours with these settings, all of them alive."""
        if not self._home.installed():
            pytest.skip(f"vLLM is not installed in {self._home.venv}: {HOW_TO_INSTALL}")
        if settings != self._settings:
            await self.close()
            self._settings = settings
            self._servers = [
                VllmServer(each, f"{each.model}-{number}", home=self._home, told=self._told)
                for number, each in enumerate(settings)
            ]
        await asyncio.gather(*(server.start() for server in self._servers if not server.running))
        return self._servers

    async def close(self) -> None:
        """Stop all of them."""
        servers, self._servers, self._settings = self._servers, [], ()
        await asyncio.gather(*(server.close() for server in servers))


async def _borrowed(settings: tuple[VllmSettings, ...]) -> list[VllmEngine]:
    """Return the engines of another process, if these settings are the usual ones of one model."""
    given = dict(each.split("=", 1) for each in os.environ.get(RUNNING, "").split())
    models = {each.model for each in settings}
    if len(models) != 1 or any(each != VllmSettings(model=each.model) for each in settings):
        return []
    urls = [url for url in given.get(models.pop(), "").split(",") if url]
    if urls and len(urls) < len(settings):
        pytest.skip(f"{RUNNING} has {len(urls)} engines of this model, and the test wants {len(settings)}")
    try:
        return [await VllmEngine.at(url) for url in urls[: len(settings)]]
    except httpx.HTTPError as error:
        pytest.fail(f"{RUNNING}: {error}")
