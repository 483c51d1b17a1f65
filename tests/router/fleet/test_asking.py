"""The client that asks workers, against workers that mean it no good."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest

from router.destinations import Destinations
from router.fleet.asking import ANSWER_BYTES_MAX, Asker, asking_client


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A worker that answers everything alike, and what it was asked."""
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
    asker = Asker(destinations or Destinations(), ssl.create_default_context(), key=key)
    return asking_client(asker, timeout_s=5)


def answer(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join(
        [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), b"connection: close", *lines, b"", body]
    )


async def test_a_worker_is_asked_with_the_fleets_key_and_for_plain_answers() -> None:
    async with answering(answer(b"fine")) as (url, asked), client(key="secret") as asking:
        assert (await asking.get(url)).text == "fine"
    assert b"authorization: bearer secret\r\n" in asked[0].lower()
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
