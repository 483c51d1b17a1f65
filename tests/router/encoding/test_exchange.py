"""Encoders behind two gateways, on real sockets, from the view of SGLang's language workers."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from loadtest.engine.encoder import EmulatedEncoder
from tests.fakes.running import Fleet, RunningGateway, until

PNG = "data:image/png;base64,{}"


@dataclass
class Encoders:
    """Two gateways and three encoders."""

    gateways: list[RunningGateway]
    encoders: list[EmulatedEncoder]

    async def encode(self, part: str, *media: str, gateway: int = 0, port: int | None = 1) -> httpx.Response:
        body = {"req_id": part, "mm_items": media, "modality": "IMAGE", "embedding_port": port}
        return await self.gateways[gateway].client.post("/encode", json=body)

    async def ask(self, path: str, part: str, gateway: int = 0, **more: Any) -> httpx.Response:
        return await self.gateways[gateway].client.post(path, json={"req_id": part, **more})

    def of(self, answer: httpx.Response) -> EmulatedEncoder:
        """Return the encoder of an answer."""
        return next(each for each in self.encoders if each.url.endswith(answer.headers["x-cacheway-worker"]))

    @property
    def counts(self) -> list[int]:
        return [sum(path == "/encode" for path, _ in encoder.calls) for encoder in self.encoders]


@contextlib.asynccontextmanager
async def running(redis_url: str, namespace: str, **settings: Any) -> AsyncIterator[Encoders]:
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(redis_url, namespace, stack)
        encoders = [await stack.enter_async_context(EmulatedEncoder(**settings)) for _ in range(3)]
        for _ in range(2):
            await fleet.gateway()
        for encoder in encoders:
            fleet.gateways[0].process.registry.add(encoder.url, role="encode")
        registries = [gateway.process.registry for gateway in fleet.gateways]
        await until(lambda: all(len(registry.encoders(registry.now_us())) == 3 for registry in registries))
        yield Encoders(fleet.gateways, encoders)
        for gateway in fleet.gateways:
            await until(gateway.idle)


@pytest.fixture
async def world(redis_url: str, namespace: str) -> AsyncIterator[Encoders]:
    async with running(redis_url, namespace) as encoders:
        yield encoders


async def test_a_medium_keeps_to_its_encoder_whichever_gateway_is_asked(world: Encoders) -> None:
    for turn in range(3):
        for medium in range(8):
            conversation = [PNG.format(f"{medium}-{number}") for number in range(turn + 1)]
            answer = await world.encode(f"{turn}-{medium}", *conversation, gateway=(turn + medium) % 2)
            assert answer.status_code == 200
            assert answer.json()["embedding_len"] == 256 * (turn + 1)
            assert "x-cacheway-worker" in answer.headers

    assert sum(encoder.encoded for encoder in world.encoders) == 8 * 3
    assert sum(encoder.hits for encoder in world.encoders) == 8 * (1 + 2)
    assert sum(count > 0 for count in world.counts) > 1


async def test_a_medium_that_everybody_wants_is_encoded_by_several(redis_url: str, namespace: str) -> None:
    async with running(redis_url, namespace, encode_s=0.2, cached_max=0) as world:
        await asyncio.gather(*(world.encode(f"p-{number}", "hot") for number in range(30)))
        assert max(world.counts) <= 20
        assert min(world.counts) >= 1
        metrics = (await world.gateways[0].client.get("/metrics")).text
        assert 'cacheway_encoder_parts_total{outcome="completed"} 30.0' in metrics
        assert "cacheway_encoder_moves_total 0.0" not in metrics


async def test_what_follows_a_part_finds_it_through_the_other_gateway(world: Encoders) -> None:
    """A rank may register before its part comes, and the part waits until it has."""
    registered = asyncio.create_task(world.ask("/scheduler_receive_url", "p", 1, receive_url="h:1"))
    await asyncio.sleep(0)
    sizes = asyncio.create_task(world.ask("/scheduler_receive_meta_data", "p", 1))
    encoded = await world.encode("p", "medium", port=None)

    assert encoded.status_code == (await registered).status_code == (await sizes).status_code == 200
    assert (await world.ask("/send", "p", 1)).status_code == 200
    places = Counter(path for encoder in world.encoders for path, _ in encoder.calls)
    assert max(places.values()) == 1
    assert sum(bool(encoder.calls) for encoder in world.encoders) == 1


async def test_a_dead_encoder_costs_nothing_but_the_work(world: Encoders) -> None:
    """Its part goes to another encoder, with its registrations."""
    first = await world.encode("p", "medium")
    dead = world.of(first)
    under_way = asyncio.create_task(world.encode("q", "medium", port=None))
    await until(lambda: ("/encode", "q") in dead.calls)
    dead.close()
    await asyncio.sleep(0.05)
    registered = await world.ask("/scheduler_receive_url", "q", receive_url="h:1")
    answer = await under_way

    assert answer.status_code == registered.status_code == 200
    assert answer.headers["x-cacheway-worker"] != first.headers["x-cacheway-worker"]
    assert (await world.encode("r", "medium")).status_code == 200


async def test_registrations_of_a_part_move_with_it(world: Encoders) -> None:
    """An encoder dies at work, after it learned the target of the embeddings: the next one learns it, too."""
    first = await world.encode("p", "medium")
    dead = world.of(first)
    dead.encode_s = 60
    under_way = asyncio.create_task(world.encode("q", "medium", "another", port=None))
    await until(lambda: ("/encode", "q") in dead.calls)
    assert (await world.ask("/scheduler_receive_url", "q", receive_url="h:1")).status_code == 200
    dead.close()
    answer = await under_way

    assert answer.status_code == 200
    assert ("/scheduler_receive_url", "q") in world.of(answer).calls


async def test_a_part_of_which_nobody_knows_is_not_found(
    world: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.encoding.exchange.WAIT_S", 0.1)
    answer = await world.ask("/send", "never")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_part")


async def test_bad_calls_get_an_answer_that_says_why(world: Encoders) -> None:
    invalid = await world.gateways[0].client.post("/encode", content=b"{")
    assert (invalid.status_code, invalid.json()["error"]["code"]) == (400, "invalid_encoder_call")


async def test_without_encoders_media_are_rejected(redis_url: str, namespace: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        gateway = await Fleet(redis_url, namespace, stack).gateway()
        answer = await gateway.client.post("/encode", json={"req_id": "p", "mm_items": ["m"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
        assert "role encode" in answer.json()["error"]["message"]


async def test_a_language_worker_that_leaves_frees_its_encoder(redis_url: str, namespace: str) -> None:
    async with running(redis_url, namespace, encode_s=60) as world:
        under_way = asyncio.create_task(world.encode("p", "medium"))
        loads = world.gateways[1].process.fleet.loads
        await until(lambda: loads.inflight_requests.sum() == 1)
        under_way.cancel()
        await until(lambda: loads.inflight_requests.sum() == 0)


async def test_a_mistake_of_ours_is_an_answer_and_leaves_nothing_behind(
    world: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unanswered call would hold its language worker until that gives up."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("router.encoding.encoding.Encoding.choose", broken)
    answer = await world.gateways[0].client.post("/encode", json={"req_id": "p", "mm_items": ["m"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert world.gateways[0].process.gateway.sending.inflight == 0
