"""The HTTP client for what the gateway itself asks workers: health, models, metrics, flushes, new roles.

It trusts a worker no further than it must. It connects only where `router.destinations` allows, follows no
redirect, obeys no proxy of the environment, and reads neither compressed nor endless answers: a few
kilobytes could otherwise be unpacked to gigabytes here.
"""

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable

import httpcore
import httpx

from router.destinations import DestinationRefused, Destinations

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Longest answer, in bytes; metrics of an engine with many ranks are a few megabytes."""

CONNECTIONS_MAX = 128
KEPT_MAX = 64
KEPT_S = 3.0


class _Network(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were judged, and to no others."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        problem: Exception | None = None
        try:
            addresses = await self._destinations.resolve(host, port)
        except (DestinationRefused, OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        for address in addresses:
            try:
                return await self._sockets.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                problem = error
        assert problem is not None
        raise problem

    async def sleep(self, seconds: float) -> None:
        await self._sockets.sleep(seconds)


class _Bounded(httpx.AsyncByteStream):
    """A body that fails when it is too long."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = ANSWER_BYTES_MAX
        async for data in self._stream:
            left -= len(data)
            if left < 0:
                raise httpx.ReadError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
            yield data

    async def aclose(self) -> None:
        if isinstance(self._stream, httpx.AsyncByteStream):
            await self._stream.aclose()


class _Transport(httpx.AsyncHTTPTransport):
    def __init__(
        self, destinations: Destinations, tls: ssl.SSLContext, key_at: Callable[[str], str | None]
    ) -> None:
        super().__init__(verify=tls, trust_env=False)
        self._key_at = key_at
        # httpx has no other way to say how to connect.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=KEPT_MAX,
            keepalive_expiry=KEPT_S,
            network_backend=_Network(destinations),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = self._key_at(str(request.url))
        if key is not None:
            request.headers["authorization"] = f"Bearer {key}"
        answer = await super().handle_async_request(request)
        coding = answer.headers.get("content-encoding", "identity")
        if coding.strip().lower() not in ("", "identity"):
            await answer.aclose()
            raise httpx.DecodingError("the answer is compressed although that was not asked for")
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = _Bounded(answer.stream)
        return answer


def asking_client(
    destinations: Destinations,
    tls: ssl.SSLContext,
    *,
    key_at: Callable[[str], str | None] = lambda _: None,
    timeout_s: float,
) -> httpx.AsyncClient:
    """Make the client; close it in the end.

    Args:
        destinations: Where it may connect to.
        tls: How https workers are talked to.
        key_at: Returns the bearer token that may be shown at a URL (`router.fleet.worker_key`).
        timeout_s: Of each step, where the caller does not say otherwise.
    """
    return httpx.AsyncClient(
        transport=_Transport(destinations, tls, key_at),
        timeout=timeout_s,
        trust_env=False,
        follow_redirects=False,
        headers={"accept-encoding": "identity"},
    )
