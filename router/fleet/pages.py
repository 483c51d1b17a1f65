"""One page of a worker, read whole, in time and within bounds."""

import asyncio

import httpx

from router.fleet.asking import BYTES_MAX

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""A longer page is no page of an engine."""


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
