"""A gateway as users run it, with everything around it, and samples of its cost.

    load (child) --> cacheway serve --workers N (child) --> engines (child)
                           `--> Valkey (child)

The gateway has its defaults; engines and load (`loadtest.bench.mock_engine`, `loadtest.bench.http_load`) do
as little as they can. Each is a process tree of its own, so that its CPU is separate.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import http_load, mock_engine
from loadtest.bench.child import Running, started
from loadtest.bench.http_load import LoadPlan, LoadReport
from loadtest.bench.mock_engine import MODEL, EnginePlan
from loadtest.bench.process_tree import clients_of, cpu_s, rss_bytes, tree_of
from loadtest.processes import Child, ChildFailed, GatewayChild
from router.shared import EmbeddedValkey

ENGINES = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """Use of resources so far; ``rss_bytes`` of each process that serves.

    Attributes:
        at_s: Monotonic seconds.
        cpu_s: CPU of all processes of the gateway.
    """

    at_s: float
    cpu_s: float
    valkey_cpu_s: float
    rss_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A ready gateway: its port on 127.0.0.1, the processes that serve, and the ids of its workers."""

    port: int
    pids: tuple[int, ...]
    workers: tuple[str, ...]
    _gateway: Child
    _valkey: EmbeddedValkey

    @property
    def redis_url(self) -> str:
        """Address of the Valkey."""
        return self._valkey.url

    def sample(self) -> Sample:
        """Look at all processes."""
        return Sample(
            time.monotonic(),
            cpu_s(tree_of(self._gateway.pid)),
            cpu_s((self._valkey.pid,)),
            tuple(map(rss_bytes, self.pids)),
        )

    def clients(self) -> list[int]:
        """Number of clients of each process."""
        return [clients_of(pid, self.port) for pid in self.pids]

    @asynccontextmanager
    async def load(self, plan: LoadPlan) -> AsyncIterator[Running]:
        """Start a load."""
        async with started(http_load.drive, plan) as running:
            yield running

    async def served(self, plan: LoadPlan) -> LoadReport:
        """Run a load to its end; `ChildFailed` if a request was not answered as expected."""
        async with self.load(plan) as running:
            return await last_report(running)


async def reports(running: Running) -> AsyncIterator[LoadReport]:
    """Yield the reports of a load until it ends; `ChildFailed` if a request was not answered as expected."""
    while (report := await running.next(LoadReport)) is not None:
        if report.broken:
            raise ChildFailed(f"the load came to no good end: {report}")
        yield report


async def last_report(running: Running) -> LoadReport:
    """Return the last report of a load; `ChildFailed` if it failed or a request broke."""
    last = None
    async for report in reports(running):
        last = report
    if last is None or last.answering:
        raise ChildFailed(f"the load came to no good end: {last}")
    return last


@asynccontextmanager
async def staged(
    processes: int,
    gap_s: float,
    flags: Sequence[str] = (),
    models: Sequence[str] = (MODEL,),
    module: str = "router",
) -> AsyncIterator[Stage]:
    """Start everything; all of it ends afterwards.

    Args:
        processes: Processes of the gateway.
        gap_s: Between two chunks of a stream.
        flags: More of ``cacheway serve``.
        models: Each has engines in a process of their own.
        module: Runs instead of ``cacheway``, with the same flags.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-bench-")))
        valkey = await stack.enter_async_context(EmbeddedValkey())
        urls = []
        for model in models:
            plan = EnginePlan(ENGINES, gap_s, model)
            engines = await stack.enter_async_context(started(mock_engine.serve, plan))
            ports = await engines.next(list[int])
            if ports is None:
                raise ChildFailed("the engines did not start")
            urls += [f"http://127.0.0.1:{port}" for port in ports]
        arguments = ["--workers", str(processes), "--redis-url", valkey.url, "--shutdown-delay-secs", "0"]
        arguments += ["--worker-urls", *urls, *flags]
        gateway = await stack.enter_async_context(GatewayChild("gateway", arguments, folder, module))
        await gateway.wait_until_ready()
        while gateway.log.read_bytes().count(b'"gateway.started"') < processes:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.1)
        workers = tuple(url.removeprefix("http://") for url in urls)
        yield Stage(gateway.port, _serving(gateway.pid, processes), workers, gateway, valkey)


def _serving(pid: int, processes: int) -> tuple[int, ...]:
    """The processes that serve: the gateway's own, or its youngest children (the oldest tracks resources)."""
    tree = tree_of(pid)
    return (pid,) if processes == 1 else tuple(tree[-processes:])
