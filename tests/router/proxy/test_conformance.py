"""HTTP/1.1 as a table: bytes a client may send, what it gets, and what a worker sees of it.

A gateway process stands between bare sockets and a worker that records every request. Behind each request
follows another one, `BEHIND`: if the first is refused, the gateway must never serve it under any reading of
the first; if the first is served, it shows that the connection is still in step.

The second half is the same for answers: bytes a worker may send, and what the client gets of them.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from fakes.answers import ReadAnswer, read_answers
from fakes.running import serving, until_async
from fakes.scripted_worker import set_reset

from router.shared import EmbeddedValkey

pytestmark = pytest.mark.asyncio(loop_scope="module", loop_factories=["asyncio"])  # the gateway has its own

BODY = b'{"model":"m","prompt":"x"}'
LENGTH = b"Content-Length: 26"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"1a\r\n" + BODY + b"\r\n0\r\n\r\n"
ANSWER = b'{"ok":1}'
BEHIND = (
    b'POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 31\r\n\r\n{"model":"m","prompt":"behind"}'
)


def post(
    *lines: bytes, target: bytes = b"/v1/completions", version: bytes = b"1.1", body: bytes = BODY
) -> bytes:
    """A request with these header lines, after a Host."""
    return b"\r\n".join((b"POST %b HTTP/%b" % (target, version), b"Host: g", *lines, b"", body))


def get(target: bytes, *lines: bytes) -> bytes:
    """A request without a body."""
    return b"\r\n".join((b"GET %b HTTP/1.1" % target, b"Host: g", *lines, b"", b""))


def chunked(body: bytes, *lines: bytes) -> bytes:
    """A request with a chunked body."""
    return post(*lines, CHUNKED, body=body)


def chunk(
    size: bytes = b"1a", end: bytes = b"\r\n", after: bytes = b"\r\n", last: bytes = b"0\r\n\r\n"
) -> bytes:
    """Return a request with one odd chunk."""
    return chunked(size + end + BODY + after + last)


@dataclass
class Worker:
    """Serves the model ``m``, and records its requests.

    Attributes:
        seen: Head and body of every POST request.
        connections: The connection of each of them.
        answer: Its answer, after which it closes the connection if ``closes``.
    """

    url: str = ""
    seen: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)
    answer: bytes = b""
    closes: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(framed(b'{"data":[{"id":"m"}]}'))
                    continue
                length = re.findall(rb"\r\ncontent-length: (\d+)\r\n", head)
                assert len(length) == 1
                self.seen.append((head, await reader.readexactly(int(length[0]))))
                self.connections.append(writer)
                behind = self.seen[-1][1] != BODY
                writer.write(framed(ANSWER) if behind else self.answer)
                if self.closes and not behind:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def framed(body: bytes, status: bytes = b"200 OK") -> bytes:
    """An answer as it should be."""
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Client:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.data = b""
        self._reader = reader
        self.writer = writer

    async def read_until(self, seen: Callable[[bytes], object]) -> bytes:
        """Read until the received bytes fulfil a condition."""
        async with asyncio.timeout(60):
            while not seen(self.data):
                data = await self._reader.read(1 << 16)
                assert data, f"the connection was closed after {self.data!r}"
                self.data += data
        return self.data

    async def answers(self) -> list[ReadAnswer]:
        """All answers, once the gateway has closed the connection."""
        async with asyncio.timeout(60):
            return read_answers(self.data + await self._reader.read())


@dataclass
class Stage:
    """The gateway under test."""

    port: int
    worker: Worker
    clients: list[Client] = field(default_factory=list)

    async def send(self, data: bytes) -> Client:
        """Send bytes on a new connection."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        client.writer.write(data)
        return client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(valkey: EmbeddedValkey) -> AsyncIterator[Stage]:
    """A gateway and its worker, for all rows."""
    worker = Worker()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with (
        server,
        serving(
            valkey.url,
            "conformance",
            [worker.url],
            *(
                "--disable-retries",
                "--disable-circuit-breaker",
                "--read-timeout-secs",
                "5",
                "--admin-allowed-hosts",
                "g",
            ),
        ) as (_, client),
    ):

        async def healthy() -> bool:
            return bool((await client.get("/readiness")).json()["workers"]["healthy"])

        await until_async(healthy)
        yield Stage(client.base_url.port or 0, worker)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway: Stage) -> AsyncIterator[Stage]:
    """The same for one test, with a worker that has seen nothing yet."""
    worker = gateway.worker
    worker.seen.clear()
    worker.connections.clear()
    worker.answer, worker.closes = framed(ANSWER), False
    yield gateway
    while gateway.clients:
        gateway.clients.pop().writer.close()


# Requests that are refused: the odd part, the section of RFC 9112 (or 9110), the bytes.

REFUSED_HEADS: list[tuple[str, str, bytes]] = [
    ("no host", "3.2", post(LENGTH).replace(b"Host: g\r\n", b"")),
    ("host twice", "3.2", post(b"Host: g", LENGTH)),
    ("two hosts", "3.2", post(b"Host: h", LENGTH)),
    ("space in the host", "3.2", post(LENGTH).replace(b"Host: g", b"Host: g h")),
    ("slash in the host", "3.2", post(LENGTH).replace(b"Host: g", b"Host: g/h")),
    ("user in the host", "3.2", post(LENGTH).replace(b"Host: g", b"Host: u@g")),
    ("same length twice", "6.3", post(LENGTH, LENGTH)),
    ("two lengths", "6.3", post(b"Content-Length: 2", LENGTH)),
    ("list of one length", "6.3", post(b"Content-Length: 26, 26")),
    ("list of lengths", "6.3", post(b"Content-Length: 2, 26")),
    ("negative length", "6.3", post(b"Content-Length: -26")),
    ("length with plus", "6.3", post(b"Content-Length: +26")),
    ("hexadecimal length", "6.3", post(b"Content-Length: 0x1a")),
    ("empty length", "6.3", post(b"Content-Length:")),
    ("blank length", "6.3", post(b"Content-Length:  ")),
    ("length with fraction", "6.3", post(b"Content-Length: 26.0")),
    ("space in the length", "6.3", post(b"Content-Length: 2 6")),
    ("underscore in the length", "6.3", post(b"Content-Length: 2_6")),
    ("quoted length", "6.3", post(b'Content-Length: "26"')),
    ("length in wide digits", "6.3", post("Content-Length: ２６".encode())),
    ("length beyond 64 bits", "6.3", post(b"Content-Length: 18446744073709551642")),
    ("length of 60 digits", "6.3", post(b"Content-Length: " + b"9" * 60)),
    ("length, then chunked", "6.1", post(LENGTH, CHUNKED, body=CHUNKS)),
    ("chunked, then length", "6.1", post(CHUNKED, LENGTH, body=CHUNKS)),
    ("no length and chunked", "6.1", post(b"Content-Length: 0", CHUNKED, body=CHUNKS)),
    ("chunked twice", "6.1", post(CHUNKED, CHUNKED, body=CHUNKS)),
    ("chunked twice in a list", "6.1", post(CHUNKED + b", chunked", body=CHUNKS)),
    ("chunked, identity", "6.1", post(CHUNKED + b", identity", body=CHUNKS)),
    ("chunked, then identity", "6.1", post(CHUNKED, b"Transfer-Encoding: identity", body=CHUNKS)),
    ("identity, then chunked", "6.1", post(b"Transfer-Encoding: identity", CHUNKED, body=CHUNKS)),
    ("identity with a length", "6.1", post(b"Transfer-Encoding: identity", LENGTH)),
    ("xchunked", "6.1", post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    ("another coding", "6.1", post(b"Transfer-Encoding: gzip", body=CHUNKS)),
    ("a coding below chunked", "6.1", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
    ("a coding, then chunked", "6.1", post(b"Transfer-Encoding: gzip", CHUNKED, body=CHUNKS)),
    ("no coding", "6.1", post(b"Transfer-Encoding:", body=CHUNKS)),
    ("no coding with a length", "6.1", post(b"Transfer-Encoding:", LENGTH)),
    ("no coding, then chunked", "6.1", post(b"Transfer-Encoding:", CHUNKED, body=CHUNKS)),
    ("comma before chunked", "6.1", post(b"Transfer-Encoding: ,chunked", body=CHUNKS)),
    ("comma behind chunked", "6.1", post(CHUNKED + b",", body=CHUNKS)),
    ("chunked with a parameter", "6.1", post(CHUNKED + b";q=1", body=CHUNKS)),
    ("chunked behind a vertical tab", "6.1", post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS)),
    ("quoted chunked", "6.1", post(b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    ("space in chunked", "6.1", post(b"Transfer-Encoding: chun ked", body=CHUNKS)),
    ("chunked over HTTP/1.0", "6.1", post(CHUNKED, body=CHUNKS, version=b"1.0")),
    ("space before the colon", "5.1", post(b"X : y", LENGTH)),
    ("tab before the colon", "5.1", post(b"X\t: y", LENGTH)),
    ("length with space before the colon", "5.1", post(b"Content-Length : 26")),
    ("chunked with space before the colon", "5.1", post(b"Transfer-Encoding : chunked", LENGTH)),
    ("no name", "5", post(b": y", LENGTH)),
    ("no colon", "5", post(b"X", LENGTH)),
    ("space in a name", "5", post(b"X Y: z", LENGTH)),
    ("bracket in a name", "5", post(b"X(: y", LENGTH)),
    ("NUL in a name", "5", post(b"X\0: y", LENGTH)),
    ("control byte in a name", "5", post(b"X\x01: y", LENGTH)),
    ("name beyond ASCII", "5", post(b"X\xff: y", LENGTH)),
    ("NUL in a value", "9110 5.5", post(b"X: y\0z", LENGTH)),
    ("control byte in a value", "9110 5.5", post(b"X: y\x01z", LENGTH)),
    ("escape in a value", "9110 5.5", post(b"X: \x1b[2J", LENGTH)),
    ("DEL in a value", "9110 5.5", post(b"X: y\x7fz", LENGTH)),
    ("NUL behind the length", "9110 5.5", post(LENGTH + b"\0")),
    ("folded line", "5.2", post(b"X: y\r\n z", LENGTH)),
    ("folded with a tab", "5.2", post(b"X: y\r\n\tz", LENGTH)),
    ("folded behind nothing", "5.2", post(b"X:\r\n y", LENGTH)),
    ("folded length", "5.2", post(b"Content-Length:\r\n 26")),
    ("folded chunked", "5.2", post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS)),
    ("space before the first header", "2.2", post(LENGTH).replace(b"Host", b" Host")),
    ("LF alone everywhere", "2.2", post(LENGTH).replace(b"\r\n", b"\n")),
    ("LF alone behind the request line", "2.2", post(LENGTH).replace(b"1.1\r\n", b"1.1\n")),
    ("LF alone behind a header", "2.2", post(LENGTH).replace(b"g\r\n", b"g\n")),
    ("LF alone at the end", "2.2", post(LENGTH).replace(b"\r\n\r\n", b"\r\n\n")),
    ("LF in a value", "2.2", post(b"X: y\nContent-Length: 0", LENGTH)),
    ("CR alone behind a header", "2.2", post(LENGTH).replace(b"g\r\n", b"g\r")),
    ("CR in a value", "2.2", post(b"X: y\rContent-Length: 0", LENGTH)),
    ("CR before CRLF", "2.2", post(b"X: y\r", LENGTH)),
    ("method in lower case", "3.1", post(LENGTH).replace(b"POST", b"post")),
    ("unknown method", "3.1", post(LENGTH).replace(b"POST", b"POKE")),
    ("tab behind the method", "3", post(LENGTH).replace(b"POST ", b"POST\t")),
    ("space before the method", "3", b" " + post(LENGTH)),
    ("space behind the version", "3", post(LENGTH).replace(b"1.1\r\n", b"1.1 \r\n")),
    ("space in the target", "3.2", post(LENGTH, target=b"/v1/ completions")),
    ("NUL in the target", "3.2", post(LENGTH, target=b"/v1/completions\0")),
    ("control byte in the target", "3.2", post(LENGTH, target=b"/v1/completions\x01")),
    ("target beyond ASCII", "3.2", post(LENGTH, target=b"/v1/completions?\xff")),
    ("fragment in the target", "3.2", post(LENGTH, target=b"/v1/completions#x")),
    ("relative target", "3.2", post(LENGTH, target=b"v1/completions")),
    ("authority as the target", "3.2.3", post(LENGTH, target=b"g:80")),
    ("absolute target without a host", "3.2.2", post(LENGTH, target=b"http:///v1/completions")),
    ("absolute target of another scheme", "3.2.2", post(LENGTH, target=b"ftp://g/v1/completions")),
    ("absolute target with a user", "9110 4.2.4", post(LENGTH, target=b"http://u:p@g/v1/completions")),
    ("HTTP/1.2", "2.3", post(LENGTH, version=b"1.2")),
    ("HTTP/1.10", "2.3", post(LENGTH, version=b"1.10")),
    ("HTTP/1", "2.3", post(LENGTH, version=b"1")),
    ("http/1.1", "2.3", post(LENGTH).replace(b"HTTP", b"http")),
    (
        "an offered upgrade, two lengths",
        "9110 7.8",
        post(b"Connection: upgrade", b"Upgrade: x", LENGTH, LENGTH),
    ),
    (
        "an offered upgrade, length and chunked",
        "9110 7.8",
        post(b"Connection: upgrade", b"Upgrade: x", LENGTH, CHUNKED, body=CHUNKS),
    ),
]

REFUSED_BODIES: list[tuple[str, str, bytes]] = [
    ("no chunk size", "7.1", chunk(b"")),
    ("junk chunk size", "7.1", chunk(b"zz")),
    ("junk behind the chunk size", "7.1", chunk(b"1ax")),
    ("negative chunk size", "7.1", chunk(b"-1a")),
    ("chunk size with plus", "7.1", chunk(b"+1a")),
    ("chunk size with 0x", "7.1", chunk(b"0x1a")),
    ("underscore in the chunk size", "7.1", chunk(b"1_a")),
    ("chunk size beyond 64 bits", "7.1", chunk(b"1000000000000001a")),
    ("space before the chunk size", "7.1", chunk(b" 1a")),
    ("space behind the chunk size", "7.1", chunk(b"1a ")),
    ("tab behind the chunk size", "7.1", chunk(b"1a\t")),
    ("chunk size ends with LF", "7.1", chunk(end=b"\n")),
    ("chunk size ends with CR", "7.1", chunk(end=b"\r")),
    ("chunk too long", "7.1", chunk(b"19")),
    ("chunk too short", "7.1", chunk(b"1b")),
    ("chunk ends with LF", "7.1", chunk(after=b"\n")),
    ("chunk ends with nothing", "7.1", chunk(after=b"")),
    ("chunk ends with junk", "7.1", chunk(after=b"x\r\n")),
    ("last chunk of size -0", "7.1", chunk(last=b"-0\r\n\r\n")),
    ("last chunk ends with LF", "7.1", chunk(last=b"0\n\n")),
    ("body ends with LF", "7.1", chunk(last=b"0\r\n\n")),
    ("body ends with CR", "7.1", chunk(last=b"0\r\n\r")),
    ("body does not end", "7.1", chunk(last=b"0\r\n")),
    ("empty chunk extension", "7.1.1", chunk(b"1a;")),
    ("space before a chunk extension", "7.1.1", chunk(b"1a ;x=y")),
    ("LF in a chunk extension", "7.1.1", chunk(b"1a;x\ny")),
    ("CR in a chunk extension", "7.1.1", chunk(b"1a;x\ry")),
    ("NUL in a chunk extension", "7.1.1", chunk(b"1a;x\0y")),
    ("CRLF in a quoted chunk extension", "7.1.1", chunk(b'1a;x="\r\n"')),
    ("length as a trailer", "9110 6.5.1", chunk(last=b"0\r\nContent-Length: 5\r\n\r\n")),
    ("coding as a trailer", "9110 6.5.1", chunk(last=b"0\r\nTransfer-Encoding: chunked\r\n\r\n")),
    ("host as a trailer", "9110 6.5.1", chunk(last=b"0\r\nHost: h\r\n\r\n")),
    ("connection as a trailer", "9110 6.5.1", chunk(last=b"0\r\nConnection: close\r\n\r\n")),
    ("upgrade as a trailer", "9110 6.5.1", chunk(last=b"0\r\nUpgrade: h2c\r\n\r\n")),
    ("trailer with space before the colon", "7.1.2", chunk(last=b"0\r\nX : y\r\n\r\n")),
    ("trailer without a name", "7.1.2", chunk(last=b"0\r\n: y\r\n\r\n")),
    ("trailer ends with LF", "7.1.2", chunk(last=b"0\r\nX: y\n\r\n")),
    ("NUL in a trailer", "7.1.2", chunk(last=b"0\r\nX: \0\r\n\r\n")),
    ("folded trailer", "7.1.2", chunk(last=b"0\r\nX: y\r\n z\r\n\r\n")),
    (
        "body without a length",
        "6.3",
        post(),
    ),
]

REFUSED_OTHERWISE: list[tuple[str, str, int, bytes]] = [
    ("HTTP/2.0", "9110 15.6.6", 505, post(LENGTH, version=b"2.0")),
    ("HTTP/0.9 in words", "9110 15.6.6", 505, post(LENGTH, version=b"0.9")),
    ("HTTP/0.9", "9110 15.6.6", 505, b"GET /v1/models\r\n\r\n"),
    ("CONNECT", "9110 9.3.6", 405, post(LENGTH).replace(b"POST /v1/completions", b"CONNECT g:80")),
    ("long target", "3", 414, post(LENGTH, target=b"/" + b"x" * 70_000)),
    ("long value", "9110 5.4", 431, post(b"X: " + b"y" * 70_000, LENGTH)),
    ("long name", "9110 5.4", 431, post(b"x" * 70_000 + b": y", LENGTH)),
    ("many headers", "9110 5.4", 431, post(*[b"X-%d: y" % n for n in range(200)], LENGTH)),
    ("length of half of 64 bits", "9110 15.5.14", 413, post(b"Content-Length: 9223372036854775808")),
    ("preface of HTTP/2", "9113 3.4", 400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("TLS without TLS", "", 400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("the PROXY protocol", "", 400, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + post(LENGTH)),
    ("SSH", "", 400, b"SSH-2.0-OpenSSH_9.2\r\n"),
    ("zeroes", "", 400, bytes(64)),
]

REFUSED = [
    *((name, section, 400, data) for name, section, data in REFUSED_HEADS),
    *((name, section, 400, data) for name, section, data in REFUSED_BODIES),
    *REFUSED_OTHERWISE,
    # The same checks guard the application's routes. This route makes the gateway ask its workers.
    *(
        (f"{name}, for the application", section, 400, data.replace(b"/v1/completions", b"/flush_cache"))
        for name, section, data in REFUSED_HEADS
    ),
    # This one reads its body, and would add a worker.
    *(
        (f"{name}, for the application", section, 400, data.replace(b"/v1/completions", b"/workers"))
        for name, section, data in REFUSED_BODIES
        if name != "body without a length"
    ),
]


@pytest.mark.parametrize(("name", "section", "status", "data"), REFUSED, ids=lambda value: str(value)[:60])
async def test_a_malformed_or_ambiguous_request_is_refused_and_nothing_behind_it_served(
    stage: Stage, name: str, section: str, status: int, data: bytes
) -> None:
    client = await stage.send(data + BEHIND)
    answers = await client.answers()
    other = await stage.send(
        BEHIND.replace(b"behind", b"beside").replace(b"Host", b"Connection: close\r\nHost")
    )
    await other.answers()

    if name == "body without a length":  # the request is complete without it, and misses the model
        assert answers.pop(0).status == 400
    assert [answer.status for answer in answers] == [status]
    assert answers[0].headers[b"connection"] == b"close"
    assert answers[0].headers[b"x-request-id"]
    assert [body for _, body in stage.worker.seen] == [b'{"model":"m","prompt":"beside"}']


@pytest.mark.parametrize(
    "data",
    [data for name, _, data in REFUSED_HEADS if "length" in name or "chunked" in name],
    ids=[name for name, _, _ in REFUSED_HEADS if "length" in name or "chunked" in name],
)
async def test_what_was_pipelined_before_a_refused_request_is_served(stage: Stage, data: bytes) -> None:
    client = await stage.send(BEHIND + data + BEHIND)

    assert [answer.status for answer in await client.answers()] == [200, 400]
    assert len(stage.worker.seen) == 1


# Requests that are served: the odd part, the section of RFC 9112 (or 9110), the bytes, the statuses.

SERVED: list[tuple[str, str, bytes]] = [
    ("a length", "6.2", post(LENGTH)),
    ("a length in white space", "5.1", post(b"Content-Length:\t 26 \t")),
    ("a length without space", "5.1", post(b"Content-Length:26")),
    ("a length behind zeroes", "6.2", post(b"Content-Length: 00000000000000000000000000000026")),
    ("names in any case", "5", post(b"cONTENT-lENGTH: 26")),
    ("chunked", "7.1", chunked(CHUNKS)),
    ("chunked in any case, in spaces", "7.1", post(b"TRANSFER-ENCODING:  CHUNKED  ", body=CHUNKS)),
    ("many chunks", "7.1", chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")),
    ("chunk size in capitals", "7.1", chunk(b"1A")),
    ("chunk size behind zeroes", "7.1", chunk(b"000000000000000000000000000000001a")),
    ("last chunk of several zeroes", "7.1", chunk(last=b"000\r\n\r\n")),
    ("chunk extension", "7.1.1", chunk(b"1a;x=y;z")),
    ("quoted chunk extension", "7.1.1", chunk(b'1a;x="y;z"')),
    ("extension of the last chunk", "7.1.1", chunk(last=b"0;x=y\r\n\r\n")),
    ("trailers", "7.1.2", chunk(last=b"0\r\nX: y\r\nX-Request-Id: late\r\n\r\n")),
    ("empty lines first", "2.2", b"\r\n\r\n" + post(LENGTH)),
    ("spaces in the request line", "3", post(LENGTH).replace(b"POST ", b"POST  ")),
    ("absolute target", "3.2.2", post(LENGTH, target=b"http://elsewhere/v1/completions")),
    ("absolute target with TLS", "3.2.2", post(LENGTH, target=b"https://elsewhere:1/v1/completions")),
    ("query", "3.2.1", post(LENGTH, target=b"/v1/completions?x=y")),
    ("empty host", "3.2", post(LENGTH).replace(b"Host: g", b"Host:")),
    ("host with a port, in white space", "3.2", post(LENGTH).replace(b"Host: g", b"Host:\t g:80 ")),
    ("host that is an IPv6 address", "3.2", post(LENGTH).replace(b"Host: g", b"Host: [::1]:80")),
    ("every byte that a name may have", "5", post(b"X!#$%&'*+-.^_`|~09: y", LENGTH)),
    (
        "every byte that a value may have",
        "9110 5.5",
        post(b"X: \t " + bytes(range(0x21, 0x7F)) + b"\xff", LENGTH),
    ),
    ("no value", "5", post(b"X:", LENGTH)),
    ("a header twice", "9110 5.3", post(b"X: y", b"X: z", LENGTH)),
    ("names with underscores", "5", post(b"Content_Length: 2", b"Transfer_Encoding: chunked", LENGTH)),
    ("offered upgrade", "9110 7.8", post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", LENGTH)),
    ("offered upgrade, chunked", "9110 7.8", chunked(CHUNKS, b"Connection: Upgrade", b"Upgrade: websocket")),
    ("unknown expectation", "9110 10.1.1", post(b"Expect: the-unexpected", LENGTH)),
    ("connection names the length", "9110 7.6.1", post(b"Connection: content-length, x", b"X: y", LENGTH)),
]


@pytest.mark.parametrize(("name", "section", "data"), SERVED, ids=lambda value: str(value)[:60])
async def test_what_is_legal_is_served_and_the_connection_stays(
    stage: Stage, name: str, section: str, data: bytes
) -> None:
    """The worker gets the request in the gateway's form: one length, nothing of the client's connection."""
    client = await stage.send(data + BEHIND)
    await client.read_until(lambda data: data.count(ANSWER) == 2)

    assert [(answer.status, answer.body) for answer in read_answers(client.data)] == [(200, ANSWER)] * 2
    (head, body), (head_behind, _) = stage.worker.seen
    assert body == BODY
    assert head.startswith(
        b"POST /v1/completions%b HTTP/1.1\r\nhost: 127.0.0.1:" % (b"?x=y" if b"s?x=y" in data else b"")
    )
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:-2]]
    assert sorted(names) == [b"content-length", b"host", b"x-cacheway-hops", b"x-request-id"]
    assert re.sub(rb"req-\S+", b"", head.replace(b"?x=y", b"")) == re.sub(
        rb"req-\S+", b"", head_behind.replace(b"content-length: 31", b"content-length: 26")
    )


@pytest.mark.parametrize(
    ("section", "data"),
    [
        ("9.6", post(b"Connection: close", LENGTH)),
        ("9.6", post(b"Connection: keep-alive, Close", LENGTH)),
        ("9.3", post(LENGTH, version=b"1.0")),
        ("9.3", post(LENGTH, version=b"1.0").replace(b"Host: g\r\n", b"")),
        ("9.3", post(b"Connection: keep-alive", LENGTH, version=b"1.0")),
        ("9110 10.1.1", post(b"Expect: 100-continue", LENGTH, version=b"1.0")),
        ("9.6", get(b"/v1/models", b"Connection: close")),
        ("9.3", get(b"/v1/models").replace(b"1.1", b"1.0")),
    ],
)
async def test_the_last_request_of_a_connection_is_served_and_no_other(
    stage: Stage, section: str, data: bytes
) -> None:
    client = await stage.send(data + BEHIND)
    (answer,) = await client.answers()

    assert answer.status == 200
    assert answer.headers[b"connection"] == b"close"
    assert [body for _, body in stage.worker.seen] == [BODY] * (data[:4] == b"POST")


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
async def test_a_client_that_waits_for_100_hears_it_before_it_sends_the_body(
    stage: Stage, value: bytes
) -> None:
    """RFC 9110 section 10.1.1."""
    client = await stage.send(post(b"Expect: " + value, LENGTH, body=b""))
    await client.read_until(lambda data: data.endswith(b"\r\n\r\n"))
    assert [answer.status for answer in read_answers(client.data)] == [100]
    assert stage.worker.seen == []
    client.writer.write(BODY + BEHIND)
    await client.read_until(lambda data: data.count(ANSWER) == 2)

    assert [answer.status for answer in read_answers(client.data)] == [100, 200, 200]
    assert b"expect" not in stage.worker.seen[0][0]


@pytest.mark.parametrize(
    ("section", "data", "status"),
    [
        ("3.2.1", get(b"/v1/models"), 200),
        ("3.2.1", get(b"/readiness"), 200),
        ("3.2.2", get(b"http://elsewhere/readiness?x"), 200),
        ("3.2.2", get(b"http://elsewhere"), 200),
        ("3.2.4", get(b"*").replace(b"GET", b"OPTIONS"), 404),
        ("6.3", get(b"/v1/models", b"Content-Length: 0"), 200),
        ("6.3", get(b"/v1/models", LENGTH) + BODY, 200),
        ("7.1", get(b"/v1/models", CHUNKED) + CHUNKS, 200),
        ("7.1", post(CHUNKED, target=b"/workers", body=CHUNKS), 400),
        ("9110 7.8", get(b"/readiness", b"Connection: Upgrade", b"Upgrade: websocket"), 200),
        ("9110 10.1.1", get(b"/readiness", b"Expect: 100-continue"), 200),
        ("9110 15.5.5", post(LENGTH, target=b"/nowhere"), 404),
        ("9110 15.5.6", get(b"/readiness").replace(b"GET", b"TRACE"), 405),
        ("9110 4.2.3", post(LENGTH, target=b"/v1/completion%73"), 404),
        ("3.2.1", post(LENGTH, target=b"//v1/completions"), 404),
    ],
)
async def test_the_application_answers_and_the_connection_stays(
    stage: Stage, section: str, data: bytes, status: int
) -> None:
    client = await stage.send(data + BEHIND)
    await client.read_until(lambda data: ANSWER in data)

    assert [answer.status for answer in read_answers(client.data)] == [status, 200]
    assert len(stage.worker.seen) == 1


async def test_the_answer_to_head_has_no_body(stage: Stage) -> None:
    """RFC 9110 section 9.3.2: the bytes after its head are the next answer."""
    client = await stage.send(get(b"/readiness").replace(b"GET", b"HEAD") + BEHIND)
    data = await client.read_until(lambda data: ANSWER in data)

    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"\r\ncontent-length: " in head
    assert [answer.body for answer in read_answers(rest)] == [ANSWER]


async def test_a_hundred_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    """RFC 9112 section 9.3.2. One in three is the application's; each waits only for its turn."""
    three = post(b"X-Request-Id: a", LENGTH) + get(b"/liveness") + chunked(CHUNKS, b"X-Request-Id: b")
    client = await stage.send(three * 33 + post(b"Connection: close", LENGTH))
    answers = await client.answers()

    ids = [answer.headers.get(b"x-request-id") for answer in answers]
    assert (ids[:-1:3], ids[2::3]) == ([b"a"] * 33, [b"b"] * 33)
    assert {answer.status for answer in answers} == {200}
    assert len(stage.worker.seen) == 67


# Answers of a worker.

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("section", "answer", "status", "body", "kept"),
    [
        ("6.3", HEAD + b"Content-Length: 5\r\n\r\nhello", 200, b"hello", True),
        ("6.3", HEAD + b"Content-Length: 0\r\n\r\n", 200, b"", True),
        ("7.1", STREAM + b"5\r\nhello\r\n0\r\n\r\n", 200, b"hello", True),
        ("7.1.1", STREAM + b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello", True),
        ("7.1.2", STREAM + b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", 200, b"hello", True),
        ("6.3", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        ("6.3", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, b"", True),
        ("6.3", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
        ("6.3", b"HTTP/1.1 204 No Content\r\n\r\nbody", 204, b"", False),
        ("6.3", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nbody", 304, b"", False),
        ("9110 15.2", b"HTTP/1.1 100 Continue\r\n\r\n" + framed(b"hello"), 200, b"hello", True),
        (
            "9110 15.2",
            b"HTTP/1.1 103 Hints\r\nContent-Length: 9\r\n\r\n" * 3 + framed(b"hello"),
            200,
            b"hello",
            True,
        ),
        ("9.6", HEAD + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", False),
        ("9.3", HEAD.replace(b"1.1", b"1.0") + b"Content-Length: 5\r\n\r\nhello", 200, b"hello", False),
        ("6.3", framed(b"hello") + b"more", 200, b"hello", False),
        ("9.2", framed(b"hello") * 2, 200, b"hello", False),
        ("9.2", framed(b"hello") + b"HTTP/1.1 103 Hints\r\n\r\n", 200, b"hello", False),
        ("7.1", STREAM + b"5\r\nhello\r\n0\r\n\r\n0\r\n\r\n", 200, b"hello", False),
        (
            "9110 7.6.1",
            HEAD + b"Connection: x\r\nX: y\r\nKeep-Alive: a\r\nContent-Length: 5\r\n\r\nhello",
            200,
            b"hello",
            True,
        ),
    ],
)
async def test_an_answer_goes_to_its_request_and_only_a_clean_connection_to_the_next(
    stage: Stage, section: str, answer: bytes, status: int, body: bytes, kept: bool
) -> None:
    stage.worker.answer = answer
    client = await stage.send(post(LENGTH) + BEHIND)
    await client.read_until(lambda data: ANSWER in data)

    first, second = read_answers(client.data)
    assert (first.status, first.body) == (status, body)
    assert not first.headers.keys() & {b"keep-alive", b"x", b"connection"}
    assert (second.status, second.body) == (200, ANSWER)
    first_connection, second_connection = stage.worker.connections
    assert (first_connection is second_connection) is kept


@pytest.mark.parametrize(
    ("section", "answer"),
    [
        ("6.3", HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        ("6.3", HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
        ("6.3", HEAD + b"Content-Length: 5, 5\r\n\r\nhello"),
        ("6.3", HEAD + b"Content-Length: -5\r\n\r\nhello"),
        ("6.3", HEAD + b"Content-Length: x\r\n\r\nhello"),
        ("6.3", HEAD + b"Content-Length:\r\n\r\nhello"),
        ("6.3", HEAD + b"Content-Length: 99999999999999999999\r\n\r\nhello"),
        ("6.1", HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        ("6.1", HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        ("6.1", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        (
            "6.1",
            HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        ("6.1", HEAD + b"Transfer-Encoding: identity\r\n\r\nhello"),
        ("5.2", HEAD + b"X: y\r\n z\r\nContent-Length: 5\r\n\r\nhello"),
        ("5.1", HEAD + b"Content-Length : 5\r\n\r\nhello"),
        ("5", HEAD + b"X\0: y\r\nContent-Length: 5\r\n\r\nhello"),
        ("9110 5.5", HEAD + b"X: y\0\r\nContent-Length: 5\r\n\r\nhello"),
        ("2.2", HEAD + b"X: y\nSet-Cookie: a=b\r\nContent-Length: 5\r\n\r\nhello"),
        ("2.2", HEAD + b"X: y\rSet-Cookie: a=b\r\nContent-Length: 5\r\n\r\nhello"),
        ("4", b"HTTP/1.1 099 None\r\nContent-Length: 5\r\n\r\nhello"),
        ("4", b"HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\nhello"),
        ("4", b"HTTP/3.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        ("4", b"hello\r\n\r\n"),
        ("4", b"\0" * 16),
        ("9110 15.2.2", b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"),
        ("9110 15.2", b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * 5000),
        ("9110 5.4", HEAD + b"X: " + b"y" * 100_000 + b"\r\nContent-Length: 5\r\n\r\nhello"),
        ("8", b""),
        ("8", b"HTTP/1.1 200 OK\r\nContent-Le"),
        ("8", HEAD + b"Content-Length: 5\r\n\r\n"),
        ("8", STREAM),
        ("7.1", STREAM + b"zz\r\n"),
        ("7.1", STREAM + b"-5\r\nhello\r\n0\r\n\r\n"),
        ("7.1", STREAM + b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    ],
)
async def test_an_answer_that_is_none_becomes_our_error(stage: Stage, section: str, answer: bytes) -> None:
    stage.worker.answer, stage.worker.closes = answer, True
    client = await stage.send(post(LENGTH) + BEHIND)
    await client.read_until(lambda data: ANSWER in data)

    first, second = read_answers(client.data)
    assert first.status == 502
    assert b"upstream_" in first.body
    assert (second.status, second.body) == (200, ANSWER)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"5\r\nda",
        b"5\r\ndata:",
        b"6\r\ndata: X",
        b"zz\r\n",
        b"-1\r\n",
        b"\r\n",
        b"0\r\n",
        b"0\r\nX : y\r\n\r\n",
        b"0\n\n",
    ],
)
async def test_a_stream_that_breaks_never_looks_complete(stage: Stage, rest: bytes) -> None:
    """RFC 9112 section 8: an event stream ends with its error, which it sends before its last chunk."""
    stage.worker.answer, stage.worker.closes = STREAM + b"d\r\ndata: hello\n\n\r\n" + rest, True
    client = await stage.send(post(LENGTH) + BEHIND)
    await client.read_until(lambda data: ANSWER in data)

    first, second = read_answers(client.data)
    assert first.body.startswith(b'data: hello\n\ndata: {"error":')
    assert b"upstream_stream_broken" in first.body
    assert (second.status, second.body) == (200, ANSWER)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 9\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n", b"\r\n"]
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_body_that_breaks_never_looks_complete(stage: Stage, framing: bytes, version: bytes) -> None:
    """RFC 9112 section 8. If the end of the connection is the end of the body, it is reset instead."""
    stage.worker.answer = HEAD + framing + b"hello"
    client = await stage.send(post(LENGTH, version=version))
    await client.read_until(lambda data: b"hello" in data)
    worker = stage.worker.connections[0]
    set_reset(worker.get_extra_info("socket"))
    worker.transport.abort()

    if version == b"1.0" and b"Length" not in framing:
        with pytest.raises(ConnectionResetError):
            await client.answers()
    else:
        with pytest.raises(AssertionError, match=r"too short|no chunk"):
            await client.answers()


async def test_bytes_that_follow_an_answer_later_do_not_reach_the_next_request(stage: Stage) -> None:
    """RFC 9112 section 9.2: the worker sends bytes without a request."""
    stage.worker.answer = framed(b"hello")
    client = await stage.send(post(LENGTH))
    await client.read_until(lambda data: b"hello" in data)
    connection = stage.worker.connections[0]
    connection.write(framed(b"stale"))
    async with asyncio.timeout(60):
        await connection.wait_closed()
    client.writer.write(BEHIND)
    await client.read_until(lambda data: ANSWER in data)

    assert [answer.body for answer in read_answers(client.data)] == [b"hello", ANSWER]
    assert stage.worker.connections[1] is not connection
