"""Faults of the Valkey that replicas share: each strikes, lasts, and is mended.

A fault is an async context manager over a `Stage`. Those with ``lasting`` False are over as soon as they have
struck, and take something away for ever.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from loadtest.chaos.tcp_proxy import TcpProxy
from loadtest.chaos.valkey import SentinelGroup, ValkeyServer

SLOW_S = 0.1
"""Delay of a slow server's answers: many times the round trip within one region."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Place of a fault.

    Attributes:
        server: The server that has the data.
        url: The replicas' ``--redis-url``.
        proxy: Between the two; none with Sentinel, whose clients get the server's own address.
    """

    server: ValkeyServer
    url: str
    proxy: TcpProxy | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        strike: Strikes on entering, mends on leaving.
        word: Required word of the reason, in lower case; empty if the server only does not answer.
        lasting: It lasts until it is mended.
        sentinel: It needs a server with a successor.
        half: It hits every other replica: the rest reach the server without the proxy.
    """

    name: str
    strike: Callable[[Stage], AbstractAsyncContextManager[None]]
    word: str = ""
    lasting: bool = True
    sentinel: bool = False
    half: bool = False

    def url_of(self, stage: "Stage", number: int) -> str:
        """``--redis-url`` of the n-th replica."""
        return stage.server.url if self.half and not number % 2 else stage.url


@asynccontextmanager
async def staged(fault: Fault) -> AsyncIterator[Stage]:
    """Start the servers that a fault needs."""
    async with AsyncExitStack() as stack:
        if fault.sentinel:
            group = await stack.enter_async_context(SentinelGroup())
            yield Stage(group.servers[0], group.url)
        else:
            server = await stack.enter_async_context(ValkeyServer())
            proxy = await stack.enter_async_context(TcpProxy(server.address))
            yield Stage(server, proxy.url, proxy)


@asynccontextmanager
async def _killed_and_started_empty(stage: Stage) -> AsyncIterator[None]:
    await stage.server.kill()
    yield
    await stage.server.start()


@asynccontextmanager
async def _killed_and_started_with_its_data(stage: Stage) -> AsyncIterator[None]:
    await stage.server.configure(appendfsync="always")
    await stage.server.configure(appendonly="yes")
    await stage.server.command("CONFIG", "REWRITE")
    await stage.server.kill()
    yield
    await stage.server.start()


@asynccontextmanager
async def _paused(stage: Stage) -> AsyncIterator[None]:
    stage.server.pause()
    yield
    stage.server.resume()


@asynccontextmanager
async def _out_of_memory(stage: Stage) -> AsyncIterator[None]:
    await stage.server.configure(maxmemory=1)
    yield
    await stage.server.configure(maxmemory=0)


@asynccontextmanager
async def _read_only(stage: Stage) -> AsyncIterator[None]:
    await stage.server.read_only()
    yield
    await stage.server.read_only(on=False)


@asynccontextmanager
async def _without_replicas(stage: Stage) -> AsyncIterator[None]:
    await stage.server.configure(min_replicas_to_write=1)
    yield
    await stage.server.configure(min_replicas_to_write=0)


@asynccontextmanager
async def _refusing_auth(stage: Stage) -> AsyncIterator[None]:
    await stage.server.require_password("another")
    yield
    await stage.server.require_password("")


@asynccontextmanager
async def _slow(stage: Stage) -> AsyncIterator[None]:
    assert stage.proxy is not None
    stage.proxy.delay_s = SLOW_S / 2
    yield
    stage.proxy.delay_s = 0.0


@asynccontextmanager
async def _silent(stage: Stage) -> AsyncIterator[None]:
    assert stage.proxy is not None
    stage.proxy.blackhole()
    yield
    await stage.proxy.heal()


@asynccontextmanager
async def _flushed(stage: Stage) -> AsyncIterator[None]:
    await stage.server.command("FLUSHALL")
    yield


@asynccontextmanager
async def _rolled_back(stage: Stage) -> AsyncIterator[None]:
    """To a copy whose making is not part of the fault: `ValkeyServer.keep_copy` some time before."""
    await stage.server.roll_back()
    yield


@asynccontextmanager
async def _replaced(stage: Stage) -> AsyncIterator[None]:
    """The successor may lack the primary's last acknowledged writes."""
    await stage.server.kill()
    yield


FAULTS = (
    Fault("killed, started empty", _killed_and_started_empty),
    Fault("killed, started with its data", _killed_and_started_with_its_data),
    Fault("paused", _paused),
    Fault("out of memory", _out_of_memory, "memory"),
    Fault("read-only", _read_only, "read"),
    Fault("without its replicas", _without_replicas, "replicas"),
    Fault("refusing auth", _refusing_auth, "auth"),
    Fault("slow", _slow, "late"),
    Fault("silent network", _silent),
    Fault("half cut off", _silent, half=True),
    Fault("flushed", _flushed, lasting=False),
    Fault("rolled back", _rolled_back, lasting=False),
    Fault("replaced by Sentinel", _replaced, lasting=False, sentinel=True),
)
"""All of them; those that last first."""
