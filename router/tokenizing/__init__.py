"""Prompts as the token ids that their engine sees.

Text never matches token ids. KV events and some clients name token ids, so the prompts of such models become
ids before they are hashed, and one tree holds history, events and both kinds of clients.

    tokenizing.py     when, in which thread, how long at most, and the cache
    local.py          here: `conversation` -> `chat_template` -> `segments`, from a folder (`tokenizer_files`)
    engine.py         or by asking an engine

The tokenizing and rendering libraries are an extra, ``cacheway[tokenizers]``, imported only where a model has
a tokenizer.
"""

import asyncio
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from router.errors import SettingsError
from router.fleet import Core
from router.metrics import Metrics
from router.settings import PlacementSettings

if TYPE_CHECKING:
    from router.gateway.identity import PromptHasher
    from router.tokenizing.tokenizing import Tokenizing

ENGINE = "engine"
"""Value of a model's ``tokenizer`` that asks engines."""


def check_tokenizers(placement: PlacementSettings) -> None:
    """Check that prompts can be tokenized, before anything starts; raise SettingsError if they cannot."""
    wanted = {name: model.tokenizer for name, model in placement.models.items() if model.tokenizer}
    if not wanted:
        return
    if any(find_spec(package) is None for package in ("jinja2", "tokenizers")):
        raise SettingsError(
            ["placement.models: a tokenizer is named; install Cacheway with the extra tokenizers"]
        )
    from router.tokenizing.local import LocalTokenizer
    from router.tokenizing.lru import Remembered
    from router.tokenizing.tokenizer_files import UnusableTokenizer

    problems = []
    for name, tokenizer in wanted.items():
        try:
            if tokenizer != ENGINE:
                LocalTokenizer(Path(tokenizer), Remembered(0))
        except UnusableTokenizer as error:
            problems.append(f"placement.models.{name}.tokenizer: {error}")
    if problems:
        raise SettingsError(problems)


def opened_tokenizing(
    placement: PlacementSettings,
    core: Core,
    hasher: "PromptHasher",
    client: httpx.AsyncClient,
    metrics: Metrics,
) -> "Tokenizing | None":
    """Make the tokenizing, inside the event loop; None if no model has a tokenizer."""
    if not any(model.tokenizer for model in placement.models.values()):
        return None
    from router.tokenizing.engine import EngineTokenizer
    from router.tokenizing.local import LocalTokenizer
    from router.tokenizing.lru import Remembered
    from router.tokenizing.tokenizing import Tokenizing

    turns = count()

    def worker_of(model: str) -> str | None:
        """The base URL of a worker of the model that is well; each in turn."""
        slots = core.registry.eligible(model, core.log.now_us())
        if not len(slots):
            return None
        return core.registry.at_slot(slots.item(next(turns) % len(slots))).worker.url

    # Ids of segments, and identities of whole prompts: the latter weigh a hundredth.
    segments = Remembered[bytes, bytes](placement.tokenizing_cache_bytes_max // 10 * 9)
    engine = EngineTokenizer(client, worker_of)
    folders = {
        model.tokenizer: LocalTokenizer(Path(model.tokenizer), segments)
        for model in placement.models.values()
        if model.tokenizer not in ("", ENGINE)
    }
    return Tokenizing(
        {
            name: engine if model.tokenizer == ENGINE else folders.get(model.tokenizer)
            for name, model in placement.models.items()
        },
        hasher,
        asyncio.get_running_loop(),
        limit_s=placement.tokenizing_s_max,
        threads=placement.tokenizing_threads,
        remembered=Remembered(placement.tokenizing_cache_bytes_max // 10),
        metrics=metrics,
    )
