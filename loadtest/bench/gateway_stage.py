"""A gateway as users run it, with everything around it, and a look at what it costs.

    load (child) --> cacheway serve --workers N (child) --> engines (child)
                           `--> Valkey (child)

Only the gateway is ``cacheway``'s own code at its defaults; engines and load (`loadtest.bench.mock_engine`,
`loadtest.bench.http_load`) do as little as they can. Each kind is a process tree of its own, so that its CPU
is told apart. The gateway writes its request log to a file, as it would to a container's.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from loadtest.bench.http_load import LoadPlan, LoadReport
from loadtest.bench.mock_engine import EnginePlan
from loadtest.bench.process_tree import clients_of, cpu_s, rss_bytes, tree_of
from loadtest.processes import Child, ChildFailed, free_port
from router.shared import EmbeddedValkey

ENGINES = 4
LINE_BYTES_MAX = 16 << 20
"""Longest line a child may write: a report may hold a figure for each request."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the gateway has used so far.

    Attributes:
        at_s: Monotonic seconds.
        cpu_s: CPU of the gateway, all processes.
        valkey_cpu_s: CPU of Valkey.
        rss_bytes: Resident memory of each process that serves.
    """

    at_s: float
    cpu_s: float
    valkey_cpu_s: float
    rss_bytes: tuple[int, ...]


class Running:
    """A child of the benchmarks that got its plan as a line and tells how it goes in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, what: object) -> None:
        """Give it one more line."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")

    async def next(self, kind: type[Answer]) -> Answer | None:
        """What it says next; None when it has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=kind) if line else None

    def stop(self) -> None:
        """Tell it to come to an end."""
        assert self._process.stdin is not None
        self._process.stdin.close()


@asynccontextmanager
async def started(module: str, plan: msgspec.Struct) -> AsyncIterator[Running]:
    """Start a child of the benchmarks; it is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(plan) + b"\n")
        yield Running(process)
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway that is ready.

    Attributes:
        port: Where it serves, on 127.0.0.1.
        pids: The processes that serve.
    """

    port: int
    pids: tuple[int, ...]
    _gateway: Child
    _valkey: EmbeddedValkey

    def sample(self) -> Sample:
        """Look at all processes."""
        return Sample(
            time.monotonic(),
            cpu_s(tree_of(self._gateway.pid)),
            cpu_s((self._valkey.pid,)),
            tuple(map(rss_bytes, self.pids)),
        )

    def clients(self) -> list[int]:
        """How many clients each process serves."""
        return [clients_of(pid, self.port) for pid in self.pids]

    @asynccontextmanager
    async def load(self, plan: LoadPlan) -> AsyncIterator[Running]:
        """Start a load."""
        async with started("loadtest.bench.http_load", plan) as running:
            yield running

    async def served(self, plan: LoadPlan) -> LoadReport:
        """Run a load to its end.

        Raises:
            ChildFailed: A request was not answered as expected.
        """
        async with self.load(plan) as running:
            return await last_report(running)


async def last_report(running: Running) -> LoadReport:
    """Wait for the end of a load.

    Raises:
        ChildFailed: A request was not answered as expected, or the load failed.
    """
    last = None
    while (report := await running.next(LoadReport)) is not None:
        last = report
    if last is None or last.broken or last.answering:
        raise ChildFailed(f"the load came to no good end: {last}")
    return last


@asynccontextmanager
async def staged(processes: int, gap_s: float, flags: Sequence[str] = ()) -> AsyncIterator[Stage]:
    """Start everything; all of it is gone afterwards.

    Args:
        processes: How many the gateway has.
        gap_s: Between two chunks of a stream.
        flags: More of ``cacheway serve``.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-bench-")))
        valkey = await stack.enter_async_context(EmbeddedValkey())
        engines = await stack.enter_async_context(
            started("loadtest.bench.mock_engine", EnginePlan(ENGINES, gap_s))
        )
        ports = await engines.next(list[int])
        if ports is None:
            raise ChildFailed("the engines did not start")
        port = free_port()
        arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--workers", str(processes)]
        arguments += ["--redis-url", valkey.url, "--shutdown-delay-secs", "0"]
        arguments += ["--worker-urls", *(f"http://127.0.0.1:{engine}" for engine in ports), *flags]
        gateway = await stack.enter_async_context(Child("gateway", arguments, folder))
        await gateway.wait_for_answer(f"http://127.0.0.1:{port}/readiness")
        while gateway.log.read_bytes().count(b'"gateway.started"') < processes:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.1)
        yield Stage(port, _serving(gateway.pid, processes), gateway, valkey)


def _serving(pid: int, processes: int) -> tuple[int, ...]:
    """The processes that serve: the gateway's own, or its youngest children (the oldest tracks resources)."""
    tree = tree_of(pid)
    return (pid,) if processes == 1 else tuple(tree[-processes:])
