"""The two ports between sockets and decisions.

    client <-> ClientConnection <-> Exchange (router.gateway) <-> UpstreamRequest <-> worker

An *exchange* is one client request from its last byte to the last byte of its answer. The
proxy package moves bytes and enforces HTTP; the exchange decides where they go. All calls are
synchronous callbacks on the event loop: no task, no queue and no copy per chunk.

A request's headers are looked at, so they are `Header` pairs. Those of an answer, and those that go to
a worker, only pass by: they are header *lines*, each ``name: value`` and CR LF, names in lower case, in
one piece of bytes that is built once and copied into the head.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from router.errors import RouterError, UpstreamError

Header = tuple[bytes, bytes]


class ClientRequest(msgspec.Struct, frozen=True, gc=False):
    """A complete client request, within limits, as it came.

    Attributes:
        method: ``b"POST"``...
        path: Raw path without the query.
        query: Raw query without ``?``.
        headers: Names in lower case, in order, as received.
        hop_names: Names of headers that ``connection`` declares to be for us alone: they must not travel on.
        body: The whole body as one buffer, not decoded.
        client: Peer address for the log, without the port.
        received_s: Monotonic seconds when the last byte of the body came.
        refusal: Why its body was not read. Then ``body`` is empty, and this error is the answer.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: Sequence[Header]
    body: bytes
    client: str
    received_s: float
    hop_names: frozenset[bytes] = frozenset()
    refusal: RouterError | None = None


class ClientConnection(Protocol):
    """What an exchange may do to its client. Calls after the client left do nothing."""

    def send_head(self, status: int, lines: bytes, *, length: int | None, body: bytes = b"") -> None:
        """Begin the answer.

        Args:
            status: HTTP status.
            lines: Header lines, without connection, length and transfer-encoding, which are ours.
            length: Body length if known, else chunked.
            body: The first body bytes, if they are there already: they leave with the head in one write.
        """

    def send_body(self, data: bytes) -> None:
        """Pass on body bytes. Backpressure arrives as `Exchange.pause` and `Exchange.resume`."""

    def finish(self) -> None:
        """End the answer; keep the connection if HTTP allows."""

    def abort(self) -> None:
        """Close the connection now: the answer cannot be completed."""

    def release_body(self) -> None:
        """Count the request's body no longer: the exchange has let it go. `finish` and `abort` imply it."""


class Exchange(Protocol):
    """What a client connection tells the exchange that it started."""

    def pause(self) -> None:
        """The client reads too slowly: stop reading from the worker."""

    def resume(self) -> None:
        """The client caught up."""

    def client_left(self) -> None:
        """The client closed the connection before `ClientConnection.finish`. Comes at most once."""

    def interrupt(self) -> None:
        """The process ends now: end the answer with an error, before this returns."""


class StartExchange(Protocol):
    """The gateway's front door for the server: begin serving one request."""

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start. May answer at once, before it returns."""


class JudgeHead(Protocol):
    """Who may send a body."""

    def __call__(self, headers: Sequence[Header]) -> None:
        """Look at a request's headers, while its body is still to come.

        Raises:
            RouterError: It may not be sent; this is the answer.
        """


class UpstreamSink(Protocol):
    """What a worker's answer is delivered to.

    Order: ``head data* (end | failed)`` or just ``failed``. Nothing comes after ``end`` or
    ``failed``, nor after `UpstreamRequest.abort`.
    """

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """The answer's head came; the header lines are without those of the connection and ours.

        ``length`` is its Content-Length; None for chunked or until-close.
        """

    def upstream_data(self, data: bytes) -> None:
        """Decoded body bytes, as they came."""

    def upstream_end(self) -> None:
        """The answer is complete."""

    def upstream_failed(self, error: UpstreamError) -> None:
        """It failed; the class of the error says how far it got."""


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
