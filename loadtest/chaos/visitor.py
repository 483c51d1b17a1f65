"""One client with one request and a connection of its own: every outcome has a name.

A visitor decodes nothing: it sees the head, the time of the first byte of the body, and the end of the
answer. `visit` raises nothing but cancellation, and returns within ``patience_s`` with an `End`:

    ANSWERED   200, and complete; a stream with its [DONE]
    REJECTED   429
    EXPIRED    408; a stream whose error event says so, since the deadline came after it began
    LEFT       the visitor had enough and closed the connection itself
    CUT        the connection broke before the answer was complete
    REFUSED    no process listened
    FAILED     any other answer: its status and the beginning of its body are kept
    HUNG       nothing was final when patience ended
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

TAIL_BYTES = 1024
"""Kept end of a stream: more than ``data: [DONE]`` or an error event needs."""

TIMEOUT_CODES = ("request_timeout", "request_expired")
"""Codes of error events for a passed deadline."""

ERROR_BYTES_MAX = 4096
"""Kept part of a body that is no answer."""

PROBLEM_CHARS = 300

CLOSE_S = 2.0
"""Time that a connection may stay open behind the last answer on it, where its end is awaited."""


class End(StrEnum):
    """End of a visit; see the module."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    EXPIRED = "expired"
    LEFT = "left"
    CUT = "cut"
    REFUSED = "refused"
    FAILED = "failed"
    HUNG = "hung"


_ENDS = {429: End.REJECTED, 408: End.EXPIRED}


@dataclass(frozen=True, slots=True)
class Visit:
    """Outcome of one request.

    Attributes:
        sent_s: When it was due, in event loop time.
        written_s: When it was written; the same as ``sent_s`` if it never was.
        ttft_s: From when it was due to the first byte of a 200's body; None if none came.
        status: 0 if no head came.
        code: ``error.code`` of an error's body; empty if there was none.
        retry_after: The header; None if it did not come.
        problem: In words; empty for none.
        worker: Named by the gateway.
        body: Received bytes of the body, if it was to be kept.
        surplus_bytes: Behind the end of the answer, if it was waited for.
    """

    end: End
    sent_s: float
    written_s: float
    ended_s: float
    ttft_s: float | None
    status: int
    code: str
    retry_after: str | None
    problem: str
    worker: str = ""
    body: bytes = b""
    surplus_bytes: int = 0


class _Error(msgspec.Struct):
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


async def visit(
    base_url: str,
    path: str,
    body: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    streamed: bool,
    patience_s: float,
    leaves_after_s: float | None = None,
    due_s: float | None = None,
    whole: bool = False,
) -> Visit:
    """POST one JSON body and observe how it ends.

    A streamed answer must end with ``[DONE]``. A visit longer than ``patience_s`` hangs; the visitor leaves
    an incomplete answer after ``leaves_after_s``, unless None. Times count from ``due_s`` in event loop time
    (now). ``whole`` keeps the body, and waits behind a complete answer until the connection is closed.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() if due_s is None else due_s
    url = urlsplit(base_url)
    host, port = url.hostname or "127.0.0.1", url.port or 80
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    )
    until_s = due_s + (patience_s if leaves_after_s is None else min(patience_s, leaves_after_s))
    connection: _Connection | None = None
    try:
        async with asyncio.timeout_at(until_s):
            _, connection = await loop.create_connection(lambda: _Connection(loop, whole=whole), host, port)
            connection.write(head.encode() + body)
            await connection.over
            if whole:
                async with asyncio.timeout(CLOSE_S):
                    await connection.closed
    except TimeoutError:
        if connection is not None and connection.complete:
            return _ended(connection, connection.end(streamed=streamed), due_s, loop.time())
        left = leaves_after_s is not None and leaves_after_s < patience_s
        return _ended(connection, End.LEFT if left else End.HUNG, due_s, loop.time())
    except OSError as error:
        return _ended(connection, End.REFUSED, due_s, loop.time(), f"cannot connect: {error}")
    finally:
        if connection is not None:
            connection.abort()
    return _ended(connection, connection.end(streamed=streamed), due_s, loop.time())


def _ended(
    connection: "_Connection | None", end: End, due_s: float, now_s: float, problem: str = ""
) -> Visit:
    if connection is None:
        return Visit(end, due_s, due_s, now_s, None, 0, "", None, problem)
    code = _code_of(connection.beginning) if connection.status >= 400 else ""
    if end in (End.CUT, End.FAILED, End.HUNG):
        seen = connection.beginning.decode(errors="replace")[:PROBLEM_CHARS]
        problem = f"{connection.problem or end.value}, status {connection.status}: {seen}"
    first_s = connection.first_s if connection.status == 200 else None
    ttft_s = None if first_s is None else first_s - due_s
    return Visit(
        end,
        due_s,
        connection.written_s,
        connection.complete_s or now_s,
        ttft_s,
        connection.status,
        code,
        connection.retry_after,
        problem,
        worker=connection.worker,
        body=bytes(connection.body),
        surplus_bytes=connection.surplus_bytes,
    )


def _code_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.code or ""
    except msgspec.DecodeError:
        return "no error body"


class _Connection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, *, whole: bool) -> None:
        self._loop = loop
        self._whole = whole
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""
        self.complete = False
        self.complete_s = 0.0
        self.over: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.worker = ""
        self.body = bytearray()
        self.surplus_bytes = 0
        self.status = 0
        self.retry_after: str | None = None
        self.written_s = 0.0
        self.first_s: float | None = None
        self.beginning = b""
        self.problem = ""

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self.written_s = self._loop.time()
        self._transport.write(data)

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def end(self, *, streamed: bool) -> End:
        if not self.complete:
            return End.CUT
        if self.status != 200:
            return _ENDS.get(self.status, End.FAILED)
        last = self._tail.rstrip().rpartition(b"data: ")[2]
        if streamed and last != b"[DONE]":
            if _code_of(last) in TIMEOUT_CODES:
                return End.EXPIRED
            self.problem = "a stream without [DONE]"
            return End.FAILED
        return End.ANSWERED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self.surplus_bytes += len(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.problem = f"not HTTP: {error}"
            self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        self.problem = self.problem or f"connection lost: {exc or 'closed'}"
        self._over()
        if not self.closed.done():
            self.closed.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value.decode("latin-1")
        elif name.lower() == b"x-cacheway-worker":
            self.worker = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self.first_s is None:
            self.first_s = self._loop.time()
        if len(self.beginning) < ERROR_BYTES_MAX:
            self.beginning += data[: ERROR_BYTES_MAX - len(self.beginning)]
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._whole:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = True
        self.complete_s = self._loop.time()
        self._over()

    def _over(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
