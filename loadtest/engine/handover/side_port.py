"""The port where decode engines come, and the calls that they hold open until their KV is there."""

import asyncio
from collections.abc import Callable

from loadtest.engine.server import Answer, Connection, Request

_BODY_BYTES_MAX = 1 << 20


class SidePort:
    """A listening socket beside the engine's API, on ``port`` or a free one; a `Handler`."""

    def __init__(self, port: int, serve: Callable[[Request, Answer], None]) -> None:
        self.body_bytes_max = _BODY_BYTES_MAX
        self.host = ""
        self.port = port
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._closed = False

    async def open(self, host: str) -> None:
        """Listen, unless it does; `OSError` if the port is taken."""
        if self._server is not None:
            return
        self.host = host
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop at once; calls that are held open are reset, and those that had just been accepted."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.reset()

    def handle(self, request: Request, answer: Answer) -> None:
        """See `Handler`."""
        self._serve(request, answer)

    def error_body(self, status: int) -> bytes:
        """See `Handler`; no fault strikes here."""
        raise AssertionError(status)

    def opened(self, connection: Connection) -> None:
        """See `Handler`."""
        if self._closed:
            connection.reset()
        else:
            self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """See `Handler`."""
        self._connections.discard(connection)


class HeldCall:
    """A call that is answered later, the `Owner` of its answer.

    ``left`` is called if the caller gives up first.
    """

    def __init__(self, answer: Answer, left: "Callable[[HeldCall], None]") -> None:
        self.answer = answer
        self._left = left
        answer.owner = self

    def resume(self) -> None:
        """See `Owner`; answers are short."""

    def client_left(self) -> None:
        """See `Owner`."""
        self._left(self)
