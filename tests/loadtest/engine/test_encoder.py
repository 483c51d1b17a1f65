"""The emulated encoder behaves as SGLang's, as far as a gateway sees it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from loadtest.engine.encoder import EmulatedEncoder


@pytest.fixture
async def encoder() -> AsyncIterator[EmulatedEncoder]:
    async with EmulatedEncoder(wait_s=0.1, cached_max=2) as encoder:
        yield encoder


@pytest.fixture
async def client(encoder: EmulatedEncoder) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=encoder.url, trust_env=False) as client:
        yield client


async def test_media_are_encoded_once_as_long_as_they_are_kept(
    encoder: EmulatedEncoder, client: httpx.AsyncClient
) -> None:
    for media in (["a"], ["a", {"url": "b"}], ["b", "c"], ["a"]):
        answer = await client.post("/encode", json={"req_id": "p", "mm_items": media, "embedding_port": 1})
        assert answer.json()["embedding_len"] == 256 * len(media)
    assert (encoder.encoded, encoder.hits) == (4, 2)


async def test_a_part_must_be_told_where_it_goes(client: httpx.AsyncClient) -> None:
    lost = await client.post("/encode", json={"req_id": "p", "mm_items": ["a"]})
    registered = await client.post("/scheduler_receive_url", json={"req_id": "q", "receive_url": "h:1"})
    told = await client.post("/encode", json={"req_id": "q", "mm_items": ["a"]})
    assert [answer.status_code for answer in (lost, registered, told)] == [504, 200, 200]


async def test_only_what_was_encoded_can_be_sent(client: httpx.AsyncClient) -> None:
    assert (await client.post("/send", json={"req_id": "p"})).status_code == 500
    await client.post("/encode", json={"req_id": "p", "mm_items": ["a"], "embedding_port": 1})
    assert (await client.post("/send", json={"req_id": "p"})).status_code == 200
    sizes = await client.post("/scheduler_receive_meta_data", json={"req_id": "p", "part_idx": 0})
    assert sizes.json()["req_id"] == "p"


async def test_it_serves_nothing_else(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/v1/models")).status_code == 404
    assert (await client.post("/v1/chat/completions", json={})).status_code == 404
