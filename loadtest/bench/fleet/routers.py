"""Start routers as their users do, each replica a process tree that is gone afterwards.

Cacheway has its defaults; one replica starts a Valkey of its own, several share one. The Rust routers run
with the cache-aware policy and share nothing. A router is ready when it answers and knows all workers.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.bench.fleet.cells import Router
from loadtest.bench.process_tree import cpu_s, tree_of
from loadtest.processes import Child, ChildFailed, free_port
from router.shared import EmbeddedValkey

HOME = Path(os.environ.get("BENCH_HOME") or Path.home() / ".cache" / "router-bench")
BINARIES = {Router.SMG: "v-smg/bin/smg", Router.SGLANG: "v-sglang/bin/sglang-router"}
PARTS = {Router.SMG: "smg", Router.SGLANG: "sglang"}
"""Parts of the kit's installation."""

KNOWN_TIMEOUT_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Routers:
    """Ready replicas of one router, by their ports on 127.0.0.1."""

    ports: list[int]
    _pids: list[int]

    def cpu_s(self) -> float:
        """CPU of all replicas so far, with their Valkey."""
        return sum(cpu_s(tree_of(pid)) for pid in self._pids)


@asynccontextmanager
async def routers_started(
    router: Router, workers: Sequence[int], replicas: int, folder: Path
) -> AsyncIterator[Routers]:
    """Start replicas of a router in front of workers.

    `ChildFailed` if one fails or does not find all workers.
    """
    urls = [f"http://127.0.0.1:{port}" for port in workers]
    async with AsyncExitStack() as stack:
        shared, pids, children = [], [], []
        if router not in BINARIES and replicas > 1:
            valkey = await stack.enter_async_context(EmbeddedValkey())
            shared, pids = ["--redis-url", valkey.url], [valkey.pid]
        ports = []
        for number in range(replicas):
            port = free_port()
            child = _child(router, f"{router}-{number}", port, urls, shared, folder)
            children.append(await stack.enter_async_context(child))
            ports.append(port)
        for child, port in zip(children, ports, strict=True):
            await child.wait_for_answer(f"http://127.0.0.1:{port}/readiness")
            await _knows_all(child, port, len(urls))
        yield Routers(ports, pids + [child.pid for child in children])
        for child in children:
            await child.kill()  # nothing is lost, and a peer takes seconds to end in good order


def _child(
    router: Router, name: str, port: int, urls: Sequence[str], shared: Sequence[str], folder: Path
) -> Child:
    listen = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls]
    if router in BINARIES:
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        arguments = ["launch", *listen, "--policy", "cache_aware", "--log-level", "error", *metrics]
        return Child(name, arguments, folder, program=(str(HOME / BINARIES[router]),))
    queue = ["--disable-queue"] if router is Router.NO_QUEUE else []
    return Child(name, ["serve", *listen, "--shutdown-delay-secs", "0", *shared, *queue], folder)


async def _knows_all(child: Child, port: int, workers: int) -> None:
    """Wait until a router lists all workers; `ChildFailed` if it does not in time."""
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(KNOWN_TIMEOUT_S),
            httpx.AsyncClient(trust_env=False, timeout=5.0) as client,
        ):
            while True:
                listed: list[dict[str, object]] = []
                # Several fleets start at the same time, and what listens there may still be another's.
                with contextlib.suppress(httpx.TransportError, ValueError):
                    answer = await client.get(f"http://127.0.0.1:{port}/workers")
                    listed = answer.json()["workers"] if answer.status_code == 200 else []
                if sum(bool(worker.get("is_healthy", True)) for worker in listed) == workers:
                    return
                await asyncio.sleep(POLL_S)
    raise ChildFailed(f"{child.name} did not find {workers} workers; its log is {child.log}")
