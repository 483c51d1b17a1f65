"""The gateway's own questions to workers: health, models, metrics, flushes, new roles.

    a question ──> the addresses ──> a connection of its own ──> one answer ──> closed in every case

Questions share no pool, connection or queue, so a cancelled one cannot keep another from being asked (a pool
leaked the places of requests cancelled while they connected: encode/httpcore#1093). Health checks of a worker
are seconds apart, longer than engines keep connections.

A worker is trusted no further than necessary: connections only where `router.destinations` allows, no
redirect, no proxy of the environment, neither compressed nor endless answers, one deadline for the whole
question. Health checks use the `Asker` itself, at a third of the cost of httpx; all else an httpx client with
the `Asker` as transport (`asking_client`): at most `AT_ONCE` at a time.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import httptools
import httpx

from router.destinations import Destinations

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Longest answer, in bytes; metrics of an engine with many ranks are a few megabytes."""

HELD_BYTES_MAX = 64 * 1024 * 1024
SHARE_BYTES = 256 * 1024
"""While incomplete answers hold more than `HELD_BYTES_MAX`, none may be longer than this: twice the metrics
of an engine with one rank."""

HEAD_BYTES_MAX = 64 * 1024
"""Longest head of an answer, and the most framing between two pieces of its body, in bytes."""

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Longest page of an engine, in bytes."""

AT_ONCE = 128
"""Questions at a time through httpx."""

BYTES_MAX = "cacheway.bytes_max"
"""Extension of an httpx request with the bound on its answer, if below `ANSWER_BYTES_MAX`."""

_LEFT_OUT = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"keep-alive", b"accept-encoding")
)
_TARGET_CHARS = "/?&=%:@!$'()*+,;~[]-._"

Lines = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer, header names in lower case; the body is empty if only the head was asked for."""

    status: int
    lines: Lines
    body: bytes

    @property
    def is_success(self) -> bool:
        """True for a 2xx status."""
        return 200 <= self.status < 300

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of a name in lower case."""
        return next((value for key, value in self.lines if key == name), None)


class AskError(Exception):
    """The question got no answer."""


class NotConnected(AskError):
    """There was no connection: refused, unreachable, no such name, an address that is not allowed."""


class TooLate(AskError):
    """The answer, or even the connection, did not come in time."""

    def __init__(self, *, connected: bool) -> None:
        super().__init__("no answer in time" if connected else "no connection in time")
        self.connected = connected


class BadAnswer(AskError):
    """The connection broke, or the answer is malformed."""


class TooLong(BadAnswer):
    """The answer exceeds its bound."""


class Compressed(BadAnswer):
    """The answer is compressed although that was not asked for."""


class Asker:
    """Questions, each on a connection of its own; `key_at` returns the key that may be shown at a URL."""

    def __init__(
        self,
        destinations: Destinations,
        tls: ssl.SSLContext,
        *,
        key_at: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._key_at = key_at
        self._destinations = destinations
        self._tls = tls
        self._open: set[_Question] = set()
        self.held_bytes = 0
        """Bytes of incomplete answers."""

    def rebuild(self) -> None:
        """End all questions, and forget the lookups of names under way."""
        self._destinations.forget_lookups()
        for question in tuple(self._open):
            question.give_up(BadAnswer("it was broken off: questions were stuck"))

    async def ask(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        lines: Lines = (),
        body: bytes = b"",
        bytes_max: int = ANSWER_BYTES_MAX,
        head_only: bool = False,
        begun: Callable[[], None] = lambda *_: None,
        connected: Callable[[float], None] = lambda *_: None,
    ) -> Answer:
        """Ask once.

        Args:
            method: In upper case.
            url: URL at a worker, with path and query.
            timeout_s: For all of it, from the lookup of its name to the last byte.
            lines: Headers beside those of the connection, ``accept-encoding`` and the worker's key.
            body: Sent as it is.
            bytes_max: Longest body that is accepted.
            head_only: Do not read the body.
            begun: Called when the first connection attempt begins.
            connected: Called with the seconds that connecting took, without TLS's handshake.

        Raises:
            AskError: There was no answer; its class says why.
        """
        parts = _parts(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        try:
            port = parts.port or (443 if secure else 80)
            head = self._head(
                method,
                parts.netloc,
                f"{parts.path or '/'}?{parts.query}".rstrip("?"),
                self._key_at(url),
                lines,
                body,
            )
        except ValueError as error:
            raise NotConnected(str(error)) from None
        question = _Question(self, (head, body), bytes_max, head_only=head_only)
        self._open.add(question)
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await self._destinations.resolve(host, port)
                begun()
                await self._connect(question, addresses, port, host if secure else None, connected)
                return await question.answered
        except TimeoutError:
            # The deadline's; the system's own is `NotConnected` already.
            raise TooLate(connected=question.is_connected) from None
        except (OSError, UnicodeError) as error:
            raise NotConnected(str(error) or type(error).__name__) from error
        finally:
            self._open.discard(question)
            question.close()

    def _head(
        self, method: str, netloc: str, target: str, key: str | None, lines: Lines, body: bytes
    ) -> bytes:
        if not (target.isascii() and target.isprintable()) or " " in target:
            target = quote(target, safe=_TARGET_CHARS)
        head = [
            f"{method} {target} HTTP/1.1\r\nhost: {netloc}\r\nconnection: close\r\n".encode("ascii"),
            b"accept-encoding: identity\r\n",
        ]
        if key:
            head.append(f"authorization: Bearer {key}\r\n".encode("latin-1"))
        head += [b"%b: %b\r\n" % line for line in lines]
        if body or method not in ("GET", "HEAD"):
            head.append(b"content-length: %d\r\n" % len(body))
        head.append(b"\r\n")
        return b"".join(head)

    async def _connect(
        self,
        question: "_Question",
        addresses: Sequence[str],
        port: int,
        tls_name: str | None,
        connected: Callable[[float], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        for address in addresses:
            began_s = time.monotonic()
            try:
                if tls_name is None:
                    await loop.create_connection(lambda: question, address, port)
                    connected(time.monotonic() - began_s)
                else:
                    sock = await _connected_socket(loop, address, port)
                    connected(time.monotonic() - began_s)
                    await loop.create_connection(
                        lambda: question, sock=sock, ssl=self._tls, server_hostname=tls_name
                    )
            except TimeoutError as error:  # the system's own; the deadline's comes as a cancellation
                if address == addresses[-1]:
                    raise NotConnected(str(error) or "no answer to the connection attempt") from error
            except OSError:
                if address == addresses[-1]:
                    raise
            else:
                return


@lru_cache(maxsize=16_384)
def _parts(url: str) -> SplitResult:
    return urlsplit(url)


async def _connected_socket(loop: asyncio.AbstractEventLoop, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - as the standard library has it
        await loop.sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock


class _Question(asyncio.Protocol):
    """The protocol of one connection, which carries one question."""

    def __init__(self, asker: Asker, pieces: tuple[bytes, bytes], bytes_max: int, *, head_only: bool) -> None:
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.is_connected = False
        self._pieces = pieces
        self._bytes_left = bytes_max
        self._asker = asker
        self._head_only = head_only
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._over = False
        self._status = 0
        self._lines: list[tuple[bytes, bytes]] = []
        self._length: int | None = None
        self._chunked = False
        self._framing_bytes = 0
        self._body = bytearray()

    def close(self) -> None:
        """Close at once, silently. Idempotent."""
        self._over = True
        self._asker.held_bytes -= len(self._body)
        self._body = bytearray()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if self.answered.done():
            if not self.answered.cancelled():
                self.answered.exception()  # perhaps never awaited
        else:
            self.answered.cancel()

    def give_up(self, error: AskError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._over:  # closed while it connected
            transport.abort()  # type: ignore[attr-defined]
            return
        self._transport = transport
        self.is_connected = True
        head, body = self._pieces
        self._transport.write(head + body if len(body) < HEAD_BYTES_MAX else head)
        if len(body) >= HEAD_BYTES_MAX:
            self._transport.write(body)

    def data_received(self, data: bytes) -> None:
        if self.answered.done():
            return
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.give_up(BadAnswer("an upgrade without a request for it"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.give_up(cause if isinstance(cause, AskError) else BadAnswer(f"malformed: {error}"))
        if self._framing_bytes > HEAD_BYTES_MAX:
            self.give_up(BadAnswer("more head or framing than is accepted"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End a body without a length; fail anything else."""
        if self._status and self._length is None and not self._chunked and exc is None:
            self._tell()
        why = "the connection ended before the answer" if exc is None else f"the connection broke: {exc}"
        self.give_up(BadAnswer(why))

    # Parser callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self._status:  # a trailer
            return
        if name == b"content-length":
            self._length = int(value) if value.isdigit() and len(value) < 16 else 1 << 53
        elif name == b"transfer-encoding":
            self._chunked = True
        self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head; skip interim answers."""
        status = self._parser.get_status_code()
        if self._status or status < 200:
            self._lines, self._length, self._chunked = [], None, False
            return
        self._status = status
        self._framing_bytes = 0
        coding = next((value for name, value in self._lines if name == b"content-encoding"), b"")
        if coding.strip().lower() not in (b"", b"identity"):
            raise Compressed("the answer is compressed although that was not asked for")
        if self._head_only:
            self._tell()

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        self._bytes_left -= len(data)
        if self._bytes_left < 0 or (
            self._asker.held_bytes > HELD_BYTES_MAX and len(self._body) > SHARE_BYTES
        ):
            raise TooLong("the answer is longer than is read")
        self._asker.held_bytes += len(data)
        self._body += data

    def on_message_complete(self) -> None:
        if self._status:
            self._tell()

    def _tell(self) -> None:
        if not self.answered.done():
            self.answered.set_result(Answer(self._status, tuple(self._lines), bytes(self._body)))


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._places = asyncio.Semaphore(AT_ONCE)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        timeout_s = max((step_s for step_s in timeouts.values() if step_s), default=60.0)
        body = await request.aread()
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout(f"{AT_ONCE} questions are under way already") from None
        try:
            answer = await self._asker.ask(
                request.method,
                str(request.url),
                timeout_s=timeout_s,
                lines=[line for line in request.headers.raw if line[0].lower() not in _LEFT_OUT],
                body=body,
                bytes_max=request.extensions.get(BYTES_MAX, ANSWER_BYTES_MAX),
            )
        except TooLate as error:
            raise (httpx.ReadTimeout if error.connected else httpx.ConnectTimeout)(str(error)) from error
        except NotConnected as error:
            raise httpx.ConnectError(str(error)) from error
        except Compressed as error:
            raise httpx.DecodingError(str(error)) from error
        except TooLong as error:
            raise httpx.ReadError(str(error)) from error
        except AskError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        finally:
            self._places.release()
        return httpx.Response(answer.status, headers=list(answer.lines), content=answer.body)


def asking_client(asker: Asker, *, timeout_s: float) -> httpx.AsyncClient:
    """Make an httpx client that asks through an asker; the timeout is the default of each question."""
    return httpx.AsyncClient(
        transport=_Transport(asker), timeout=timeout_s, trust_env=False, follow_redirects=False
    )


async def asked_page(asker: Asker, url: str, timeout_s: float) -> bytes | None:
    """Return what `page` does, without httpx: for loops that read many pages."""
    try:
        answer = await asker.ask("GET", url, timeout_s=timeout_s, bytes_max=PAGE_BYTES_MAX)
    except AskError:
        return None
    return answer.body if answer.is_success else None


async def page(client: httpx.AsyncClient, url: str, timeout_s: float) -> bytes | None:
    """Return a worker's successful answer to GET; None on any failure, or after the timeout."""
    body = bytearray()
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("GET", url, timeout=timeout_s, extensions={BYTES_MAX: PAGE_BYTES_MAX}) as answer,
        ):
            async for data in answer.aiter_bytes():
                body += data
                if len(body) > PAGE_BYTES_MAX:
                    return None
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return None
    return bytes(body) if answer.is_success else None
