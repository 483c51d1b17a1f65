"""One stream of the proxy: one request, until its answer ends.

    HEAD ──a request that is placed──> BODY ──end──> PLACING ──a worker──> SENT ──head──> ANSWERING ──> OVER
      │                                                 └─────an error───────────────────────────────────^
      └───any other──> PASSING ──────────────────────────────────────────────────────────────────────────^

`heard` takes each message; answers go to the outbox. The request's exchange sees the stream as its client
(`ClientConnection`) and as its way to the worker (`SendRequest`, `Carried`), so it decides, waits,
counts and learns as if it carried the bytes itself.

Modes of the proxy for the request's body:

    FULL_DUPLEX_STREAMED   head and body come without an answer; the choice answers the head, then the body
                           goes back in pieces. Taken for granted if the proxy does not say its mode
    BUFFERED               the proxy asks for the head first, and sends the body whole: the choice answers it
    others                 refused: a proxy that sends pieces on, or no body, has no time for a choice

Of the answer's body every mode is served; without it (NONE) nothing is learned from the engine's counts.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from policies import Slots
from router.errors import ClientError, RouterError
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.gateway.answer import crashed
from router.gateway.endpoints import ENCODER_PATHS, ENDPOINTS
from router.picker import messages
from router.picker.exchange import ALONE, PickedExchange, Reach
from router.picker.intents import Intents
from router.picker.outbox import Outbox
from router.picker.proto import ext_proc_pb2 as pb
from router.picker.sidecar import SIDECAR_HEADERS
from router.proxy import (
    ClientLimits,
    ClientRequest,
    Header,
    HeldBytes,
    RequestHead,
    SendRequest,
    UpstreamRequest,
    UpstreamSink,
    error_answer,
)

logger = logging.getLogger(__name__)

CLIENT_CHARS_MAX = 64

UNAVAILABLE = frozenset((502, 503, 504))
"""Statuses with which a proxy answers for a worker that it does not reach."""

_KEYS = frozenset((b"authorization", b"x-api-key"))


class Stage(IntEnum):
    """State of a stream."""

    HEAD = 0
    BODY = 1
    PLACING = 2
    """Being parsed or waiting for its turn."""
    SENT = 3
    """The proxy knows the worker; no answer has come."""
    ANSWERING = 4
    PASSING = 5
    """A request that is not placed, at any worker."""
    OVER = 6


class OutOfOrder(Exception):
    """The proxy broke the protocol; the message says how."""


class Parts(NamedTuple):
    """The parts that all streams of a process share; ``limits`` and ``timeout_s`` follow the settings."""

    gateway: Gateway
    held: HeldBytes
    intents: Intents
    limits: Callable[[], ClientLimits]
    heeds_subsets: bool
    passed: Callable[[], None]
    """Called for each request that is not placed."""
    served_elsewhere: Callable[[], None]
    """Called for each answer of an endpoint that was not chosen."""
    reach: Reach = ALONE
    serves: Callable[[bytes, bytes], bool] = lambda _method, _path: True
    """Returns True if a request of this method and path may go to a worker."""


class Carried:
    """A request on its way to a worker, in the proxy's hands (`router.proxy.UpstreamRequest`)."""

    __slots__ = ("_stream",)

    def __init__(self, stream: "ProxyStream") -> None:
        self._stream = stream

    def pause(self) -> None:
        """Do nothing: the proxy holds its client back itself."""

    def resume(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Hear nothing more of it; the proxy ends it with the stream."""
        self._stream.forget_worker()


class ProxyStream:
    """One stream. Make it inside a running event loop; call `gone` when the proxy has left, on every path."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._gateway = parts, parts.gateway
        self.outbox = Outbox()
        self._stage = Stage.HEAD
        self._headers: Sequence[Header] = ()
        self._method = self._path = self._query = b""
        self._body = bytearray()
        self._counted_bytes = 0
        self._modes: pb.ProtocolConfiguration | None = None
        self._trailers = False
        """True if trailers end the request's body, not its last piece."""
        self._only: Slots | None = None
        self._exchange: PickedExchange | None = None
        self._sink: UpstreamSink | None = None
        self._endpoint = ""
        self._status = 0
        self._relaying = False
        """True while the worker's answer is passed on: the bytes sent then are not ours."""
        self._out: list[bytes] = []
        self._finished = False
        self._renamed: tuple[bytes, bytes] | None = None
        """The model's name in the worker's answer, and the one that the client asked for."""
        self._timer: asyncio.TimerHandle | None = self._gateway.loop.call_later(
            parts.limits().read_timeout_s, self._late
        )

    # From the proxy.

    def heard(self, message: pb.ProcessingRequest) -> None:
        """Take a message; raise `OutOfOrder` for one that cannot come now."""
        match message.WhichOneof("request"):
            case "request_headers":
                self._request_head(message)
            case "request_body":
                self._request_body(message.request_body)
            case "request_trailers":
                self._request_trailers()
            case "response_headers":
                self._answer_head(message)
            case "response_body":
                self._answer_body(message.response_body)
            case "response_trailers":
                self._answer_trailers()
            case _:
                raise OutOfOrder("the message is of no kind that is known")

    def gone(self, *, ending: bool = False) -> None:
        """End the rest: the proxy has closed the stream, or this process ends."""
        self._stop_timer()
        exchange, sink = self._exchange, self._sink
        if exchange is not None and not exchange.done:
            answered = self._stage is Stage.ANSWERING and (not self._sees_answers or exchange.said_all())
            if ending:
                exchange.interrupt()
            elif answered and sink is not None:
                self._relay(sink.upstream_end)
            else:
                exchange.client_left()
        self._stage = Stage.OVER
        self.release_body()
        self.outbox.end()

    # The request.

    def _request_head(self, message: pb.ProcessingRequest) -> None:
        self._expect(Stage.HEAD)
        head, limits = message.request_headers, self._parts.limits()
        if message.HasField("protocol_config"):
            self._modes = message.protocol_config
        count = len(head.headers.headers)
        if count > limits.header_count_max or head.ByteSize() > limits.header_bytes_max:
            self._begin(refusal=ClientError("the head is too long", code="too_many_headers", status=431))
            return
        headers = messages.headers_of(head)
        if messages.is_garbled(headers):
            self._begin(refusal=ClientError("a header holds CR, LF or NUL", code="invalid_header"))
            return
        self._headers = headers
        for name, value in self._headers:
            if name == b":path":
                self._path, _, self._query = value.partition(b"?")
            elif name == b":method":
                self._method = value
        if self._parts.heeds_subsets:
            self._only = self._slots_of(messages.subset_of(message))
        placed = self._method == b"POST" and self._path in ENDPOINTS and self._path not in ENCODER_PATHS
        if head.end_of_stream or not placed:
            if self._parts.serves(self._method, self._path):
                self._pass()
            else:
                self._refuse(ClientError("There is no such path here.", code="not_found", status=404))
            return
        refusal = self._refusal_of_head()
        if refusal is not None:
            self._begin(refusal=refusal)
            return
        self._stage = Stage.BODY
        if self._buffers:
            self.outbox.put([pb.ProcessingResponse(request_headers=pb.HeadersResponse())])

    def _refusal_of_head(self) -> RouterError | None:
        if self._modes is not None and self._modes.request_body_mode not in (
            pb.FULL_DUPLEX_STREAMED,
            pb.BUFFERED,
        ):
            mode = pb.BodyMode.Name(self._modes.request_body_mode)
            return RouterError(
                f"The proxy's request_body_mode is {mode}; picking needs FULL_DUPLEX_STREAMED or BUFFERED.",
                code="unsupported_body_mode",
            )
        for name, value in self._headers:
            if name == b"content-encoding" and value.strip().lower() != b"identity":
                return ClientError("a compressed body is not served", code="unsupported_encoding", status=415)
        return None

    def _request_body(self, part: pb.HttpBody) -> None:
        if self._stage is Stage.PASSING:
            self._echo(part.body, ends=part.end_of_stream)
            return
        if self._stage is Stage.OVER:  # refused; the rest was on its way
            return
        self._expect(Stage.BODY)
        limits, size = self._parts.limits(), len(self._body) + len(part.body)
        try:
            if size > limits.body_bytes_max:
                raise ClientError(
                    f"the body is longer than {limits.body_bytes_max} bytes",
                    code="request_too_large",
                    status=413,
                )
            self._counted_bytes = self._parts.held.grow(self._counted_bytes, size, 0)
        except RouterError as refusal:
            self._begin(refusal=refusal)
            return
        self._body += part.body
        if part.end_of_stream:
            self._begin()

    def _request_trailers(self) -> None:
        if self._stage is Stage.PASSING:
            self.outbox.put([pb.ProcessingResponse(request_trailers=pb.TrailersResponse())])
        elif self._stage is Stage.BODY:
            self._trailers = True
            self._begin()
        elif self._stage is not Stage.OVER:
            self._expect(Stage.BODY)

    def _begin(self, refusal: RouterError | None = None) -> None:
        """Begin the exchange, which may answer or send at once."""
        self._stop_timer()
        self._stage = Stage.PLACING
        gateway, body = self._gateway, bytes(self._body)
        self._body = bytearray()
        headers: Sequence[Header] = self._headers
        if refusal is None:
            try:
                headers = self._parts.intents.headers(headers)
                body, self._renamed = self._parts.intents.rewritten(headers, body)
            except RouterError as error:
                refusal = error
        request = ClientRequest(
            RequestHead(self._method, self._path, self._query, headers),
            body if refusal is None else b"",
            _client_of(self._headers),
            gateway.now_s(),
            refusal=refusal,
        )
        self._exchange = exchange = PickedExchange(gateway, request, self, self._parts.reach)
        exchange.record.only = self._only
        exchange.begin(gateway.reader.relevant(headers), ENDPOINTS.get(self._path))

    def _late(self) -> None:
        self._timer = None
        if self._stage is Stage.PASSING:
            self.outbox.end("the answer took longer than the gateway allows")
        else:
            self._begin(
                refusal=ClientError("the request did not come in time", code="request_timeout", status=408)
            )

    # A request that is not placed.

    def _pass(self) -> None:
        """Send it to any worker: it has no prompt, or is for a path that is not known here."""
        gateway = self._gateway
        self._stop_timer()
        try:
            gateway.reader.judge(self._headers)
            slots = gateway.registry.eligible(None, gateway.log.now_us())
            if self._only is not None:
                slots = slots[np.isin(slots, self._only)]
            if not len(slots):
                raise gateway.placing.nobody_for(None)
        except RouterError as error:
            self._refuse(error)
            return
        self._parts.passed()
        self._passes()
        count = min(1 + self._parts.reach.fallbacks, len(slots))
        drawn = random.sample(slots.tolist(), count)
        workers = {local.worker.worker_id: local for local in map(gateway.registry.at_slot, drawn)}
        self._direct(tuple(workers.values()), (), None)

    def _passes(self) -> None:
        """Let the rest pass by, for as long as a request may take."""
        self._stage = Stage.PASSING
        timeout_s = self._gateway.sending.exchanges.timeout_s
        self._timer = self._gateway.loop.call_later(timeout_s, self._late)

    def _echo(self, body: bytes, *, ends: bool) -> None:
        if self._buffers:
            self.outbox.put([pb.ProcessingResponse(request_body=pb.BodyResponse())])
        else:
            self.outbox.put(messages.request_pieces(body, ends=ends))

    # The way to a worker (`router.picker.exchange.Carrier`).

    def way_to(self, local: LocalWorker, others: Sequence[LocalWorker] = ()) -> SendRequest:
        """Return the function that tells the proxy to send the request to a worker, or else to the others."""
        return partial(self._send, (local, *others))

    def _send(
        self,
        workers: Sequence[LocalWorker],
        head: RequestHead,
        lines: bytes,
        body: Sequence[bytes | memoryview],
        sink: UpstreamSink,
        *,
        patient: bool = False,
        resend: bool = True,
    ) -> UpstreamRequest:
        self._sink = sink
        self._stage = Stage.SENT
        self._direct(workers, messages.headers_in(lines), b"".join(body))
        return Carried(self)

    def forget_worker(self) -> None:
        """Report nothing more of the worker's answer."""
        self._sink = None

    def _direct(self, workers: Sequence[LocalWorker], headers: Sequence[Header], body: bytes | None) -> None:
        """Tell the proxy where the request goes, and the changes of it; a body of None passes by itself.

        It goes to the first of the workers; the others are for a proxy that gets no answer there. Those that
        are shown another key than the first are left out: the request carries that of the first.
        """
        authorization = workers[0].pool.authorization
        named = [
            urlsplit(local.worker.url).netloc
            for local in workers
            if local.pool.authorization == authorization
        ]
        self._endpoint, endpoint = named[0], ",".join(named)
        given = dict(self._headers)
        wanted = dict(headers)
        wanted.update(messages.headers_in(authorization))
        removable = SIDECAR_HEADERS
        if self._gateway.reader.door.hands_out_keys:
            removable |= _KEYS
        removed = sorted(name for name in removable if name in given and name not in wanted)
        changes = [(name, value) for name, value in wanted.items() if given.get(name) != value]
        changes.append((messages.DESTINATION.encode(), endpoint.encode()))
        if body is not None:
            changes.append((b"content-length", b"%d" % len(body)))
        common = pb.CommonResponse(
            header_mutation=messages.mutation(changes, [name.decode() for name in removed]),
            clear_route_cache=True,
        )
        choice = pb.ProcessingResponse(dynamic_metadata=messages.destination(endpoint))
        if self._buffers and body is not None:
            common.body_mutation.body = body
            choice.request_body.response.CopyFrom(common)
            self.outbox.put([choice])
            return
        choice.request_headers.response.CopyFrom(common)
        self.outbox.put([choice])
        if body is not None:
            self.outbox.put(messages.request_pieces(body, ends=not self._trailers))
            if self._trailers:
                self.outbox.put([pb.ProcessingResponse(request_trailers=pb.TrailersResponse())])

    # The answer.

    def _answer_head(self, message: pb.ProcessingRequest) -> None:
        head = message.response_headers
        headers = dict(messages.headers_of(head))
        if self._stage is Stage.BODY or self._stage is Stage.PLACING:  # the proxy answered by itself
            if self._exchange is not None:
                self._exchange.client_left()
            self._stop_timer()
            self.release_body()
            self._stage = Stage.PASSING
        if self._stage is Stage.PASSING:
            self.outbox.put([pb.ProcessingResponse(response_headers=pb.HeadersResponse())])
        elif self._stage is not Stage.OVER:
            self._expect(Stage.SENT)
            assert self._exchange is not None
            self._stage = Stage.ANSWERING
            status = headers.get(b":status", b"")
            self._status = int(status) if status.isdigit() and len(status) == 3 else 502
            served = messages.served_by(message)
            if served and served != self._endpoint:
                self._parts.served_elsewhere()
                if not self._exchange.served_by(self._gateway.registry.get(served)):
                    self._sink = None
                    self.release_body()
                    self._passes()
            lines = messages.headers_in(self._exchange.record.lines())
            common = pb.CommonResponse(header_mutation=messages.mutation(lines))
            self.outbox.put([pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=common))])
            if self._sink is not None:
                self._relay(partial(self._sink.upstream_head, self._status, *_framing(headers)))
            if self._status in UNAVAILABLE:
                self._exchange.doubted()
            if self._sink is not None and not self._sees_answers:
                self._exchange.answer_began()
        if head.end_of_stream:
            self._answer_ended()

    def _answer_body(self, part: pb.HttpBody) -> None:
        streams = self._streams_answers
        if self._stage is Stage.PASSING:
            self.outbox.put(
                messages.answer_pieces(part.body, ends=part.end_of_stream)
                if streams
                else [pb.ProcessingResponse(response_body=pb.BodyResponse())]
            )
        elif self._stage is not Stage.OVER:
            self._expect(Stage.ANSWERING)
            if not streams:
                self.outbox.put([pb.ProcessingResponse(response_body=pb.BodyResponse())])
            if self._sink is not None and part.body:
                self._relay(partial(self._sink.upstream_data, part.body), flush=not part.end_of_stream)
        if part.end_of_stream:
            self._answer_ended()

    def _answer_trailers(self) -> None:
        self._answer_ended(ends=False)
        self.outbox.put([pb.ProcessingResponse(response_trailers=pb.TrailersResponse())])
        self.outbox.end()

    def _answer_ended(self, *, ends: bool = True) -> None:
        """The answer is complete; its last piece ends it, or its trailers do."""
        if self._sink is not None and self._stage is Stage.ANSWERING:
            self._trailers = not ends
            self._relay(self._sink.upstream_end)
        self._stage = Stage.OVER
        self._stop_timer()
        if ends:
            self.outbox.end()

    def _relay(self, report: Callable[[], None], *, flush: bool = True) -> None:
        """Report a part of the worker's answer to the exchange, and pass on the part that it lets through."""
        self._relaying = True
        try:
            report()
        except Exception:  # noqa: BLE001 - the top of a request
            error = crashed()
            self.outbox.end(error.message)
        finally:
            self._relaying = False
        if flush:
            self._flush()

    def _flush(self) -> None:
        out, self._out = b"".join(self._out), []
        if not self._streams_answers:
            return
        if self._renamed is not None and out:
            theirs, ours = self._renamed
            for form in (b'"model":%b', b'"model": %b'):
                out = out.replace(form % theirs, form % ours)
        if out or self._finished:
            self.outbox.put(messages.answer_pieces(out, ends=self._finished and not self._trailers))

    # The exchange's client (`router.proxy.ClientConnection`).

    def send_head(self, status: int, lines: bytes, *, length: int | None, body: bytes = b"") -> None:
        """Begin the answer: the worker's, of which the proxy has the head, or an error of ours."""
        if self._relaying:
            if body:
                self._out.append(body)
        elif self._stage is Stage.ANSWERING:  # the proxy has another head
            self.outbox.end(f"the answer was given up with status {status}")
        else:
            self._stage = Stage.OVER
            self.outbox.put([messages.immediate(status, lines, body, "cacheway")])
            self.outbox.end()

    def send_body(self, data: bytes) -> None:
        """Pass on bytes of the answer."""
        self._out.append(data)
        if not self._relaying:
            self._flush()

    def finish(self) -> None:
        """End the answer."""
        self.release_body()
        self._finished = True
        if not self._relaying:
            self._flush()
            self._stage = Stage.OVER
            self.outbox.end()

    def abort(self) -> None:
        """Break the answer off: it cannot be completed."""
        self.release_body()
        self.outbox.end("the answer cannot be completed")

    def release_body(self) -> None:
        """Count the request's body no longer."""
        counted, self._counted_bytes = self._counted_bytes, 0
        if counted:
            self._parts.held.release(counted)

    # Inside.

    @property
    def _buffers(self) -> bool:
        return self._modes is not None and self._modes.request_body_mode == pb.BUFFERED

    @property
    def _sees_answers(self) -> bool:
        return self._modes is None or self._modes.response_body_mode != pb.NONE

    @property
    def _streams_answers(self) -> bool:
        return self._modes is None or self._modes.response_body_mode == pb.FULL_DUPLEX_STREAMED

    def _expect(self, stage: Stage) -> None:
        if self._stage is not stage:
            raise OutOfOrder(f"the message cannot come in state {self._stage.name.lower()}")

    def _refuse(self, error: RouterError) -> None:
        self._stop_timer()
        lines, body = error_answer(error)
        self.send_head(error.status, lines, length=len(body), body=body)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _slots_of(self, endpoints: list[str] | None) -> Slots | None:
        """Return the slots of the workers at some endpoints; None for any worker."""
        if endpoints is None:
            return None
        found = [self._gateway.registry.get(endpoint) for endpoint in endpoints]
        return np.array([slot for local in found if local for slot in local.slots], dtype=np.intp)


def _framing(headers: dict[bytes, bytes]) -> tuple[bytes, int | None]:
    """Return the lines of an answer's head that say how its body is to be read, and its length."""
    names = (b"content-type", b"content-encoding")
    lines = b"".join(b"%b: %b\r\n" % (name, headers[name]) for name in names if name in headers)
    length = headers.get(b"content-length", b"")
    return lines, int(length) if length.isdigit() and len(length) < 19 else None


def _client_of(headers: Sequence[Header]) -> str:
    """Return the client's address for the log: the last one that the proxy added; empty if unknown."""
    for name, value in headers:
        if name == b"x-forwarded-for":
            return value.rpartition(b",")[2].strip().decode("latin-1")[:CLIENT_CHARS_MAX]
    return ""
