"""A page comes whole, in time and within bounds, or not at all."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from router.fleet.pages import PAGE_BYTES_MAX, page


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
