"""The client that asks workers, against hostile workers."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fakes.running import until

from router.destinations import Destinations
from router.fleet import asking as asking_module
from router.fleet.asking import (
    ANSWER_BYTES_MAX,
    PAGE_BYTES_MAX,
    Asker,
    BadAnswer,
    TooLate,
    TooLong,
    asking_client,
    page,
)


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A worker that gives all requests the same answer, and its received requests."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def client(destinations: Destinations | None = None, key: str | None = None) -> httpx.AsyncClient:
    asker = Asker(
        destinations or Destinations(),
        ssl.create_default_context(),
        key_at=lambda url: None if "unknown" in url else key,
    )
    return asking_client(asker, timeout_s=5)


def answer(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join(
        [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), b"connection: close", *lines, b"", body]
    )


async def test_a_worker_is_asked_with_the_fleets_key_and_for_plain_answers() -> None:
    async with answering(answer(b"fine")) as (url, asked), client(key="secret") as asking:
        assert (await asking.get(url)).text == "fine"
        assert (await asking.get(f"{url}/unknown")).text == "fine"
    assert b"authorization: bearer secret\r\n" in asked[0].lower()
    assert b"authorization" not in asked[1].lower()
    assert b"accept-encoding: identity\r\n" in asked[0].lower()


async def test_a_redirect_is_an_answer_and_leads_nowhere() -> None:
    async with answering(answer(b"stolen")) as (other, asked):
        moved = answer(b"", b"location: " + other.encode(), status=b"307 Temporary Redirect")
        async with answering(moved) as (url, _), client(key="secret") as asking:
            for method in ("GET", "POST"):
                assert (await asking.request(method, url)).status_code == 307
    assert asked == []


async def test_a_compressed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(100_000_000))
    async with answering(answer(packed, b"content-encoding: gzip")) as (url, _), client() as asking:
        with pytest.raises(httpx.DecodingError, match="compressed"):
            await asking.get(url)


async def test_an_endless_answer_ends() -> None:
    async with answering(answer(bytes(ANSWER_BYTES_MAX + 1))) as (url, _), client() as asking:
        with pytest.raises(httpx.ReadError, match="longer than"):
            await asking.get(url)


async def test_no_connection_is_made_where_none_is_allowed() -> None:
    async with answering(answer(b"")) as (url, asked), client(Destinations(loopback=False)) as asking:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(httpx.ConnectError, match="where no workers may be"):
                await asking.get(url.replace("127.0.0.1", host))
    assert asked == []


async def test_nobody_listening_is_a_failed_connection() -> None:
    async with answering(answer(b"")) as (url, _):
        pass
    async with client() as asking:
        with pytest.raises(httpx.ConnectError):
            await asking.get(url)


# The asker itself.


def asker() -> Asker:
    return Asker(Destinations(), ssl.create_default_context())


React = Callable[[asyncio.Transport, bytes], None]


class Reacting(asyncio.Protocol):
    """Does something with a request once its head is there. Unlike streams it leaves no task behind."""

    def __init__(self, react: React) -> None:
        self._react = react
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        if b"\r\n\r\n" in self._got:
            self._react(self._transport, self._got)


@contextlib.asynccontextmanager
async def serving(react: React) -> AsyncIterator[str]:
    """A worker that handles each request with a function of the test."""
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Reacting(react), "127.0.0.1", 0, backlog=1000) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def fine(transport: asyncio.Transport, _: bytes) -> None:
    transport.write(answer(b"fine"))
    transport.close()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nx-early: 1\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        answer(b"fine"),
        CHUNKED + b"2\r\nfi\r\n2;x=1\r\nne\r\n0\r\nx-trailer: 1\r\n\r\n",
        UNTIL_CLOSED + b"fine",
        INTERIM + answer(b"fine"),
        answer(b"fine") + b"HTTP/1.1 500 Not Asked For\r\n\r\n",
    ],
    ids=["length", "chunked", "until closed", "interim", "more than asked for"],
)
async def test_answers_of_all_framings_are_read(sent: bytes) -> None:
    async with answering(sent) as (url, asked):
        answered = await asker().ask("GET", f"{url}/base/models?a=b", timeout_s=20)
    assert (answered.status, answered.body, answered.is_success) == (200, b"fine", True)
    assert answered.header(b"x-early") is None
    head = asked[0].lower()
    assert head.startswith(b"get /base/models?a=b http/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nconnection: close\r\n" in head
    assert b"authorization" not in head
    assert b"content-length" not in head


async def test_a_body_is_sent_whole() -> None:
    """Also one of megabytes, more than a socket takes at once."""
    body = bytes(range(256)) * 20_000
    heads: list[bytes] = []

    def react(transport: asyncio.Transport, got: bytes) -> None:
        head, _, received = got.partition(b"\r\n\r\n")
        if received == body:
            heads.append(head.lower() + b"\r\n")
            fine(transport, b"")

    async with serving(react) as url, asking_client(asker(), timeout_s=60) as asking:
        await asking.post(f"{url}/x", content=body, headers={"content-type": "a/b"})
    assert heads[0].count(b"\r\ncontent-length: %d\r\n" % len(body)) == 1
    assert heads[0].count(b"\r\nconnection: ") == heads[0].count(b"\r\nhost: ") == 1
    assert b"\r\ncontent-type: a/b\r\n" in heads[0]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "ended before"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfour", "ended before"),
        (CHUNKED + b"4\r\nfo", "ended before"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "malformed"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "upgrade|before"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "more head"),
        (INTERIM * 3000, "more head"),
    ],
    ids=["nothing", "short", "chunk", "ssh", "upgrade", "two lengths", "long head", "interim"],
)
async def test_what_is_no_answer_is_none(sent: bytes, reason: str) -> None:
    async with answering(sent) as (url, _):
        with pytest.raises(BadAnswer, match=reason):
            await asker().ask("GET", url, timeout_s=20)


@pytest.mark.parametrize("piece", [b"", b"a"], ids=["silent", "a byte now and then"])
@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nx: ", UNTIL_CLOSED])
async def test_one_deadline_holds_for_the_whole(begin: bytes, piece: bytes) -> None:
    loop = asyncio.get_running_loop()

    def react(transport: asyncio.Transport, _: bytes) -> None:
        transport.write(begin)
        trickle(transport)

    def trickle(transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write(piece)
            loop.call_later(0.01, trickle, transport)

    asking = asker()
    async with serving(react) as url:
        with pytest.raises(TooLate) as late:
            await asking.ask("GET", url, timeout_s=0.2)
    assert late.value.connected
    assert len(asking._open) == 0


async def test_only_the_head_is_read_if_only_the_head_is_asked_for() -> None:
    """The body may have any length: this one never ends."""

    def react(transport: asyncio.Transport, _: bytes) -> None:
        transport.write(CHUNKED + b"10000\r\n" + bytes(65536))

    async with serving(react) as url:
        answered = await asker().ask("GET", url, timeout_s=20, head_only=True)
    assert (answered.status, answered.body) == (200, b"")


async def test_long_answers_at_once_hold_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 4 MB where 2 MB may be held; a short one; and a long one where there is room."""

    def react(transport: asyncio.Transport, head: bytes) -> None:
        transport.write(answer(b"short" if head.startswith(b"GET /short") else bytes(4_000_000)))
        transport.close()

    asking = asker()
    async with serving(react) as url:
        monkeypatch.setattr(asking_module, "HELD_BYTES_MAX", 2_000_000)
        with pytest.raises(TooLong):
            await asking.ask("GET", f"{url}/long", timeout_s=60)
        assert (await asking.ask("GET", f"{url}/short", timeout_s=20)).body == b"short"
        assert asking.held_bytes == 0
        monkeypatch.setattr(asking_module, "HELD_BYTES_MAX", 8_000_000)
        assert len((await asking.ask("GET", f"{url}/long", timeout_s=60)).body) == 4_000_000
        assert asking.held_bytes == 0


async def test_questions_that_are_cancelled_at_any_moment_leave_nothing_behind() -> None:
    """After 0 to 40 turns of the event loop; then as many are answered as if nothing had been."""
    asking = asker()
    async with serving(fine) as url:
        for turns in range(40):
            tasks = [asyncio.create_task(asking.ask("GET", url, timeout_s=20)) for _ in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert len(asking._open) == 0
        answers = await asyncio.gather(*(asking.ask("GET", url, timeout_s=60) for _ in range(200)))
    assert {each.body for each in answers} == {b"fine"}


async def test_hundreds_of_silent_workers_hold_up_no_question() -> None:
    asking = asker()
    async with serving(lambda *_: None) as silent, serving(fine) as url:
        tasks = [asyncio.create_task(asking.ask("GET", silent, timeout_s=60)) for _ in range(300)]
        for _ in range(20):
            assert (await asking.ask("GET", url, timeout_s=60)).body == b"fine"
        assert len(asking._open) == 300
        asking.rebuild()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BadAnswer}
    assert len(asking._open) == 0


async def test_a_target_that_no_request_line_can_hold_is_quoted() -> None:
    async with answering(answer(b"fine")) as (url, asked):
        await asker().ask("GET", f"{url}/ä b", timeout_s=20)
    assert asked[0].startswith(b"GET /%C3%A4%20b HTTP/1.1\r\n")


async def test_what_goes_through_httpx_is_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_module, "AT_ONCE", 2)
    asked: list[asyncio.Transport] = []
    react = asked.append

    async with (
        serving(lambda transport, _: react(transport)) as url,
        asking_client(asker(), timeout_s=60) as client,
    ):
        tasks = [asyncio.create_task(client.get(url)) for _ in range(2)]
        await until(lambda: len(asked) == 2)
        with pytest.raises(httpx.PoolTimeout):
            await client.get(url, timeout=0.05)
        for transport in asked:
            fine(transport, b"")
        assert [each.status_code for each in await asyncio.gather(*tasks)] == [200, 200]
        third = asyncio.create_task(client.get(url))
        await until(lambda: len(asked) == 3)
        fine(asked[2], b"")
        assert (await third).status_code == 200


class Pieces(httpx.AsyncByteStream):
    """A body of so many pieces of 64 KiB, the last of which may never come."""

    def __init__(self, pieces: int, *, ends: bool = True) -> None:
        self._pieces = pieces
        self._ends = ends
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            self.taken += 1
            yield b"x" * 65536
        if not self._ends:
            await asyncio.Event().wait()


def client_of(answer: httpx.Response | Exception) -> httpx.AsyncClient:
    def handle(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


async def test_a_page_comes_whole() -> None:
    async with client_of(httpx.Response(200, stream=Pieces(3))) as client:
        assert await page(client, "http://w/metrics", 5.0) == b"x" * 3 * 65536


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, content=b"no"),
        httpx.Response(500, content=b"no"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.InvalidURL("what"),
    ],
)
async def test_what_is_no_success_is_no_page(answer: httpx.Response | Exception) -> None:
    async with client_of(answer) as client:
        assert await page(client, "http://w/metrics", 5.0) is None


async def test_a_page_that_never_ends_is_not_waited_for() -> None:
    async with client_of(httpx.Response(200, stream=Pieces(1, ends=False))) as client:
        assert await page(client, "http://w/metrics", 0.02) is None


async def test_a_page_without_bound_is_not_read_to_its_end() -> None:
    stream = Pieces(10_000)
    async with client_of(httpx.Response(200, stream=stream)) as client:
        assert await page(client, "http://w/metrics", 60.0) is None
    assert stream.taken == PAGE_BYTES_MAX // 65536 + 1
