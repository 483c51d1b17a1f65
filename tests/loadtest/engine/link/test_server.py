import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from loadtest.engine.link.server import LinkServer

WHOLE = {"name": "a", "bytes": 1e6, "ready_bytes": 1e6, "held_bytes": 0, "over_s": 0}


@pytest.fixture
async def served() -> AsyncIterator[tuple[LinkServer, httpx.AsyncClient]]:
    """A link of 1 GB/s."""
    server = LinkServer(8.0, rtt_ms=1.0)
    await server.open()
    async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
        yield server, client
    server.close()
    await asyncio.sleep(0)


async def under_way(server: LinkServer, transfers: int) -> None:
    async with asyncio.timeout(60):
        while server.link.under_way != transfers:  # noqa: ASYNC110 - the link has no event for it
            await asyncio.sleep(0.002)


async def test_a_transfer_is_answered_when_it_arrived(served: Any) -> None:
    server, client = served
    answer = await client.post("/transfers", json=WHOLE)
    stats = (await client.get("/_stats")).json()

    assert answer.status_code == 200
    assert (stats["arrived"], stats["under_way"], stats["sent_bytes"]) == (1, 0, pytest.approx(1e6))
    assert sum(n_bytes for _, n_bytes in stats["egress"]["buckets"]) == pytest.approx(1e6)
    assert server.link.rtt_s == pytest.approx(0.001)


async def test_layers_wait_for_their_prefill(served: Any) -> None:
    server, client = served
    assert (await client.post("/computed", json={"name": "a"})).status_code == 404
    body = WHOLE | {"ready_bytes": 0, "held_bytes": 1e5, "over_s": 0.01}
    transfer = asyncio.create_task(client.post("/transfers", json=body))
    await under_way(server, 1)
    await asyncio.sleep(0.05)
    assert not transfer.done()

    assert (await client.post("/computed", json={"name": "a"})).status_code == 200
    assert (await transfer).status_code == 200


async def test_a_caller_that_leaves_gives_up(served: Any) -> None:
    server, client = served
    transfer = asyncio.create_task(
        client.post("/transfers", json=WHOLE | {"bytes": 1e12, "ready_bytes": 1e12})
    )
    await under_way(server, 1)
    transfer.cancel()

    await under_way(server, 0)


async def test_a_dead_link_answers_503_until_it_is_mended(served: Any) -> None:
    server, client = served
    transfer = asyncio.create_task(
        client.post("/transfers", json=WHOLE | {"bytes": 1e12, "ready_bytes": 1e12})
    )
    await under_way(server, 1)
    await client.post("/_fault", json={"kind": "dead"})
    assert (await transfer).status_code == 503
    assert (await client.post("/transfers", json=WHOLE)).status_code == 503

    await client.delete("/_fault")
    assert (await client.post("/transfers", json=WHOLE)).status_code == 200


async def test_a_fault_ends_by_itself(served: Any) -> None:
    server, client = served
    await client.post("/_fault", json={"kind": "slow", "ratio": 0.0, "seconds": 0.05})
    assert server.link.bytes_per_s == 0
    assert (await client.post("/transfers", json=WHOLE)).status_code == 200
    assert server.link.bytes_per_s == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/_fault", {"kind": "odd"}),
        ("/_fault", {"kind": "slow"}),
        ("/_fault", {"kind": "slow", "ratio": 2}),
        ("/_fault", {"kind": "dead", "seconds": -1}),
        ("/transfers", {"name": "a"}),
        ("/transfers", [1]),
    ],
)
async def test_what_makes_no_sense_is_refused(served: Any, path: str, body: Any) -> None:
    _, client = served
    assert (await client.post(path, json=body)).status_code == 400
    assert (await client.get("/nowhere")).status_code == 404
