"""One connection to a worker, and the requests that travel on it one after the other.

    connected --send--> sent --first byte--> answering --last byte--> connected (kept)
                         |                       |
                         +--- closed, silent ----+--> closed; the sink hears why
                         `--- closed at once, on a kept connection --> sent once more, if the pool allows

A connection is kept only after clean framing (answer complete, nothing behind it, ``keep-alive`` allowed,
request fully written), so that one request's leftovers never become another's answer. Parser callbacks only
collect; the result is delivered once per read, so a sink may abort, send again or fail in any call. A read
that repeats the head of an earlier answer is not parsed (`router.proxy.known_answers`).
"""

import asyncio
import copy
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httptools
import msgspec

from router.chunks import CHUNK_END, EVENT_END, SIZES, WAITING_MAX, PassedChunks
from router.errors import StreamBroken, UpstreamError, WorkerSilent, WorkerUnreachable
from router.proxy.headers import BODYLESS, NO_NAMES, named_by
from router.proxy.late_writes import LateTransport, late_writes
from router.proxy.ports import BodySource, UpstreamSink, WholeSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.proxy.upstream import WorkerPool

HEAD_BYTES_MAX = 64 * 1024
"""Longest head of an answer, and the most framing between two pieces of its body."""

STALE_S = 0.1
"""Seconds after a request has left within which a kept connection may close and count as stale: a round trip
and a turn of a busy event loop. After a later close the worker may have worked on the request, and RFC 9110
section 9.2.2 forbids a proxy to repeat such a POST."""

KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Seconds and probes until a vanished machine is noticed: a minute instead of the system's hours. Nothing
else limits the wait for an answer that comes whole. A busy worker's kernel answers the probes."""


SWITCHED = 101
"""Switching Protocols (RFC 9110 section 15.2.2)."""

_ACCEPTED = frozenset((b"sec-websocket-accept", b"sec-websocket-extensions", b"sec-websocket-protocol"))
"""Headers by which a worker accepts a WebSocket (RFC 6455 section 4.2.2)."""


class Malformed(Exception):
    """The worker's bytes are HTTP that the gateway does not accept."""


@dataclass(slots=True, eq=False)
class Upload:
    """A body that is written while its request is on its way; ``length`` None is chunked.

    A tunnel is one without framing or end, whose answer 101 makes the answer a stream of bytes, too.
    """

    source: BodySource
    length: int | None = None
    tunnels: bool = False
    ended: bool = False

    @property
    def framing(self) -> bytes:
        """The header line of the body's framing."""
        if self.tunnels:
            return b"connection: Upgrade\r\nupgrade: websocket\r\n"
        if self.length is None:
            return b"transfer-encoding: chunked\r\n"
        return b"content-length: %d\r\n" % self.length


class _Unparsed:
    """The parser of a connection that became a tunnel: there is nothing to parse."""

    def __init__(self, connection: "WorkerConnection") -> None:
        self._connection = connection

    def feed_data(self, data: bytes) -> None:
        """Take bytes."""
        if data:
            self._connection.on_body(data)


class PooledRequest(msgspec.Struct, eq=False):
    """A request waiting for a connection of a pool, or travelling on one (`ports.UpstreamUpload`)."""

    pool: "WorkerPool"
    data: "bytes | Sequence[bytes | memoryview]"  # its head and body, but not an `Upload`
    sink: UpstreamSink | None
    is_head: bool
    patient: bool = False
    resend: bool = True
    connection: "WorkerConnection | None" = None
    paused: bool = False
    queued_s: float = 0.0
    retried: bool = False
    upload: Upload | None = None
    passed: PassedChunks | None = None

    def write(self, data: bytes) -> None:
        """Send a piece of the body; nothing if the connection is gone."""
        upload, connection = self.upload, self.connection
        if connection is not None and upload is not None and data:
            framed = upload.tunnels or upload.length is not None
            connection.write(data if framed else b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """The body is complete."""
        upload, connection = self.upload, self.connection
        if connection is not None and upload is not None and not upload.ended:
            upload.ended = True
            if upload.length is None and not upload.tunnels:
                connection.write(b"0\r\n\r\n")

    def pause(self) -> None:
        """Stop reading the answer."""
        self.paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on."""
        self.paused = False
        if self.connection is not None:
            self.connection.resume()

    def abort(self) -> None:
        """Drop it now; the sink hears nothing more. Idempotent."""
        self.sink = None
        if self.connection is not None:
            self.connection.drop()
        else:
            self.pool.forget(self)

    def fail(self, error: UpstreamError) -> None:
        """Tell the sink, unless it has heard the end or aborted."""
        if self.retried and not error.asked:  # the first connection may have delivered it
            error = copy.copy(error)
            error.asked = True
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.upstream_failed(error)


class WorkerConnection(asyncio.Protocol):
    """The protocol of one connection. Only its pool makes and starts it."""

    __slots__ = (
        "_answered",
        "_answers",
        "_begun",
        "_between",
        "_chunked",
        "_complete",
        "_delivered",
        "_extra",
        "_framing_bytes",
        "_heard",
        "_hop_names",
        "_keep_alive",
        "_left_out_bytes",
        "_length",
        "_lines",
        "_loop",
        "_parser",
        "_pieces",
        "_pieces_end",
        "_pool",
        "_quiet_since_s",
        "_request",
        "_sent_s",
        "_status",
        "_transport",
        "_unsent_bytes",
        "_until_close",
        "_used",
        "_writing",
        "closed",
        "idle_since_s",
        "on_body",
    )

    def __init__(self, pool: "WorkerPool", loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._answers = pool.answers
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # no Python function per piece
        self._parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self._transport: LateTransport
        self._request: PooledRequest | None = None
        self._hop_names = NO_NAMES
        self._extra = self._until_close = self._keep_alive = self._used = False
        self._await_answer()
        self.closed = False
        self.idle_since_s = 0.0

    def _await_answer(self) -> None:
        """Forget the last answer, after whose end all other fields are as new."""
        self._length: int | None = None
        self._lines: list[bytes] = []
        self._status = self._framing_bytes = self._left_out_bytes = 0
        self._answered = self._delivered = self._begun = self._complete = False
        self._chunked = self._between = False

    # Called by the pool and the request

    def start(self, request: PooledRequest) -> None:
        """Send a request on an idle connection."""
        assert self._request is None
        self._request = request
        request.connection = self
        self._heard = self._writing = False
        self._unsent_bytes = 0
        self._sent_s = self._quiet_since_s = self._loop.time()
        self._transport.write(request.data)
        if request.paused:
            self._transport.pause_reading()
        if request.upload is not None:
            request.upload.source.worker_connected()

    def write(self, data: bytes) -> None:
        """Send bytes of a body; while there are any, the worker is not silent."""
        self._quiet_since_s = self._loop.time()
        self._transport.write(data)

    def pause(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read on; the time since the pause was the client's, not the worker's."""
        self._quiet_since_s = self._loop.time()
        self._transport.resume_reading()

    def drop(self) -> None:
        """Close at once without telling the sink."""
        self._let_go()
        if not self.closed:
            self.closed = True
            self._transport.abort()
            self._pool.lost(self)

    def break_off(self, error: UpstreamError) -> None:
        """Close at once and fail the request under way, if any."""
        request = self._request
        self.drop()
        if request is not None:
            request.fail(error)

    def give_up(self, why: str) -> None:
        """Close at once and fail the request under way, according to how far it got."""
        self.break_off(self._broken(why))

    def check(self, now_s: float) -> None:
        """Close if the worker has been silent for too long. The pool calls this now and then."""
        request = self._request
        if request is None or request.paused:
            return
        if self._heard:
            self._heard = False
            self._quiet_since_s = now_s
            if self._begun:
                return
        quiet_s = now_s - self._quiet_since_s
        rules = self._pool.rules
        if not self._begun:
            # Sending is not the worker's time: while bytes leave, the clock restarts.
            unsent_bytes = self._transport.get_write_buffer_size()
            if unsent_bytes != self._unsent_bytes:
                self._unsent_bytes = unsent_bytes
                self._quiet_since_s = now_s
            elif quiet_s > rules.first_byte_timeout_s and (unsent_bytes or not request.patient):
                what = "took nothing of the request for" if unsent_bytes else "did not answer within"
                self.break_off(WorkerSilent(f"{self._pool.origin} {what} {rules.first_byte_timeout_s:g} s"))
        elif quiet_s > rules.idle_timeout_s:
            message = f"{self._pool.origin} sent nothing for {rules.idle_timeout_s:g} s"
            self.break_off(StreamBroken(message, code="upstream_idle_timeout"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the pool uses it when the connection attempt has returned."""
        # uvloop's transports are not asyncio's, but have the same methods.
        self._transport = LateTransport(cast("asyncio.Transport", transport), late_writes(self._loop))
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):  # not on all systems
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def pause_writing(self) -> None:
        """Note that much of the request has not left."""
        self._writing = True
        if self._request is not None and self._request.upload is not None:
            self._request.upload.source.worker_slow()

    def resume_writing(self) -> None:
        """Note that nearly all of it has left."""
        self._writing = False
        self._sent_s = self._loop.time()
        if self._request is not None and self._request.upload is not None:
            self._request.upload.source.worker_ready()

    def data_received(self, data: bytes) -> None:
        """Parse what came, then deliver what it contained."""
        request = self._request
        if request is None or (sink := request.sink) is None:  # an idle worker has nothing to say
            self.drop()
            return
        self._heard = True
        if self._between and (passed := request.passed) is not None:
            line_end = data.find(b"\r\n")
            if SIZES[data[:line_end]] == len(data) - line_end - 4 and data.endswith(CHUNK_END):
                passed.write(data)
                waiting = passed.waiting
                waiting.append(data)
                if len(waiting) >= WAITING_MAX:
                    passed.settle()
                return
        self._between = False
        first = not self._answered
        if first:
            if self._take_known(request, sink, data):
                return
            self._answered = True
            request.data = b""  # it will not be sent again: a long answer must not keep a long prompt
        wrong = self._parse(data)
        if self._status and not self._delivered:
            self._delivered = True
            sink.upstream_head(self._status, b"".join(self._lines), self._length)
            if self._request is not request:
                return
        complete = self._complete
        pieces = self._pieces
        if complete and len(pieces) > self._pieces_end:
            del pieces[self._pieces_end :]  # they are behind the answer
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._chunked:
                # A piece of an incomplete chunk ends where the read ends. After several, more come together.
                one = len(pieces) == 1
                self._between = one and body.endswith(EVENT_END) and data.endswith(CHUNK_END)
            pieces.clear()
            self._begun = True
            self._framing_bytes = 0
            sink.upstream_data(body)
            if self._request is not request:
                return
        if complete:
            keep = (
                wrong is None
                and not self._extra
                and (request.upload is None or request.upload.ended)
                and self._keep_alive
                and self._transport.get_write_buffer_size() == 0
            )
            if keep and first and self._length and not self._chunked:
                self._answers.learn(data, self._status, self._lines, self._length, self._sent_s)
            self._leave(request, keep=keep)
            sink.upstream_end()
        elif wrong is not None:
            self.give_up(f"sent a malformed answer: {wrong}")
        elif self._framing_bytes > HEAD_BYTES_MAX:
            self.give_up("sent more head or framing than is accepted")

    def _take_known(self, request: PooledRequest, sink: UpstreamSink, data: bytes) -> bool:
        """Deliver an answer that came whole with a known head; False, with nothing done, if it did not."""
        known = self._answers.known
        if known is None or request.is_head or request.upload is not None:
            return False
        body = known.body_in(data)
        if not body:
            return False
        keep = self._transport.get_write_buffer_size() == 0
        if isinstance(sink, WholeSink):
            self._leave(request, keep=keep)
            sink.upstream_whole(known.status, known.lines, body)
            return True
        # As for one that is parsed: a sink that raises an error ends the connection, which is not stale then.
        self._answered = self._delivered = True
        request.data = b""
        sink.upstream_head(known.status, known.lines, len(body))
        if self._request is request:
            sink.upstream_data(body)
        if self._request is request:
            self._leave(request, keep=keep)
            sink.upstream_end()
        return True

    def _parse(self, data: bytes) -> str | None:
        """Parse a read; return what is wrong with it, if anything."""
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._status != SWITCHED:
                return "an upgrade without a request for it"
            self._parser = cast("httptools.HttpResponseParser", _Unparsed(self))
            self._parser.feed_data(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            return str(cause if isinstance(cause, Malformed) else error)
        return None

    def eof_received(self) -> None:
        """Drop an idle connection now: before it is reported lost, it could be in use again."""
        if self._request is None:
            self.drop()
            self._pool.on_idle_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, send again or fail the request under way."""
        if self.closed:
            return
        self.closed = True
        request = self._request
        if request is None:
            self._pool.lost(self)
            self._pool.on_idle_closed()
        elif self._until_close and self._delivered and exc is None:
            self._pool.lost(self)
            sink = request.sink
            self._leave(request, keep=False)
            if sink is not None:
                sink.upstream_end()
        elif self._is_stale(request) and self._pool.may_resend():
            self._let_go()
            self._pool.lost(self)
            self._pool.retry(request)
        else:
            error = self._broken(
                "closed the connection before the answer was complete"
                if exc is None
                else f"broke the connection: {exc}"
            )
            self._let_go()
            self._pool.lost(self)
            request.fail(error)

    # Parser callbacks: they collect

    def on_message_begin(self) -> None:
        """Note bytes behind a complete answer."""
        if self._complete:
            self._extra = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header that clients may see; drop trailers."""
        if self._status:
            return
        name = name.lower()
        if name in self._pool.answer_headers:
            self._lines.append(b"%b: %b\r\n" % (name, value))
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise Malformed("a transfer coding other than chunked")
            self._chunked = True
        elif name == b"connection":
            self._hop_names |= named_by(value)
        elif name in _ACCEPTED and self._tunnels:
            self._lines.append(b"%b: %b\r\n" % (name, value))
        else:
            self._left_out_bytes += len(name) + len(value)

    @property
    def _tunnels(self) -> bool:
        request = self._request
        return request is not None and request.upload is not None and request.upload.tunnels

    def on_headers_complete(self) -> None:
        """Decide how the body ends; skip interim answers."""
        if self._status:
            return
        if self._framing_bytes > HEAD_BYTES_MAX:
            head_bytes = self._left_out_bytes + sum(map(len, self._lines))
            if head_bytes > HEAD_BYTES_MAX:  # the rest of the read is body
                raise Malformed("a head that is too long")
        status = self._parser.get_status_code()
        if status < 100:
            raise Malformed("a status that is none")
        if status == SWITCHED and self._tunnels:
            self._status = status
            self._begun = self._until_close = True
            self._framing_bytes = 0
            return
        if status < 200:  # an interim answer: none of its headers count
            self._lines = []
            self._hop_names = NO_NAMES
            self._length = None
            self._chunked = False
            return
        if self._hop_names:
            self._lines = [line for line in self._lines if line.partition(b":")[0] not in self._hop_names]
            self._hop_names = NO_NAMES
        self._status = status
        self._framing_bytes = 0
        if self._request is not None and self._request.is_head:
            self._complete = True
            self._keep_alive = False  # the parser waits for a body that does not come
            self._pieces_end = 0
        elif self._length is None and status not in BODYLESS:
            self._until_close = not self._chunked

    def on_message_complete(self) -> None:
        """Note the end, unless it is that of an interim answer."""
        if self._status and self._status != SWITCHED and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()  # it forgets when this returns
            self._pieces_end = len(self._pieces)

    # Ends

    def _is_stale(self, request: PooledRequest) -> bool:
        return (
            self._used
            and not self._answered
            and request.resend
            and not request.retried
            and (self._writing or self._loop.time() - self._sent_s <= STALE_S)
        )

    def _let_go(self) -> None:
        if self._request is not None:
            self._request.connection = self._request.passed = None
            self._request = None

    def _leave(self, request: PooledRequest, *, keep: bool) -> None:
        """Leave a request whose answer is complete, and serve the next one, if the connection is kept."""
        request.sink = request.passed = None
        if not keep:
            self.drop()
            return
        request.connection = self._request = None
        self._used = True
        if self._answered:
            self._await_answer()
        if request.paused:
            self._transport.resume_reading()
        self._pool.release(self)

    def _broken(self, what: str) -> UpstreamError:
        message = f"{self._pool.origin} {what}"
        return StreamBroken(message) if self._delivered else WorkerUnreachable(message)
