"""A scripted worker, a sink that writes down what it hears, and both event loops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from ssl import SSLContext

import pytest
import uvicorn
import uvloop
from fastapi import FastAPI, Request
from uvicorn.server import ServerState

from router.proxy import (
    ClientConnection,
    ClientLimits,
    ClientRequest,
    Clients,
    Ending,
    GatewayProtocol,
    HeldBytes,
    JudgeHead,
    Route,
    UpstreamRequest,
    make_protocol,
)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test here on both loops: their transports differ where it matters."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


async def until(condition: Callable[[], object], wait_s_max: float = 60.0) -> None:
    """Wait for a condition; fail if it does not come true."""
    async with asyncio.timeout(wait_s_max):
        while not condition():  # noqa: ASYNC110 (any condition, most have no event)
            await asyncio.sleep(0.002)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one request with a Content-Length; returns head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head, await reader.readexactly(length)


class ScriptedWorker:
    """A TCP server that runs a script per connection and remembers requests and connections."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.closed_connections = 0
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, script: Script, ssl: object = None, limit: int = 2**24) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await script(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self.closed_connections += 1
                self._tasks.discard(task)
                writer.close()

        self._server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ssl, limit=limit)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}"
        return self.url

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request, remember it and return its body."""
        head, body = await read_request(reader)
        self.requests.append((head, body))
        return body

    async def answer_with(self, answer: bytes) -> str:
        """Serve every request with the same bytes, keeping connections alive."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await self.request(reader)
                writer.write(answer)

        return await self.start(script)

    async def answer_once_with(self, answer: bytes) -> str:
        """Serve one request per connection, then close it."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.request(reader)
            writer.write(answer)

        return await self.start(script)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await until(lambda: not self._tasks)


class RecordingSink:
    """Writes down what it hears and checks that the order is legal."""

    def __init__(self) -> None:
        self.status = 0
        self.lines = b""
        self.length: int | None = None
        self.pieces: list[bytes] = []
        self.ended = False
        self.error: Exception | None = None
        self.on_head: Callable[[], None] | None = None
        self.on_data: Callable[[], None] | None = None
        self.handle: UpstreamRequest | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def done(self) -> bool:
        return self.ended or self.error is not None

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        assert not self.done
        assert not self.status
        self.status, self.lines, self.length = status, lines, length
        if self.on_head is not None:
            self.on_head()

    def upstream_data(self, data: bytes) -> None:
        assert self.status
        assert not self.done
        self.pieces.append(data)
        if self.on_data is not None:
            self.on_data()

    def upstream_end(self) -> None:
        assert self.status
        assert not self.done
        self.ended = True

    def upstream_failed(self, error: Exception) -> None:
        assert not self.done
        self.error = error


class RecordingExchange:
    """One request as the gateway would see it; the test plays the gateway."""

    def __init__(self, request: ClientRequest, connection: ClientConnection) -> None:
        self.request = request
        self.connection = connection
        self.calls: list[str] = []
        self.on_interrupt: Callable[[], None] = lambda: self.answer(b"interrupted", status=503)

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def client_left(self) -> None:
        self.calls.append("client_left")

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        self.on_interrupt()

    def answer(self, body: bytes, status: int = 200) -> None:
        self.connection.send_head(status, b"x-served-by: exchange\r\n", length=len(body), body=body)
        self.connection.finish()


def route_of(method: bytes, path: bytes) -> Route:
    """Under ``/v1/`` bodies are awaited, under ``/up/`` streamed; ``/tunnel`` is a WebSocket."""
    if method == b"POST" and path.startswith((b"/v1/", b"/up/")):
        return Route.WHOLE if path.startswith(b"/v1/") else Route.STREAMED
    return Route.TUNNELLED if (method, path) == (b"GET", b"/tunnel") else Route.APPLICATION


class Gateway:
    """The server under test: `route_of` says what is proxied, the rest is a FastAPI application."""

    def __init__(self) -> None:
        self.exchanges: list[RecordingExchange] = []
        self.on_start: Callable[[RecordingExchange], None] | None = None
        self.state = ServerState()
        self.ending = Ending()
        self.clients: Clients | None = None
        self.port = 0
        self.app = FastAPI()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

        @self.app.get("/hello")
        async def hello() -> dict[str, str]:
            return {"from": "app"}

        @self.app.post("/size")
        async def size(request: Request) -> dict[str, int]:
            return {"bytes": len(await request.body())}

    def start_exchange(self, request: ClientRequest, connection: ClientConnection) -> RecordingExchange:
        exchange = RecordingExchange(request, connection)
        self.exchanges.append(exchange)
        if self.on_start is not None:
            self.on_start(exchange)
        return exchange

    def config(
        self,
        limits: ClientLimits | None = None,
        judge: JudgeHead | None = None,
        held: HeldBytes | None = None,
        **options: object,
    ) -> uvicorn.Config:
        protocol = make_protocol(
            self.start_exchange,
            route_of,
            limits,
            self.ending,
            self.clients,
            judge=judge,
            held=held,
        )
        self.held, self.all_unread = protocol.held, protocol.all_unread
        return uvicorn.Config(
            self.app, http=protocol, loop="none", lifespan="off", log_config=None, **options
        )

    async def start(
        self, limits: ClientLimits | None = None, *, ssl: SSLContext | None = None, **options: object
    ) -> None:
        """Accept connections with the protocol alone, without uvicorn's server around it."""
        config = self.config(limits, **options)
        config.load()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config, self.state, {}), "127.0.0.1", 0, ssl=ssl
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def end(self, idle_s: float) -> None:
        """Tell the connections what a server tells them when its process ends."""
        self.ending.begin(idle_s)
        for connection in self.connections:
            connection.shutdown()

    @property
    def connections(self) -> list[GatewayProtocol]:
        """Those that are open."""
        return [
            connection for connection in self.state.connections if isinstance(connection, GatewayProtocol)
        ]

    async def connect(
        self, data: bytes = b"", *, ssl: SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=ssl)
        self._writers.append(writer)
        writer.write(data)
        return reader, writer

    async def stop(self) -> None:
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()
        await until(lambda: not self.state.connections)
        await until(lambda: not self.state.tasks)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    yield gateway
    await gateway.stop()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one framed answer; returns the head in lower case and the decoded body."""
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
            return head, body
        if b"content-length: " not in head:
            return head, b""
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return head, await reader.readexactly(length)


@pytest.fixture(name="read_answer")
def _read_answer() -> Callable[..., Awaitable[tuple[bytes, bytes]]]:
    """Read one framed answer."""
    return read_answer


@pytest.fixture(name="until")
def _until() -> Callable[..., Awaitable[None]]:
    """Wait for a condition."""
    return until


@pytest.fixture
def new_sink() -> type[RecordingSink]:
    """Make a sink that writes down what it hears."""
    return RecordingSink


@pytest.fixture
async def worker() -> AsyncIterator[ScriptedWorker]:
    worker = ScriptedWorker()
    yield worker
    await worker.stop()
