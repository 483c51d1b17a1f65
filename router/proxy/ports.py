"""The two ports between sockets and decisions.

    client <-> ClientConnection <-> Exchange (router.gateway) <-> UpstreamRequest <-> worker

An *exchange* is one client request until its answer ends. All calls are synchronous callbacks on the event
loop: no task, no queue and no copy per chunk. A request's headers are `Header` pairs; the others only pass
by, as header *lines* (``name: value`` and CR LF, names in lower case) in one piece of bytes that is built
once.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import msgspec

from router.errors import RouterError, UpstreamError

Header = tuple[bytes, bytes]


class Route(IntEnum):
    """Server of a request, and when it begins."""

    APPLICATION = 0
    WHOLE = 1
    """An exchange, when its body is complete."""
    STREAMED = 2
    """An exchange, when its head is complete; the body comes to its `BodySink`."""
    TUNNELLED = 3
    """An exchange, when a head that asks for a WebSocket is complete; what follows are bytes, both ways."""


DERIVED_MAX = 8
"""Rules whose results a repeated head keeps: settings that change make new rules."""


class Derived(dict[object, object]):
    """Results that follow from a head alone, of a head that a client sends again and again, by their rule.

    They may not depend on the length of the body, the only part that differs. A rule is an object that never
    changes.
    """

    __slots__ = ()

    def put(self, rule: object, result: object) -> None:
        """Remember the result of a rule, beside those of a few others."""
        if len(self) >= DERIVED_MAX:
            self.clear()
        self[rule] = result


class RequestHead(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The head of a request; header names in lower case, path and query raw, the query without ``?``.

    Attributes:
        headers: ``content-length`` may be missing if the body came as a whole.
        hop_names: Headers that ``connection`` restricts to this hop: they must not travel on.
        can_chunk: True if the client takes an answer in chunks.
        derived: Results of a head that the client sent before; None if it is new.
    """

    method: bytes = b""
    path: bytes = b""
    query: bytes = b""
    headers: Sequence[Header] = ()
    hop_names: frozenset[bytes] = frozenset()
    keep_alive: bool = False
    can_chunk: bool = False
    derived: Derived | None = None


class ClientRequest(msgspec.Struct, frozen=True, gc=False):
    """A complete client request, within limits.

    Attributes:
        client: Peer address for the log, without the port.
        received_s: Monotonic seconds when the last byte of the body came.
        refusal: The error that answers it; its body was not read and is empty.
    """

    head: RequestHead
    body: bytes
    client: str
    received_s: float
    refusal: RouterError | None = None


class ClientConnection(Protocol):
    """Actions of an exchange on its client. Calls after the client left do nothing."""

    def send_head(self, status: int, lines: bytes, *, length: int | None, body: bytes = b"") -> None:
        """Begin the answer; without `length` it is chunked. Lines of connection and framing are ours.

        `body` are the first body bytes, if available: they leave with the head in one write.
        """

    def send_body(self, data: bytes) -> None:
        """Pass on body bytes. Backpressure arrives as `Exchange.pause` and `Exchange.resume`."""

    def finish(self) -> None:
        """End the answer; keep the connection if HTTP allows."""

    def abort(self) -> None:
        """Close the connection now: the answer cannot be completed."""

    def release_body(self) -> None:
        """Count the request's body no longer. `finish` and `abort` imply it."""


class BodySink(Protocol):
    """Receiver of a body, or of a tunnel's bytes, while they come in."""

    def body_data(self, data: bytes) -> None:
        """Take bytes, in order."""

    def body_end(self) -> None:
        """The body is complete; a tunnel's never is."""

    def body_failed(self, error: RouterError) -> None:
        """The rest will not come, or is not accepted: answer with the error, or break off."""


class StreamingConnection(ClientConnection, Protocol):
    """A client whose body comes while its exchange runs (`Route.STREAMED`, `Route.TUNNELLED`)."""

    def read_body(self, sink: BodySink) -> None:
        """Deliver what has come, before this returns, and then what comes."""

    def hold_body(self, size: int) -> None:
        """Count the bytes of it that the exchange holds; raise `RequestRejected` without room for them."""

    def pause_body(self) -> None:
        """Read no more of it for now."""

    def resume_body(self) -> None:
        """Read on."""

    def switch_protocols(self, lines: bytes) -> None:
        """Answer 101; from now on `send_body` passes bytes unframed."""


class BodySource(Protocol):
    """Writer of a request's body, as the connection to the worker sees it."""

    def worker_connected(self) -> None:
        """The head was sent: write the body (`UpstreamUpload.write`)."""

    def worker_slow(self) -> None:
        """Write no more for now: the worker reads too slowly."""

    def worker_ready(self) -> None:
        """Write on."""


class Exchange(Protocol):
    """Calls of a client connection on the exchange that it started."""

    def pause(self) -> None:
        """Stop reading from the worker: the client reads too slowly."""

    def resume(self) -> None:
        """Read on: the client caught up."""

    def client_left(self) -> None:
        """End: the client closed the connection before `ClientConnection.finish`. Comes at most once."""

    def interrupt(self) -> None:
        """End the answer with an error before this returns: the process ends now."""


class StartExchange(Protocol):
    """The gateway's front door for the server: begin serving one request."""

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start. May answer at once, before it returns."""


class JudgeHead(Protocol):
    """Check of a request before its body is read."""

    def __call__(self, headers: Sequence[Header]) -> None:
        """Raise the `RouterError` that answers a request whose body may not be sent."""


class UpstreamSink(Protocol):
    """Receiver of an answer: ``head data* (end | failed)`` or just ``failed``, and nothing after an abort."""

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Take the head. Lines exclude those of the connection; length is None for chunked or until-close."""

    def upstream_data(self, data: bytes) -> None:
        """Take decoded body bytes, as they came."""

    def upstream_end(self) -> None:
        """The answer is complete."""

    def upstream_failed(self, error: UpstreamError) -> None:
        """It failed; the class of the error says how far it got."""


class WholeSink:
    """An `UpstreamSink` that takes an answer which came at once in one call, in place of three."""

    __slots__ = ()

    def upstream_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Take a complete answer without an error, with at least one byte of a body."""
        raise NotImplementedError


class SilentSink:
    """Ignores an answer."""

    __slots__ = ()

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Ignore it."""

    def upstream_data(self, data: bytes) -> None:
        """Ignore it."""

    def upstream_end(self) -> None:
        """Ignore it."""

    def upstream_failed(self, error: UpstreamError) -> None:
        """Ignore it."""


class UpstreamRequest(Protocol):
    """A request on its way to a worker."""

    def pause(self) -> None:
        """Stop reading the answer (backpressure)."""

    def resume(self) -> None:
        """Read on."""

    def abort(self) -> None:
        """Drop it now: the connection is closed, the sink hears nothing more. Idempotent."""


class UpstreamUpload(UpstreamRequest, Protocol):
    """A request whose body is written while it is on its way."""

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""

    def end(self) -> None:
        """The body is complete."""


class SendRequest(Protocol):
    """Sends a request to one worker (`router.proxy.upstream.WorkerPool.send`)."""

    def __call__(
        self,
        head: RequestHead,
        lines: bytes,
        body: Sequence[bytes | memoryview],
        sink: UpstreamSink,
        *,
        patient: bool = False,
        resend: bool = True,
    ) -> UpstreamRequest:
        """Send it; return at once, before the sink is called."""
