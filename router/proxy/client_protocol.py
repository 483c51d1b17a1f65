"""The client's side: uvicorn's HTTP protocol, with the proxied routes served by exchanges.

    bytes --> httptools --+--> proxied route: Answer --> start_exchange(request, answer)
                          +--> any other:     uvicorn's ASGI cycle --> the FastAPI application

uvicorn keeps sockets, TLS, accepting and graceful shutdown. `GatewayProtocol` chooses the route when a head
is complete, and enforces limits for both:

* framing malformed or ambiguous: 400; head beyond `ClientLimits`: 431, or 414 for a long target; body
  compressed (engines do not unpack it either): 415, or beyond ``body_bytes_max``: 413;
* a head that `JudgeHead` refuses: its error, before a body is asked for; no room in `HeldBytes`: 429;
* requests of a client beyond `Clients`: 429; connections: closed, after idle ones made room (`Spare`);
* large bodies beyond `Intake`, or `WAITING_MAX` pipelined requests: not read for now;
* a request incomplete in time: 408; an answer not taken in time, or an idle connection: closed.

A refusal waits for its turn. After it input is discarded for `LINGER_S`: closing at once would reset the
connection before the client reads the refusal. A client that closes its side has left, even if it could still
read: uvicorn treats it so, and the worker is freed at once (late for a pipelining client, whose socket is not
read meanwhile). Upgrades that clients offer are ignored, as RFC 9110 section 7.8 allows, but for a WebSocket
where `RouteOf` says so: its bytes pass unread, both ways, until either side closes or the process ends.
"""

import asyncio
import functools
import select
import string
from collections.abc import Collection
from typing import ClassVar, Protocol, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from router.errors import ClientError, RequestRejected, RouterError
from router.proxy.answer import Answer
from router.proxy.clients import Client, Clients
from router.proxy.deadlines import Deadlines
from router.proxy.headers import NO_NAMES, named_by
from router.proxy.held_bytes import HeldBytes
from router.proxy.intake import LARGE_BODY_BYTES, Intake
from router.proxy.known_heads import LEARNED_MAX, KnownHead, KnownHeads
from router.proxy.late_writes import LateTransport, late_writes
from router.proxy.limits import ClientLimits
from router.proxy.ports import Header, JudgeHead, RequestHead, Route, StartExchange
from router.proxy.receiving import (
    AFTER_AGAIN,
    AFTER_BEGIN,
    AFTER_COMPLETE,
    AFTER_PROXY,
    AFTER_REFUSE,
    AFTER_SERVE,
    AFTER_TUNNEL,
    AFTER_UPGRADE,
    Receiving,
)
from router.proxy.spare import Spare

LINGER_S = 2.0
"""Seconds for which the rest of a refused request is discarded, so that the refusal arrives."""

FLUSH_S = 0.5
"""Seconds that a client has to read the end of an answer that is cut."""

PIECE_BYTES = 2048
"""Piece in which a read with many requests is parsed. The shortest request has 18 bytes."""

WAITING_MAX = 32
"""Requests of one client that wait, or begin in one turn of the loop, before parsing stops after its
piece."""

UNREAD_BYTES_MAX = 64 * 1024 * 1024
"""Unparsed input of all clients (256 KB of one at most); beyond it a pipelining client is refused."""

APP_BYTES_FREE = 64 * 1024
"""Uncounted first bytes of an application body, so that operators' orders find room when clients fill it."""

# Members as constants: looking one up in its enumeration costs more than comparing it.
_IDLE = Receiving.IDLE
_HEAD = Receiving.HEAD
_REFUSED = Receiving.REFUSED
_TUNNEL = Receiving.TUNNEL

_FRAMED = frozenset((b"content-length", b"transfer-encoding"))

_HEAD_END = b"\r\n\r\n"

_CONTROL_HEADERS = frozenset(
    {b"connection", b"content-encoding", b"content-length", b"expect", b"host", b"transfer-encoding"}
)

_CODED = frozenset({b"content-encoding", b"transfer-encoding"})

_LISTS = frozenset({b"connection", b"content-encoding", b"expect"})
"""Noted headers that may have several lines (RFC 9110 section 5.3)."""

# RFC 3986: characters of an authority's host and port.
_HOST_BYTES = (string.ascii_letters + string.digits + "-._~%!$&'()*+,;=:[]").encode()

# RFC 9110 section 6.5.1: none of these may come after the body. llhttp itself refuses two more, and would
# obey this ``connection``.
_NO_TRAILERS = frozenset({b"connection", b"host", b"upgrade"})


class RouteOf(Protocol):
    """Choice of the requests that an exchange serves; the application serves the others."""

    def __call__(self, method: bytes, path: bytes) -> int:
        """Return the `Route` of a method and raw path."""


class _Flow(FlowControl):
    """uvicorn's flow control, but reading pauses while requests wait, so that a client cannot fill memory."""

    def __init__(self, transport: asyncio.Transport, waiting: Collection[object]) -> None:
        super().__init__(transport)
        self._waiting = waiting
        self.unread = False
        self.held = False
        """True while an exchange takes no more of its body."""

    def resume_reading(self) -> None:
        if not self._waiting and not self.unread and not self.held:
            super().resume_reading()


class Ending:
    """The end of a process, as all its connections see it: `begun`, and how long idle ones wait.

    Every answer is then the last one on its connection, and says so; an idle connection waits ``idle_s`` for
    one more request, which may be on its way, and closes.
    """

    __slots__ = ("begun", "idle_s")

    def __init__(self) -> None:
        self.begun = False
        self.idle_s = 0.0

    def begin(self, idle_s: float = 0.0) -> None:
        """End. The first call's time holds."""
        if not self.begun:
            self.begun = True
            self.idle_s = idle_s


class GatewayProtocol(HttpToolsProtocol):
    """One client connection. `make_protocol` makes the class that uvicorn needs."""

    # Beyond 30 attributes, of which uvicorn has 28, the interpreter finds all more slowly: the client's side
    # of a small request took 9.0 us without these slots, 7.4 with them.
    __slots__ = (
        "_active",
        "_advancing",
        "_app_counted_bytes",
        "_begun",
        "_client",
        "_control",
        "_forwarded_for",
        "_framing_bytes",
        "_heads_learned",
        "_known",
        "_missing_bytes",
        "_parses_later",
        "_read_bytes",
        "_receive_timer",
        "_receiver",
        "_receiving",
        "_shutting_down",
        "_stall_timer",
        "_turn",
        "_unread",
        "_unread_counted",
        "_unread_from",
        "peer",
    )

    flow: _Flow
    start_exchange: ClassVar[StartExchange]
    route_of: ClassVar[RouteOf]
    judge: ClassVar[JudgeHead | None]
    held: ClassVar[HeldBytes]
    all_unread: ClassVar[HeldBytes]
    limits: ClassVar[ClientLimits]
    """A new object whenever the limits, `route_of` or `watches_requests` may have changed."""
    ending: ClassVar[Ending]
    idle: "ClassVar[Deadlines[GatewayProtocol]]"
    """Connections that await their next request."""
    intake: ClassVar[Intake]
    heads: ClassVar[KnownHeads]
    spare: ClassVar[Spare]
    clients: ClassVar[Clients | None]
    watches_requests: ClassVar[bool]

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and start the clock of its first request."""
        late = cast("asyncio.Transport", LateTransport(transport, late_writes(self.loop)))
        super().connection_made(late)
        self.flow = _Flow(transport, self.pipeline)
        transport.set_write_buffer_limits(high=64 * 1024, low=16 * 1024)
        self._control: dict[bytes, bytes] = {}
        self._read_bytes = 0  # size of the read that is being parsed
        self._framing_bytes = 0
        self._missing_bytes = 0  # rest of a body of declared length
        self._begun = 0  # requests with a head that was parsed
        self._known: KnownHead | None = None
        self._heads_learned = 0
        self._unread = b""  # the last read, if a part of it is unparsed
        self._unread_from = 0  # start of that part
        self._unread_counted = 0
        self._parses_later = False  # another turn of the loop parses it
        self._receiving = Receiving.IDLE
        self._receiver: Answer | None = None  # the proxied request with an incomplete body
        self._app_body_bytes = self._app_counted_bytes = 0
        self._turn: Answer | None = None  # the next to start, as soon as it can
        self._active: Answer | None = None  # started and not complete
        self._advancing = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        self._shutting_down = False
        self.peer: str = self.client[0] if self.client else ""
        self._forwarded_for = ""
        self._client: Client | None = None
        if self.clients is not None:
            self._client = self.clients.enter(self.peer, self.spare.make_room)
            if self._client is None:
                self._receiving = AFTER_REFUSE[self._receiving]
                transport.abort()
                return
        if self.ending.begun:
            self.shutdown()
        self._watch_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange in flight; drop the requests that have not begun."""
        if self._client is not None and self.clients is not None:
            self.clients.leave(self._client)
        self._leave()
        super().connection_lost(exc)
        self.idle.pop(self, None)
        self.spare.discard(self)
        self.intake.forget(self.flow)
        for timer in (self._stall_timer, self._receive_timer):
            if timer is not None:
                timer.cancel()
        self._forget_unread()
        self._forget_waiting()
        for answer in (self._turn, self._receiver):
            if answer is not None:
                answer.release_body()
        self._turn = self._receiver = None
        self._release_app_body()

    def eof_received(self) -> None:
        """Drop the answer in flight: its client has left. A complete one may still wait to be written."""
        if self._active is not None:
            self._drop()
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what came, in pieces if it may hold many requests."""
        known = self._known
        if known is not None and self._receiving is _IDLE and self._begin_known(known, data):
            return
        if self._receiving >= _REFUSED:
            if self._receiving is _TUNNEL:
                self._received(data)
            return
        size = len(data)
        may_be_many = (
            size > PIECE_BYTES and size > self._missing_bytes and data.count(_HEAD_END) >= WAITING_MAX
        )
        if not may_be_many and not self.flow.unread:
            self._received(data)
            return
        # More than one read may wait: TLS can deliver what it had read before the pause.
        self._unread = self._unread[self._unread_from :] + data if self.flow.unread else data
        self._unread_from = 0
        self.flow.unread = True
        if not self._parses_later:
            self._parse_on()

    def _begin_known(self, known: KnownHead, data: bytes) -> bool:
        """Begin the request of a read that repeats a known head; False, with nothing changed, if not."""
        body = known.body_in(data)
        if body is None or known.limits is not self.limits or len(body) > known.limits.body_bytes_max:
            return False
        before: RequestResponseCycle | None = self.cycle
        if self.flow.unread or (before is not None and not before.response_complete):
            return False
        answer = Answer(self, known.head)
        self.idle.pop(self, None)
        self.cycle = self._turn = answer
        try:
            answer.take_whole(body)
        except RequestRejected as error:
            self._receiver = answer
            self._refuse(error)
        else:
            self._advance()
        if self._active is None or self._receive_timer is not None:
            self._watch_receiving()
        return True

    def _learn_head(self, data: bytes | memoryview, answer: Answer) -> None:
        self._heads_learned += 1
        came_now = answer is self.cycle  # not an earlier one, which waits
        if came_now and isinstance(data, bytes) and not answer.streams and answer.refusal is None:
            self._known = self.heads.learned(data, answer.head, answer.length, self.limits)

    def _parse_on(self) -> None:
        self._parses_later = False
        flow = self.flow
        if not flow.unread:
            return
        self.all_unread.release(self._unread_counted)
        self._unread_counted = 0
        data, begun_max = self._unread, self._begun + WAITING_MAX
        while (
            len(self.pipeline) < WAITING_MAX and self._begun < begun_max and not self.transport.is_closing()
        ):
            start = self._unread_from
            end = start + max(PIECE_BYTES, self._missing_bytes)
            if self._is_chunked() and data.count(_HEAD_END, start) < WAITING_MAX:
                end = len(data)
            self._unread_from = end
            if end >= len(data):
                self._forget_unread()
                self._received(memoryview(data)[start:])
                if not self.transport.is_closing():
                    flow.resume_reading()
                return
            self._received(memoryview(data)[start:end])
            if self._receiving is Receiving.REFUSED:
                return
        if self.transport.is_closing():
            return
        flow.pause_reading()
        self._count_unread()
        if len(self.pipeline) < WAITING_MAX:
            self._parse_later()

    def _parse_later(self) -> None:
        if not self._parses_later:
            self._parses_later = True
            self.loop.call_soon(self._parse_on)

    def _count_unread(self) -> None:
        size = len(self._unread) - self._unread_from
        try:
            self._unread_counted = self.all_unread.grow(0, size, 0)
        except RequestRejected as error:
            self._refuse(error)

    def _forget_unread(self) -> None:
        self.all_unread.release(self._unread_counted)
        self._unread_counted = self._unread_from = 0
        self._unread = b""
        self.flow.unread = False

    def _is_chunked(self) -> bool:
        return not self._missing_bytes and self._receiving in (Receiving.BODY, Receiving.APP_BODY)

    def _received(self, data: bytes | memoryview) -> None:
        self.idle.pop(self, None)
        size = self._read_bytes = len(data)
        self._framing_bytes += size
        learns = self._receiving is _IDLE and self._heads_learned < LEARNED_MAX and not self.watches_requests
        offered = start = 0
        try:
            if self._receiving is _TUNNEL:
                self._tunnelled(data)
            else:
                if self._missing_bytes and self._receiver is not None and self._receiver.head.keep_alive:
                    start = self._take_body(data)
                if start < size:
                    self.parser.feed_data(data[start:])
        except httptools.HttpParserUpgrade as upgrade:
            offered = start + upgrade.args[0]
        except (httptools.HttpParserError, RouterError) as error:
            self._refuse_malformed(error)
        if offered:
            self._parse_behind_offer(memoryview(data)[offered:])
        if self._framing_bytes > self.limits.header_bytes_max:
            self._refuse_framing()
        receiver = self._receiver
        if receiver is not None and not receiver.judged:
            self._judge(receiver)
        if self._turn is not None:
            if learns and receiver is None:
                self._learn_head(data, self._turn)
            self._advance()
        active = self._active
        if active is not None and active.streams:
            active.deliver()
        if self._active is None or self._receive_timer is not None:
            self._watch_receiving()
        receiver = self._receiver
        if receiver is not None and receiver.body_bytes >= LARGE_BODY_BYTES:
            self.intake.took(self.flow, size, self.loop)

    def _refuse_framing(self) -> None:
        if self._receives():
            in_head = self._receiving is Receiving.HEAD
            self._refuse(self._head_too_long() if in_head else _malformed("too much framing around the body"))

    def _judge(self, receiver: Answer) -> None:
        receiver.judged = True
        try:
            if self.judge is not None:
                self.judge(receiver.head.headers)
            if not receiver.streams:
                self.held.check(receiver.counted_bytes, receiver.length)
        except RouterError as error:
            self._refuse(error, turned_away=True)
            return
        if receiver is self._turn:
            self._ask_for_body(receiver)

    def _ask_for_body(self, answer: Answer) -> None:
        if answer.expects_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def pause_writing(self) -> None:
        """Pause the worker, and limit how long the client may be slow."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stall_s_max, self._drop)
        self.spare.add_slow(self)
        active = self._active
        if active is not None and active.exchange is not None:
            active.exchange.pause()

    def resume_writing(self) -> None:
        """Resume the worker: the client caught up."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
            self.spare.discard(self)
            self._watch_receiving()
        active = self._active
        if active is not None and active.exchange is not None:
            active.exchange.resume()
        self._advance()

    # Parser callbacks

    def on_message_begin(self) -> None:
        """Begin a request. uvicorn's scope is built only for the application."""
        self.url = b""
        self.headers: list[Header] = []
        self._control = {}
        self._receiving = AFTER_BEGIN[self._receiving]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; drop trailers."""
        name = name.lower()
        if self._receiving is not _HEAD:
            if name in _NO_TRAILERS:
                raise _malformed("a trailer that belongs into the head")
            return
        self.headers.append((name, value))
        if name in _CONTROL_HEADERS:
            control = self._control
            if name not in control:
                control[name] = value
            elif name in _LISTS:
                control[name] += b"," + value
            else:
                # RFC 9112 sections 3.2 and 6.3; llhttp forgets a coding when another line names one more.
                raise _malformed("a header twice of which there can be one")

    def on_headers_complete(self) -> None:
        """Check the head and choose the route."""
        parser, limits, control = self.parser, self.limits, self._control
        if len(self.headers) > limits.header_count_max:
            raise _too_many_headers(f"more than {limits.header_count_max} headers")
        # Count the head only if all that was read is too long.
        if self._framing_bytes + self._read_bytes > limits.header_bytes_max:
            head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if head_bytes > limits.header_bytes_max:
                raise self._head_too_long()
        self._framing_bytes = 0
        self._begun += 1
        method = parser.get_method()
        if parser.should_upgrade() and not self._wants_tunnel(method):
            self._receiving = AFTER_UPGRADE[self._receiving]
            return
        keep_alive = parser.should_keep_alive()
        # RFC 9112 section 9.3: without a Connection header only HTTP/1.1 persists. Asking the parser for the
        # version is its most expensive call.
        speaks_1_1 = keep_alive and b"connection" not in control
        if not speaks_1_1:
            version = parser.get_http_version()
            speaks_1_1 = version == "1.1"
            if not speaks_1_1 and version != "1.0":
                raise ClientError(
                    f"HTTP/{version} is not served here", code="http_version_not_supported", status=505
                )
        host = control.get(b"host")
        if host is None:
            if speaks_1_1:
                raise _malformed("no host")
        elif not _can_be_host(host):
            raise _malformed("a host that cannot be one")
        if not _CODED.isdisjoint(control):
            _check_codings(control, speaks_1_1=speaks_1_1)
        length = self._missing_bytes = int(control.get(b"content-length", 0))
        if length > limits.body_bytes_max:
            raise self._too_large()
        if self.watches_requests:
            self._count_request()
        path, query = self._target()
        route = self.route_of(method, path)
        if not route:
            self._begin_application_request()
            return
        hop_names = named_by(control[b"connection"]) if b"connection" in control else NO_NAMES
        keeps = keep_alive and speaks_1_1
        answer = Answer(self, RequestHead(method, path, query, self.headers, hop_names, keeps, speaks_1_1))
        answer.length = length
        if route > Route.WHOLE:
            self._stream(answer, tunnels=bool(parser.should_upgrade()))
        if b"expect" in control:
            answer.expects_continue = speaks_1_1 and control[b"expect"].lower() == b"100-continue"
        if self._forwarded_for:
            answer.forwarded_for = self._forwarded_for
        self._receiving = AFTER_PROXY[self._receiving]
        self._receiver = answer
        self._enqueue(answer)

    def _wants_tunnel(self, method: bytes) -> bool:
        """Return True if a request asks for a WebSocket where there is one, and has no body."""
        if method == b"CONNECT":
            raise ClientError("CONNECT is not served", code="method_not_allowed", status=405)
        path = self._target()[0]
        if self.route_of(method, path) != Route.TUNNELLED or self._control.keys() & _FRAMED:
            return False
        offers = [value.strip().lower() for name, value in self.headers if name == b"upgrade"]
        return offers == [b"websocket"]

    def _stream(self, answer: Answer, *, tunnels: bool) -> None:
        """Let an exchange begin before its body is complete."""
        answer.streams = True
        answer.tunnels = tunnels
        if tunnels and self.ending.begun:
            self.loop.call_later(self.ending.idle_s, self._end_tunnel)
        answer.hold_body(0)

    def _count_request(self) -> None:
        """Count a request for its client; raise `RequestRejected` beyond the client's rate."""
        clients, client = self.clients, self._client
        if clients is None or client is None:
            return
        self._forwarded_for = clients.forwarded_for(client, self.headers)
        clients.take(client, self._forwarded_for)

    def on_body(self, body: bytes) -> None:
        """Collect the body of a proxied request or pass it to the application, up to the limit."""
        self._framing_bytes = 0
        if self._missing_bytes:
            self._missing_bytes -= len(body)
        receiver = self._receiver
        body_bytes = self._add_app_body(body) if receiver is None else receiver.add_body(body)
        if body_bytes > self.limits.body_bytes_max:
            raise self._too_large()

    def _take_body(self, data: bytes | memoryview) -> int:
        """Take the rest of a body of declared length past the parser, which would copy it; return its end.

        Not where the connection closes behind it: this parser knows to discard what follows.
        """
        end = self._missing_bytes
        self.on_body(bytes(data[:end]))
        if not self._missing_bytes:
            self._make_parser()
            self.on_message_complete()
        return end

    def _add_app_body(self, body: bytes) -> int:
        """Pass a piece to the application; return the length so far."""
        super().on_body(body)
        self._app_body_bytes = body_bytes = self._app_body_bytes + len(body)
        if body_bytes > APP_BYTES_FREE and not self.cycle.response_complete:
            counted_bytes = self._app_counted_bytes
            self._app_counted_bytes = self.held.grow(counted_bytes, counted_bytes + len(body), 0)
        return body_bytes

    def on_message_complete(self) -> None:
        """Mark the request complete; it starts when the parser has returned."""
        self._framing_bytes = 0
        receiver = self._receiver
        if receiver is None:
            if self._receiving is not Receiving.UPGRADE:
                self._receiving = AFTER_COMPLETE[self._receiving]
                super().on_message_complete()
        elif receiver.tunnels:
            self._receiving = AFTER_TUNNEL[self._receiving]
        else:
            self._receiving = AFTER_COMPLETE[self._receiving]
            receiver.body_complete = True
            self._receiver = None

    # Turns: answers go out in the order in which requests came

    def _enqueue(self, answer: Answer) -> None:
        before: RequestResponseCycle | None = self.cycle
        self.cycle = answer
        if before is None or before.response_complete:
            self._turn = answer  # whose body, not judged yet, is asked for later
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((answer, self.app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if not isinstance(cycle, Answer):
            if self.is_last():
                cycle.keep_alive = False
            super()._start_asgi_task(cycle, app)
            return
        self._turn = cycle
        if cycle.judged and not cycle.body_complete and cycle.refusal is None:
            self._ask_for_body(cycle)
        self._advance()

    def _advance(self) -> None:
        if self._advancing:  # an exchange answered at once: the loop below continues
            return
        self._advancing = True
        try:
            while (
                (answer := self._turn) is not None
                and (answer.body_complete or answer.refusal is not None or (answer.streams and answer.judged))
                and not self.flow.write_paused
                and not self.transport.is_closing()
            ):
                self._turn = None
                self._active = answer
                answer.start()
        finally:
            self._advancing = False

    def on_response_complete(self) -> None:
        """Leave the active answer, which is complete; go on to the next request, or wait for one."""
        self._active = None
        if self.transport.is_closing():
            self._await_end()
            return
        unread = self.flow.unread
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            if self.transport.is_closing():
                return
        else:
            if self._app_counted_bytes:
                self._release_app_body()
            if self._receiving is not _IDLE and self._receives():
                self._watch_receiving()
            elif not unread:
                self.idle.add(self, self.timeout_keep_alive)
        if unread:
            self._parse_later()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def _release_app_body(self) -> None:
        counted_bytes, self._app_counted_bytes = self._app_counted_bytes, 0
        self.held.release(counted_bytes)

    def _forget_waiting(self) -> None:
        for cycle, _ in self.pipeline:
            if isinstance(cycle, Answer):
                cycle.release_body()
        self.pipeline.clear()

    # Refusing

    def _refuse(self, error: RouterError, *, turned_away: bool = False) -> None:
        """Answer with an error when its turn comes, and serve nothing behind it."""
        for_application = self._receiving is Receiving.APP_BODY
        self._receiving = AFTER_REFUSE[self._receiving]
        self._forget_unread()
        answer = self._receiver
        if answer is not None and answer.sink is not None:
            self._receiver = None
            answer.fail_body(error)
            return
        if answer is not None:
            answer.refuse(error, turned_away=turned_away or isinstance(error, RequestRejected))
            self._receiver = None
            self._advance()
            return
        if for_application:
            cycle = self._unanswered()
            if cycle is None:  # answered before its end: a second answer would look like the next request's
                self.close_politely()
                return
            if self.pipeline:  # the application has not seen it yet
                self.pipeline.popleft()
            else:
                # The application is reading this body: its answer is discarded from now on.
                cycle.disconnected = cycle.response_complete = True
                cycle.message_event.set()
                if cycle.response_started:
                    self.transport.close()
                    return
        path = (self.url or b"").partition(b"?")[0]
        answer = Answer(self, RequestHead(path=path, headers=self.headers or ()))
        answer.refusal = error
        self._enqueue(answer)
        self._advance()

    def close_politely(self) -> None:
        """Close after a refusal: stop sending, and discard input for `LINGER_S`."""
        self._active = self._receiver = None
        self.flow.held = False
        self._receiving = AFTER_REFUSE[self._receiving]
        transport = self.transport
        if transport.is_closing():
            return
        self.spare.add(self)
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self.flow.resume_reading()
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = self.loop.call_later(LINGER_S, transport.abort)

    def _head_too_long(self) -> ClientError:
        if len(self.url) > self.limits.header_bytes_max / 2:
            return ClientError("the target is too long", code="uri_too_long", status=414)
        return _too_many_headers("the head is too long")

    def _too_large(self) -> ClientError:
        return ClientError(
            f"the body is longer than {self.limits.body_bytes_max} bytes",
            code="request_too_large",
            status=413,
        )

    # Time limits and shutdown

    def _unanswered(self) -> RequestResponseCycle | None:
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _receives(self) -> bool:
        return self._receiving in (Receiving.HEAD, Receiving.BODY, Receiving.APP_BODY)

    def _watch_receiving(self) -> None:
        """Run the receive timer while a request is incomplete, or is awaited without another timer."""
        if self._receiving is Receiving.REFUSED:
            return
        nothing_owed = self._unanswered() is None
        if self._receives() or (nothing_owed and self not in self.idle):
            if self._receive_timer is None:
                self._receive_timer = self.loop.call_later(
                    self.limits.read_timeout_s, self._receive_timed_out
                )
            if nothing_owed:
                self.spare.add(self)
            else:
                self.spare.add_slow(self)
        elif self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
            self.spare.discard(self)

    def _receive_timed_out(self) -> None:
        self._receive_timer = None
        waits = self._active not in (None, self._receiver)
        waits = waits or self._unanswered() not in (None, self._receiver)
        if self.flow.read_paused or (waits and self._receiving is not Receiving.APP_BODY):
            self._watch_receiving()  # an earlier answer, or the application, delays reading
        elif self._receives():
            self._refuse(ClientError("the request did not come in time", code="request_timeout", status=408))
        else:
            self.transport.close()

    def _await_end(self) -> None:
        self.spare.add(self)
        if self._stall_timer is None and self.transport.get_write_buffer_size():
            self._stall_timer = self.loop.call_later(self.limits.stall_s_max, self._drop)

    def vacate(self) -> bool:
        """Close at once to make room, unless a request is under way; return True if closed."""
        clients, client = self.clients, self._client
        if clients is None or client is None:
            return False
        if not self.flow.write_paused and not self.transport.is_closing():
            owed = self._unanswered() is not None
            if self._active is not None or self.pipeline or (owed and not self._receives()):
                return False
            if self in self.idle and self._has_unread():
                return False  # its next request has just come
        self.idle.pop(self, None)
        clients.leave(client)
        self._client = None
        self._receiving = AFTER_REFUSE[self._receiving]
        self._drop()
        return True

    def _leave(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            active.leave()

    def _drop(self) -> None:
        """Close now. The exchange hears of it first, since the transport takes no writes from here on."""
        self._leave()
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless its next request has just come."""
        if not self.transport.is_closing() and not self._has_unread():
            self.transport.close()
            self._await_end()

    def is_last(self) -> bool:
        """Return True if the answer that begins now is the last one of this connection."""
        return self.ending.begun and not self.pipeline and not self.flow.unread

    def shutdown(self) -> None:
        """Answer until idle, then close. Called when the end begins, and when the listeners are closed."""
        if self._shutting_down:
            return
        self._shutting_down = True
        self.ending.begin()
        self.timeout_keep_alive = self.ending.idle_s  # type: ignore[assignment]  # a delay of ours only
        cycle = self._unanswered()
        if cycle is not None:
            if isinstance(cycle, Answer):
                if cycle.tunnels:  # it never ends by itself
                    self.loop.call_later(self.ending.idle_s, self._end_tunnel)
            elif not cycle.response_started and self.is_last():
                cycle.keep_alive = False
        elif self._receiving in (Receiving.IDLE, Receiving.UPGRADE):
            self.idle.add(self, self.timeout_keep_alive)
            self._watch_receiving()

    def _end_tunnel(self) -> None:
        if self._active is not None and self._active.exchange is not None:
            self._active.exchange.interrupt()

    def cut(self) -> None:
        """Close now, with an error at the end of the answer in flight if the client takes it at once."""
        active = self._active
        self._forget_waiting()
        if active is not None and active.exchange is not None:
            active.exchange.interrupt()
        self.transport.close()
        self.loop.call_later(FLUSH_S, self.transport.abort)

    def _has_unread(self) -> bool:
        """True if the socket has input, or its end, that the event loop has not read."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    # Requests for the application, and upgrades

    def _target(self) -> tuple[bytes, bytes]:
        """Return path and query of a target in origin or absolute form (RFC 9112 section 3.2.2)."""
        if b"#" in self.url:
            raise _malformed("a fragment in the target")
        if not self.url.startswith((b"/", b"*")):
            url = httptools.parse_url(self.url)
            if url.schema.lower() not in (b"http", b"https") or url.userinfo:
                raise _malformed("a target of another kind")
            self.url = (url.path or b"/") + (b"?" + url.query if url.query else b"")
        path, _, query = self.url.partition(b"?")
        return path, query

    def _begin_application_request(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        if self._forwarded_for:
            self.scope["client"] = (self._forwarded_for, 0)
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = self._control.get(b"expect", b"").lower() == b"100-continue"
        self._receiving = AFTER_SERVE[self._receiving]
        self._app_body_bytes = 0
        super().on_headers_complete()

    def _parse_behind_offer(self, rest: memoryview) -> None:
        """Go on behind a request that offered an upgrade.

        The parser skips such a request's body, so a new parser gets its head again without the offer. Bytes
        of a tunnel are not parsed.
        """
        offered: int | None = 0
        try:
            while offered is not None:
                rest = rest[offered:]
                if self._receiver is not None:  # a tunnel: other offers are made again
                    self._tunnelled(rest)
                    return
                self._parse_head_again()
                offered = self._offered_in(rest) if rest else None
        except httptools.HttpParserError as error:
            self._refuse_malformed(error)

    def _offered_in(self, data: memoryview) -> int | None:
        """Parse; return the end of a request that offers an upgrade, or None if all was parsed."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
            return end
        return None

    def _refuse_malformed(self, error: Exception) -> None:
        cause = error if isinstance(error, RouterError) else error.__context__
        self._refuse(cause if isinstance(cause, RouterError) else _malformed(str(error)))

    def _parse_head_again(self) -> None:
        self._receiving = AFTER_AGAIN[self._receiving]
        method = self.parser.get_method()
        version = self.parser.get_http_version().encode("ascii")
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self._make_parser()
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _make_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _tunnelled(self, data: bytes | memoryview) -> None:
        self._framing_bytes = 0
        if self._receiver is not None and data:
            self._receiver.add_body(bytes(data))


@functools.lru_cache(maxsize=16)  # clients send the same one again and again
def _can_be_host(value: bytes) -> bool:
    return not value.rstrip(b" \t").translate(None, _HOST_BYTES)  # llhttp keeps trailing blanks


def _check_codings(control: dict[bytes, bytes], *, speaks_1_1: bool) -> None:
    """Refuse a body that is neither plain nor in chunks."""
    coding = control.get(b"transfer-encoding")
    if coding is not None and (coding.rstrip(b" ").lower() != b"chunked" or not speaks_1_1):
        raise _malformed("only chunked transfer coding is served, over HTTP/1.1")
    if control.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise ClientError("a compressed body is not served", code="unsupported_encoding", status=415)


def _malformed(message: str) -> ClientError:
    return ClientError(f"malformed HTTP request: {message}", code="malformed_http")


def _too_many_headers(message: str) -> ClientError:
    return ClientError(message, code="too_many_headers", status=431)


def make_protocol(
    start_exchange: StartExchange,
    route_of: RouteOf,
    limits: ClientLimits | None = None,
    ending: Ending | None = None,
    clients: Clients | None = None,
    judge: JudgeHead | None = None,
    held: HeldBytes | None = None,
) -> type[GatewayProtocol]:
    """Make the class for ``uvicorn.Config(http=...)``, inside the event loop that will serve.

    `start_exchange` is called once per complete proxied request, in its turn. Without `clients` or `held`
    there is no such limit; without `judge` any head may send a body.
    """
    loop = asyncio.get_running_loop()
    idle = Deadlines(loop, GatewayProtocol.timeout_keep_alive_handler)
    return type(
        "BoundGatewayProtocol",
        (GatewayProtocol,),
        {
            "__slots__": (),
            "start_exchange": staticmethod(start_exchange),
            "route_of": staticmethod(route_of),
            "limits": limits or ClientLimits(),
            "ending": ending or Ending(),
            "idle": idle,
            "spare": Spare(loop, idle),
            "intake": Intake(),
            "heads": KnownHeads(),
            "clients": clients,
            "judge": None if judge is None else staticmethod(judge),
            "held": held or HeldBytes(),
            "all_unread": HeldBytes(UNREAD_BYTES_MAX),
            "watches_requests": clients is not None and clients.watches_requests,
        },
    )
