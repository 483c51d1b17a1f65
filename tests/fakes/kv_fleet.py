"""Engines' KV events in a test: publishers on real sockets, and a replica that follows them.

Blocks have 32 tokens, on both sides. A prompt is named by a number, from which its token ids follow.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
from fakes.gateway import ALONE_STATUS, FakeShared, VirtualTime, registry

from loadtest.engine.kv_publisher import KvPublisher
from loadtest.engine.kv_settings import KvEventsSettings
from policies import FULL_ATTENTION, FleetRules
from router.destinations import Destinations
from router.engines import Description
from router.fleet import Core, LocalWorker, ServedModel
from router.fleet.kv_events import KvEvents
from router.fleet.kv_events.following import FollowingRules
from router.gateway.identity import PromptHasher
from router.shared import LogPort, LogStatus

BLOCK = 32


def ids_of(prompt: int, blocks: int) -> list[int]:
    """Token ids of a prompt, so many blocks of them."""
    return [(prompt * 7919 + at * 31) % 50_000 for at in range(blocks * BLOCK)]


def handles_of(prompt: int, blocks: int) -> list[int]:
    """Block handles of its engine for these blocks."""
    return [prompt * 1_000 + at for at in range(blocks)]


def stored(prompt: int, first: int, last: int) -> dict[str, Any]:
    """An event: the engine stored blocks ``first`` to ``last`` - 1 of a prompt."""
    handles = handles_of(prompt, last)
    return {
        "type": "BlockStored",
        "block_hashes": handles[first:],
        "parent_block_hash": handles[first - 1] if first else None,
        "token_ids": ids_of(prompt, last)[first * BLOCK :],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def removed(prompt: int, *blocks: int) -> dict[str, Any]:
    """An event: the engine no longer has some blocks of a prompt."""
    handles = [prompt * 1_000 + block for block in blocks]
    return {"type": "BlockRemoved", "block_hashes": handles, "medium": "GPU", "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


class FakeEngine:
    """The publisher of an engine, process after process, at one address.

    Args:
        folder: For its sockets.
        replays: True if clients can ask for old batches.
        buffer: Number of old batches that it keeps.
    """

    def __init__(self, folder: Path, *, replays: bool = True, buffer: int = 10_000) -> None:
        self.endpoint = f"ipc://{folder}/events"
        self.replay = f"ipc://{folder}/replay" if replays else None
        self._settings = KvEventsSettings(self.endpoint, self.replay, buffer)
        self._publisher: KvPublisher | None = None

    def start(self) -> "FakeEngine":
        """Start its process, or another one."""
        self.stop()
        self._publisher = KvPublisher(self._settings, replay_topic=True)
        return self

    def stop(self) -> None:
        """End its process."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def says(self, *events: Any) -> None:
        """Publish a batch."""
        assert self._publisher is not None
        self._publisher.publish(msgspec.msgpack.encode((time.time(), events, 0)))

    def loses(self, *events: Any) -> None:
        """Publish a batch that is lost on its way; a client can ask for it."""
        assert self._publisher is not None
        publisher: Any = self._publisher
        sends, publisher._pub = publisher._pub, _Nobody()
        self.says(*events)
        publisher._pub = sends


class _Nobody:
    def send_multipart(self, *_: object) -> None:
        """Send nothing."""


class Replica:
    """A replica that follows workers on the wall clock."""

    def __init__(self, name: str = "one", replicas: Sequence[str] = ("one",), *, on: bool = True) -> None:
        self.shared = FakeShared(FleetRules(block_tokens=BLOCK))
        self.alive = tuple(replicas)
        self.registry = registry(self.shared, VirtualTime())
        self.hasher = PromptHasher("ns", block_tokens=BLOCK)
        self.answers: dict[str, bytes] = {}
        self.buffered_ops = 0
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        destinations = Destinations()
        log = LogPort(name, self.shared.publish, self.now_us, self._status, lambda: self.alive)
        self.kv_events = KvEvents(
            Core(self.shared.fleet, self.registry, log),
            self.client,
            destinations,
            FollowingRules(on=on, named=frozenset(), timeout_s=2.0),
            root_of=self.hasher.engine_root,
            identifies=lambda model: model == "tiny",
        )
        self._task: asyncio.Task[None] | None = None

    def _status(self) -> LogStatus:
        return replace(ALONE_STATUS, replicas=self.alive, buffered_ops=self.buffered_ops)

    @staticmethod
    def now_us() -> int:
        """Log time."""
        return time.time_ns() // 1000

    async def __aenter__(self) -> "Replica":
        self._task = asyncio.create_task(self.kv_events.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.client.aclose()

    def add(self, url: str = "http://w", model: str = "tiny", **labels: str) -> LocalWorker:
        """Add a worker that is well."""
        local = self.registry.get(self.registry.add(url, capacity_tokens=1_000, labels=labels))
        assert local is not None
        self.registry.probed(local, ok=True, refused=False, detail="")
        self.registry.described(local, (ServedModel(model, 8192, "", model),), Description("vllm", 0))
        return local

    def follow(self, engine: FakeEngine, **labels: str) -> LocalWorker:
        """Add the worker of an engine."""
        replay = {} if engine.replay is None else {"kv_replay": engine.replay}
        return self.add(kv_events=engine.endpoint, **replay, **labels)

    def held(self, prompt: int, blocks: int, local: LocalWorker, salt: str = "") -> int:
        """Leading blocks of a prompt that the tree believes a worker to hold."""
        root = self.hasher.engine_root("tiny", salt)
        path = self.hasher.identify((), [[*ids_of(prompt, blocks), 1]], root).paths[0]
        matched = self.shared.fleet.tree.match(path, FULL_ATTENTION).matched
        slot = local.worker.slot
        return int(matched[slot]) if slot < len(matched) else 0

    def state(self, local: LocalWorker) -> str:
        """Progress of following it; empty if this replica does not."""
        follower = self.kv_events.followers.get(local.worker.worker_id)
        return "" if follower is None else follower.state.value

    def tracks(self, local: LocalWorker) -> bool:
        """True if the worker's events describe it."""
        return self.shared.fleet.tracks(local.worker.worker_id)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        content = self.answers.get(request.url.path)
        return httpx.Response(404) if content is None else httpx.Response(200, content=content)
