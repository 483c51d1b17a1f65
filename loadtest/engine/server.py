"""HTTP/1.1 for an engine: a minimal asyncio protocol on httptools.

One `Connection` per socket, one `Answer` at a time on it; pipelined requests wait, and the socket is not read
meanwhile. An answer is written by synchronous calls, without task or queue: when the client reads too slowly
`Answer.admits` is False, and the owner waits for `resume`. Faults strike here, where the sent bytes are
known.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import unquote

import httptools

from loadtest.engine.faults import Fault

_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed"} | {
    413: b"Content Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_RST_ON_CLOSE = struct.pack("ii", 1, 0)
_PIPELINED_MAX = 16


@dataclass(slots=True)
class Request:
    """A complete request.

    Attributes:
        path: Decoded, without the query.
        headers: Names in lower case; the last of equal names wins.
        chunked: The client understands chunked answers (HTTP/1.1).
    """

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    chunked: bool


class Owner(Protocol):
    """Producer of an answer over time."""

    def resume(self) -> None:
        """Writing is possible again: send the kept bytes."""

    def client_left(self) -> None:
        """The connection is gone before `Answer.end`. Comes at most once."""


class Handler(Protocol):
    """The engine, seen from its connections."""

    body_bytes_max: int

    def handle(self, request: Request, answer: "Answer") -> None:
        """Answer now, or set ``answer.owner`` and answer later."""

    def error_body(self, status: int) -> bytes:
        """Body of the engine's failures."""

    def opened(self, connection: "Connection") -> None:
        """A client connected."""

    def closed(self, connection: "Connection") -> None:
        """It is gone."""


class Answer:
    """The answer to one request; calls after the connection is gone do nothing."""

    __slots__ = ("_chunks", "_connection", "_request", "_stalled", "_streaming", "fault", "owner")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self._request = request
        self._chunks = 0
        self._stalled = False
        self._streaming = False
        self.owner: Owner | None = None
        self.fault: Fault | None = None

    @property
    def writable(self) -> bool:
        """True if the connection takes more now."""
        return not self._stalled and not self._connection.paused

    @property
    def streaming(self) -> bool:
        """True if the head of an event stream has been sent."""
        return self._streaming

    def send(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """Answer in one piece."""
        if self.fault is not None and self.fault.kind == "error":
            status, body = self.fault.status, self._connection.handler.error_body(self.fault.status)
        head = b"HTTP/1.1 %d %s\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (
            status,
            _REASONS.get(status, b"Error"),
            content_type,
            len(body),
            b"" if self._request.keep_alive else b"connection: close\r\n",
        )
        fault, self.fault = self.fault, None
        if fault is not None and fault.kind != "error":
            half = len(body) // 2 if fault.after_chunks else 0
            self._connection.write(head + body[:half])
            if fault.kind == "stall":
                if fault.seconds:
                    self._connection.call_later(fault.seconds, lambda: self._finish(body[half:]))
            else:
                self.strike(fault)
            return
        self._finish(head + body)

    def start(self) -> None:
        """Send the head of an event stream at once."""
        self._connection.write(self._stream_head())

    def admits(self) -> bool:
        """Let a fault strike that is due now, then say whether to write the next piece of a stream."""
        fault = self.fault
        if fault is not None and self._chunks >= fault.after_chunks and self.writable:
            self.fault = None
            if fault.after_head:
                self.start()
            self.strike(fault)
        return self.writable

    def write(self, data: bytes) -> None:
        """Send one piece of an event stream, with the head if it is the first."""
        self._chunks += 1
        chunk = b"%x\r\n%s\r\n" % (len(data), data) if self._request.chunked else data
        self._connection.write(chunk if self._streaming else self._stream_head() + chunk)

    def end(self) -> None:
        """End an event stream."""
        if not self._request.chunked:
            self._request.keep_alive = False
        self._finish(b"0\r\n\r\n" if self._request.chunked else b"")

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Do something later, unless the client is gone by then."""
        self._connection.call_later(delay_s, callback)

    def _stream_head(self) -> bytes:
        if self._streaming:
            return b""
        self._streaming = True
        return (
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n%s\r\n"
            % (b"transfer-encoding: chunked\r\n" if self._request.chunked else b"connection: close\r\n")
        )

    def _finish(self, data: bytes) -> None:
        self.owner = None
        self._connection.finish(data, keep=self._request.keep_alive)

    def strike(self, fault: Fault) -> None:
        """Let a fault happen now."""
        if fault.kind == "error":
            self.write(b"data: %s\n\ndata: [DONE]\n\n" % self._connection.handler.error_body(fault.status))
            owner = self.owner
            self.end()
            if owner is not None:
                self._connection.call_later(0.0, owner.client_left)
        self._stalled = True
        match fault.kind:
            case "reset":
                self._connection.reset()
            case "close":
                self._connection.close()
            case "garbage":
                self._connection.write(b"\x00\xffthis is not HTTP\r\n\r\n")
                self._connection.close()
            case "stall" if fault.seconds:
                self._connection.call_later(fault.seconds, self._resume)

    def _resume(self) -> None:
        self._stalled = False
        if self.owner is not None and self.writable:
            self.owner.resume()


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.paused = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._answer: Answer | None = None
        self._waiting: deque[Request] = deque()
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def open(self) -> bool:
        """True if anything can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def idle(self) -> bool:
        """True if no request is being answered."""
        return self._answer is None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run something later, unless the connection is gone by then."""
        self._loop.call_later(delay_s, lambda: callback() if self._transport is not None else None)

    def write(self, data: bytes) -> None:
        """Write bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self, data: bytes, *, keep: bool) -> None:
        """Write the last bytes of an answer and go on with the next request."""
        if data:
            self.write(data)
        self._answer = None
        if not keep:
            self.close()
        elif self._waiting:
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """Close after the written bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close with RST."""
        if self._transport is not None:
            raw: socket.socket = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        # Not asserted: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.handler.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = None
        self._waiting.clear()
        self.handler.closed(self)
        answer, self._answer = self._answer, None
        if answer is not None and answer.owner is not None:
            owner, answer.owner = answer.owner, None
            owner.client_left()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.paused = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.paused = False
        if self._answer is not None and self._answer.owner is not None and self._answer.writable:
            self._answer.owner.resume()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            self._refuse(400, b"invalid HTTP request")
        # Not from the parser's callback: it would turn our own mistakes into parse errors.
        if self._waiting:
            self._next()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body_bytes += len(body)
        if self._body_bytes <= self.handler.body_bytes_max:
            self._body.append(body)
        elif self.open:
            self._refuse(413, b"request body too large")

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not self.open:
            return
        url = httptools.parse_url(self._url)
        modern = self._parser.get_http_version() == "1.1"
        request = Request(
            method=self._parser.get_method().decode(),
            path=unquote((url.path or b"/").decode("latin-1")),
            query=(url.query or b"").decode("latin-1"),
            headers=self._headers,
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
            keep_alive=modern and self._parser.should_keep_alive(),
            chunked=modern,
        )
        self._body = []
        self._waiting.append(request)

    def _next(self) -> None:
        """Answer what waits, as long as answers are immediate; read on only if few still wait."""
        while self._waiting and self._answer is None and self.open:
            request = self._waiting.popleft()
            answer = self._answer = Answer(self, request)
            self.handler.handle(request, answer)
        if self._transport is None or self._transport.is_closing():
            return
        if len(self._waiting) >= _PIPELINED_MAX:
            self._transport.pause_reading()
        elif not self._transport.is_reading():
            self._transport.resume_reading()

    def _refuse(self, status: int, message: bytes) -> None:
        self.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, _REASONS[status], len(message), message)
        )
        self.close()
