"""One proxied request on a client's connection, and its answer.

    receiving --body complete, its turn--> started --finish--> complete
        |                                    |--abort--------> complete, connection closed
        |                                    +--client left--> disconnected
        +--refused, its turn--> refused
        +--turned away, its turn--> started without its body --finish--> complete, connection closed

`Answer` is an exchange's `ports.ClientConnection`, and to uvicorn a *cycle* without an ASGI task. A write is
a system call (14 µs beside `loadtest.bench.serving processes --bare`, a quarter of a small request), so the
head leaves together with the first body bytes.
"""

import asyncio
import logging
import math
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from router.errors import RouterError, error_body
from router.proxy.headers import BODYLESS
from router.proxy.ports import BodySink, ClientRequest, Exchange, RequestHead

if TYPE_CHECKING:
    from router.proxy.client_protocol import GatewayProtocol

logger = logging.getLogger(__name__)

JOINED_BYTES_MAX = 16 * 1024
"""Size up to which a chunk is copied into its frame; beyond it, frame and data are written side by side."""

PIECE_BYTES_MIN = 4 * 1024
"""Smaller pieces of a body are appended to their neighbour, so that tiny chunks cost little memory."""

STREAM_HELD_BYTES = 384 * 1024
"""Counted for a body that is streamed: one read, and the buffer towards the worker."""

REQUEST_ID_BYTES_MAX = 256
"""Longest request id that is echoed."""


def retry_after(seconds: float) -> bytes:
    """A Retry-After header value: whole seconds, at least one."""
    return b"%d" % max(1, math.ceil(seconds))


def error_answer(error: RouterError, path: bytes = b"", request_id: bytes = b"") -> tuple[bytes, bytes]:
    """Header lines and body of an answer that is an error, in the dialect of a path's API."""
    lines = b"content-type: application/json\r\n"
    if error.status in (429, 503):
        lines += b"retry-after: %b\r\n" % retry_after(getattr(error, "retry_after_s", 1.0))
    return lines, error_body(error, path, request_id)


class Answer(RequestResponseCycle):
    """A request and its answer. `GatewayProtocol` makes it when the head is complete."""

    # The part of uvicorn's interface that `HttpToolsProtocol` uses. No task waits for this event.
    message_event = asyncio.Event()
    disconnected = False
    response_complete = False
    """True once its last byte is written, or its client has left."""

    body_complete = False
    expects_continue = False
    """True if the client waits to be asked for the body."""
    refusal: RouterError | None = None
    """The error that answers it, without its body."""
    turned_away = False
    """True if its exchange answers with the refusal, so that it is counted and logged like others."""
    judged = False
    """True if its body may come in."""
    exchange: Exchange | None = None
    streams = False
    """True if its exchange begins before its body is complete."""
    tunnels = False
    """True if it is a WebSocket: what follows its head are bytes, both ways."""
    sink: BodySink | None = None
    """Receiver of a streamed body, once it has asked for it."""
    forwarded_for = ""
    _pieces: list[bytes | bytearray] | None = None
    _head_sent = False
    chunked = False
    """True if its body goes out in chunks."""
    _bodyless = False
    _left_bytes: int | None = None
    body_bytes = 0
    length = 0
    """Declared length of the body, or 0."""
    counted_bytes = 0

    def __init__(self, protocol: "GatewayProtocol", head: RequestHead) -> None:
        # uvicorn's constructor builds an ASGI request, which this is not.
        self.head = head
        self.keep_alive = head.keep_alive
        self._protocol = protocol

    # The request

    def add_body(self, data: bytes) -> int:
        """Add a piece of the body; return the length so far, or raise `RequestRejected` if it has no room."""
        pieces = self._pieces
        if pieces is None:
            self._pieces = [data]
        elif len(data) >= PIECE_BYTES_MIN:
            pieces.append(data)
        elif isinstance(last := pieces[-1], bytearray):
            last += data
        else:
            pieces.append(bytearray(data))
        self.body_bytes = body_bytes = self.body_bytes + len(data)
        if self.streams:
            return 0 if self.tunnels else body_bytes
        counted_bytes, length = self.counted_bytes, self.length
        if counted_bytes < length or counted_bytes < body_bytes:
            self.counted_bytes = self._protocol.held.grow(counted_bytes, body_bytes, length)
        return body_bytes

    def take_whole(self, body: bytes) -> None:
        """Take a body that came at once; raise `RequestRejected` if it has no room."""
        size = len(body)
        self.counted_bytes = self._protocol.held.grow(0, size, size)
        self._pieces = [body]
        self.body_complete = True

    def release_body(self) -> None:
        """Drop the body, and count it no longer. Idempotent."""
        self._pieces = None
        counted_bytes, self.counted_bytes = self.counted_bytes, 0
        self._protocol.held.release(counted_bytes)

    def refuse(self, error: RouterError, *, turned_away: bool = False) -> None:
        """Answer with an error when its turn comes, and drop the body."""
        self.refusal, self.turned_away = error, turned_away
        self.keep_alive = False
        self.release_body()

    def start(self) -> None:
        """Begin the exchange. The body is complete (or refused), and every earlier answer is sent."""
        refusal = self.refusal
        if refusal is not None and not self.turned_away:
            self._refuse(refusal)
            return
        body = b""
        if self._pieces is not None and not self.streams:
            body = b"".join(self._pieces)
            self._pieces = None
        protocol = self._protocol
        request = ClientRequest(
            self.head, body, self.forwarded_for or protocol.peer, time.monotonic(), refusal
        )
        try:
            exchange = protocol.start_exchange(request, self)
        except Exception:
            logger.exception("request failed", extra={"event": "request.failed"})
            if self._head_sent:
                self.abort()
            else:
                self._refuse(RouterError("internal error"))
            return
        if not self.response_complete:
            self.exchange = exchange
            if protocol.flow.write_paused:
                exchange.pause()

    # ports.StreamingConnection

    def read_body(self, sink: BodySink) -> None:
        """Deliver what has come, before this returns, and then what comes."""
        self.sink = sink
        self.deliver()

    def deliver(self) -> None:
        """Pass what has come to the sink; in no callback of the parser, so that it may end the answer."""
        if self.sink is not None and self._pieces is not None:
            pieces, self._pieces = self._pieces, None
            self.sink.body_data(b"".join(pieces))
        if self.sink is not None and self.body_complete:
            sink, self.sink = self.sink, None
            sink.body_end()

    def fail_body(self, error: RouterError) -> None:
        """Tell the sink that the rest of the body is not accepted."""
        sink, self.sink = self.sink, None
        self.refusal = error
        self.keep_alive = False
        if sink is not None:
            sink.body_failed(error)

    def hold_body(self, size: int) -> None:
        """Count what the exchange holds of a streamed body; raise `RequestRejected` without room for it."""
        held = self._protocol.held
        self.counted_bytes = held.grow(self.counted_bytes, STREAM_HELD_BYTES + size, 0)

    def pause_body(self) -> None:
        """Read no more of the body for now."""
        if not self.body_complete:
            self._protocol.flow.held = True
            self._protocol.flow.pause_reading()

    def resume_body(self) -> None:
        """Read on."""
        flow = self._protocol.flow
        if flow.held:
            flow.held = False
            flow.resume_reading()

    def switch_protocols(self, lines: bytes) -> None:
        """Answer 101; from now on bytes pass unframed."""
        if self.response_complete:
            return
        self._head_sent = True
        self.keep_alive = False
        self._protocol.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n%b\r\n" % lines
        )

    # ports.ClientConnection

    def send_head(self, status: int, lines: bytes, *, length: int | None, body: bytes = b"") -> None:
        """Begin the answer; frame it as the client's HTTP version and the status allow."""
        if self.response_complete:
            return
        assert not self._head_sent
        self._head_sent = True
        if self.head.method == b"HEAD" or status in BODYLESS:
            self._bodyless = True
            self._left_bytes = 0
            framing = b"" if length is None or status == 204 else b"content-length: %d\r\n" % length
        elif length is not None:
            self._left_bytes = left_bytes = length - len(body)
            assert left_bytes >= 0, "more body than was announced"
            framing = b"content-length: %d\r\n" % length
        elif self.head.can_chunk:
            self.chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b""
            self.keep_alive = False
        if self.keep_alive and (
            (self.streams and not self.body_complete)
            or (self._protocol.ending.begun and self._protocol.is_last())
        ):
            self.keep_alive = False
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = (STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status) + lines + framing + end
        if not body or self._bodyless:
            self._protocol.transport.write(head)
        elif self.chunked or len(body) > JOINED_BYTES_MAX:
            self._write(head, body)
        else:
            self._protocol.transport.write(head + body)

    def send_body(self, data: bytes) -> None:
        """Pass on body bytes, as a chunk if the answer is chunked."""
        if data and not (self.response_complete or self._bodyless):
            left_bytes = self._left_bytes
            if left_bytes is not None:
                assert len(data) <= left_bytes, "more body than was announced"
                self._left_bytes = left_bytes - len(data)
            self._write(b"", data)

    def chunk_writer(self) -> Callable[[bytes], None]:
        """Return the function that passes on whole chunks as they came; only if `chunked`.

        It may not be called after the answer is complete; if its client has left, it does nothing.
        """
        return self._protocol.transport.write

    def _write(self, head: bytes, data: bytes) -> None:
        transport, size = self._protocol.transport, len(data)
        if not self.chunked:
            transport.writelines((head, data)) if head else transport.write(data)
        elif size <= JOINED_BYTES_MAX:
            transport.write(b"%b%x\r\n%b\r\n" % (head, size, data))
        else:
            transport.writelines((b"%b%x\r\n" % (head, size), data, b"\r\n"))

    def finish(self) -> None:
        """End the answer. Fewer bytes than announced abort it."""
        if self.response_complete:
            return
        assert self._head_sent
        if self._left_bytes:
            self.abort()
            return
        if self.chunked:
            self._protocol.transport.write(b"0\r\n\r\n")
        protocol = self._protocol
        self.response_complete = True
        self.exchange = None
        if self.counted_bytes:
            self.release_body()
        if self.streams or self.refusal is not None:
            self.sink = None
            self._pieces = None
            protocol.flow.held = False
            if self.refusal is not None or not self.body_complete:
                protocol.close_politely()  # its body may still be on its way
                return
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()

    def abort(self) -> None:
        """Close the connection so that the client notices."""
        if self.response_complete:
            return
        self.response_complete = True
        self.exchange = self.sink = None
        self.release_body()
        protocol = self._protocol
        if self._head_sent and not self.chunked and self._left_bytes is None:
            # The end of the connection would end this answer: only a reset tells the client that it is cut.
            sock: socket.socket | None = protocol.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        protocol.transport.abort()

    def leave(self) -> None:
        """Tell the exchange once that its client is gone."""
        if self.response_complete:
            return
        self.response_complete = True
        exchange, self.exchange = self.exchange, None
        self.sink = None
        if exchange is not None:
            exchange.client_left()
        self.release_body()

    def _refuse(self, error: RouterError) -> None:
        self.release_body()
        request_id = next((value for name, value in self.head.headers if name == b"x-request-id"), b"")
        if not 0 < len(request_id) <= REQUEST_ID_BYTES_MAX:
            request_id = uuid4().hex.encode()
        lines, body = error_answer(error, self.head.path, request_id)
        self.keep_alive = False
        lines += b"x-request-id: %b\r\n" % request_id
        self.send_head(error.status, lines, length=len(body), body=body)
        self.response_complete = True
        self._protocol.close_politely()
