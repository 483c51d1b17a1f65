"""Replicas as processes, as the tests of failures start them: real ones, before real engines.

Every worker weighs the same but for its cached blocks (``--congestion-max 0``), so that replicas with the
same facts decide the same. Intervals are short so that an expiry or a snapshot falls into a test.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx
from fakes.running import Fleet, serving

from loadtest.chaos import Replica
from loadtest.engine import EngineSettings
from loadtest.workload import MODEL

ENGINE = EngineSettings(models=(MODEL,), prefill_tokens_per_s=200_000, prefill_base_ms=1, tpot_ms=10)

FLAGS = ("--congestion-max", "0", "--snapshot-interval-secs", "1", "--heartbeat-ttl-secs", "2")

Start = Callable[..., Awaitable["RunningReplica"]]


class RunningReplica(Replica):
    """A replica with its id and its process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, client: httpx.AsyncClient) -> None:
        super().__init__(client)
        self.name = name
        self.process = process

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log events of one name."""
        lines = [json.loads(line) for line in self.process.output]  # type: ignore[attr-defined]
        return [line for line in lines if line["event"] == name]


@contextlib.asynccontextmanager
async def starter(fleet: Fleet) -> AsyncIterator[Start]:
    """Start replicas in front of the engines of a fleet; all end with the context."""
    numbers = itertools.count(1)
    async with contextlib.AsyncExitStack() as stack:

        async def one(
            redis_url: str,
            *flags: str,
            program: tuple[str, ...] = ("-m", "router"),
            environ: Mapping[str, str] | None = None,
            warm: bool = True,
        ) -> RunningReplica:
            name = f"r{next(numbers)}"
            workers = [engine.url for engine in fleet.engines]
            process, client = await stack.enter_async_context(
                serving(
                    *(redis_url, fleet.namespace, workers, "--replica-id", name, *FLAGS, *flags),
                    program=program,
                    environ=environ,
                )
            )
            replica = RunningReplica(name, process, client)
            if warm:
                await replica.warmed()
            return replica

        yield one
