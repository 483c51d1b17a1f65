"""Gateways and engines on real sockets, in this event loop or as processes of their own."""

import asyncio
import contextlib
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.processes import free_port
from router.app import GatewayProcess
from router.server import GatewayServer
from router.serving import GatewayConfig, bound
from router.settings import Settings

FAST_ENGINE = EngineSettings(prefill_tokens_per_s=1e7, prefill_base_ms=0.1, tpot_ms=0.2, block_tokens=16)
"""Times small enough not to slow the tests down, and a cache of real size."""

WITHIN_S = 60.0
"""Most seconds that a test waits, even on a busy machine; only a failing test takes that long."""

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: the authorities that httpx would load for each take it 30 ms."""


class QuietServer(GatewayServer):
    """A server in the test's event loop, which leaves the signals alone."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


@dataclass
class RunningGateway:
    """One gateway in this process."""

    url: str
    process: GatewayProcess
    server: QuietServer
    task: asyncio.Task[None]
    client: httpx.AsyncClient

    def idle(self) -> bool:
        """True if all reservations are released."""
        loads = self.process.fleet.loads
        return (
            not loads.requests
            and self.process.gateway.sending.inflight == 0
            and not loads.prefill_us.any()
            and not loads.inflight_tokens.any()
        )


@dataclass
class Fleet:
    """Starts engines and gateways, and stops them after the test."""

    redis_url: str
    namespace: str
    stack: contextlib.AsyncExitStack
    gateways: list[RunningGateway] = field(default_factory=list)
    engines: list[EmulatedEngine] = field(default_factory=list)

    async def engine(self, settings: EngineSettings = FAST_ENGINE) -> EmulatedEngine:
        """Start an emulated engine."""
        self.engines.append(await self.stack.enter_async_context(EmulatedEngine(settings)))
        return self.engines[-1]

    async def gateway(self, *urls: str, **sections: dict[str, Any]) -> RunningGateway:
        """Start a gateway in this event loop, in front of some workers.

        Its admin API is on the data port, unless ``admin`` gives it one.
        """
        settings = Settings.model_validate(
            {
                **sections,
                "server": {"host": "127.0.0.1", "port": free_port(), **sections.get("server", {})},
                "fleet": {
                    "worker_urls": list(urls),
                    "health_check_interval_s": 0.2,
                    **sections.get("fleet", {}),
                },
                "shared": {
                    "redis_url": self.redis_url,
                    "namespace": self.namespace,
                    "snapshot_interval_s": 1.0,
                    **sections.get("shared", {}),
                },
                "admin": {"port": 0, **sections.get("admin", {})},
            }
        )
        admin = settings.admin
        admin_listener = bound(admin.host, admin.port) if admin.port else None
        config = GatewayConfig(settings, self.redis_url, admin_listener=admin_listener)
        server = QuietServer(config)
        task = asyncio.create_task(server.serve(), name="gateway")
        self.stack.push_async_callback(_stopped, server, task)
        await until(lambda: server.started or task.done())
        if task.done():
            task.result()
        url = f"http://127.0.0.1:{settings.server.port}"
        client = await self.stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=WITHIN_S, verify=PLAIN, trust_env=False)
        )
        running = RunningGateway(url, config.process, server, task, client)
        self.gateways.append(running)
        return running


async def _stopped(server: QuietServer, task: asyncio.Task[None]) -> None:
    server.should_exit = True
    await task


async def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: If it does not come true.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - plain state, without a signal
            await asyncio.sleep(0.005)


async def until_async(condition: Callable[[], Awaitable[object]], within_s: float = WITHIN_S) -> None:
    """Wait for a condition that has to ask."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - it is another process's state
            await asyncio.sleep(0.05)  # a question costs the process that answers milliseconds


@contextlib.asynccontextmanager
async def command(
    *arguments: str,
    ready_url: str | None = None,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "router"),
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``cacheway`` as a process of its own; terminate it in the end, by its PID.

    A gateway ends without the delay that a balancer needs, and has its admin API on the data port, unless the
    test asks for something else.

    The ``output`` of the process gathers the lines that it writes.

    Args:
        arguments: Arguments of the command.
        ready_url: Answers 200 when the process is ready.
        environ: Added to its environment, which has no settings of ours otherwise.
        program: Program for Python; by default ``cacheway`` itself.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("CACHEWAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **inherited,
            "CACHEWAY_SHUTDOWN_DELAY_SECS": "0",
            "CACHEWAY_ADMIN_PORT": "0",
            **(environ or {}),
        },
    )
    assert process.stdout is not None
    output: list[bytes] = []
    process.output = output  # type: ignore[attr-defined]
    reader = asyncio.create_task(_collect(process.stdout, output))
    try:
        if ready_url is not None:
            async with httpx.AsyncClient(verify=PLAIN, trust_env=False) as client:

                async def ready() -> bool:
                    assert process.returncode is None, b"".join(output).decode()
                    with contextlib.suppress(httpx.HTTPError):
                        return (await client.get(ready_url)).status_code == 200
                    return False

                await until_async(ready)
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(15):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await reader


@contextlib.asynccontextmanager
async def serving(
    redis_url: str,
    namespace: str,
    worker_urls: Sequence[str],
    *flags: str,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "router"),
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """Run a gateway as a process of its own (`command`), and a client of it, once it is ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        command(
            *("serve", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *worker_urls),
            *("--redis-url", redis_url, "--namespace", namespace, *flags),
            ready_url=f"{url}/readiness",
            environ=environ,
            program=program,
        ) as process,
        httpx.AsyncClient(base_url=url, timeout=WITHIN_S, verify=PLAIN, trust_env=False) as client,
    ):
        yield process, client


async def warmed(client: httpx.AsyncClient) -> None:
    """Wait until a gateway has all the facts of its siblings."""

    async def warm() -> bool:
        return bool((await client.get("/readiness")).json()["shared"]["warm"])

    await until_async(warm)


async def _collect(stream: asyncio.StreamReader, into: list[bytes]) -> None:
    while line := await stream.readline():
        into.append(line)
