"""A plain TCP load balancer in front of replicas: it passes bytes and knows no HTTP.

It asks each backend's ``/readiness`` again and again, and gives new connections to those that answered 200,
in turn. One that refuses a connection is passed over. A connection stays where it was opened.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import httpx

POLL_S = 0.2


class Balancer:
    """Balances over backends on this host. Made by `balancer`.

    Attributes:
        port: Port on which it listens.
        ready: Ports of the backends that answered 200 when asked last.
        refused: Connections that no backend took.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = 0
        self.ready: set[int] = set()
        self.refused = 0
        self._ports = tuple(ports)
        self._next = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def watch(self, client: httpx.AsyncClient) -> None:
        """Ask every backend for its readiness, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for port in self._ports:
                group.create_task(self._watch_one(client, port))

    async def _watch_one(self, client: httpx.AsyncClient, port: int) -> None:
        while True:
            try:
                # A connection each time, as probes of balancers and kubelets do.
                answer = await client.get(
                    f"http://127.0.0.1:{port}/readiness", headers={"connection": "close"}
                )
                ready = answer.status_code == 200
            except httpx.HTTPError:
                ready = False
            (self.ready.add if ready else self.ready.discard)(port)
            await asyncio.sleep(POLL_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            backend = await self._connected()
            if backend is None:
                self.refused += 1
                return
            try:
                await asyncio.gather(_pass(reader, backend[1]), _pass(backend[0], writer))
            finally:
                backend[1].transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self._ports:
            port = self._ports[self._next % len(self._ports)]
            self._next += 1
            if port in self.ready:
                with contextlib.suppress(OSError):
                    return await asyncio.open_connection("127.0.0.1", port)
        return None

    async def close(self) -> None:
        """End all open connections."""
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on to their end; a connection that breaks breaks the other one, too."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def balancer(ports: Sequence[int]) -> AsyncIterator[Balancer]:
    """Run a balancer in this event loop."""
    running = Balancer(ports)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
        watcher = asyncio.create_task(running.watch(client), name="balancer")
        try:
            yield running
        finally:
            server.close()
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await running.close()
