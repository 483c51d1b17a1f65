"""KV events of whole engines on real sockets, as a router would learn them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from loadtest.engine import Fault
from loadtest.engine.kv_settings import KvEventsSettings

ANYWHERE = KvEventsSettings("tcp://*:0", "tcp://127.0.0.1:0")
BODY = {"max_tokens": 8, "ignore_eos": True}


@pytest.fixture
async def context() -> AsyncIterator[Any]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def batches(context: Any, engine: Any, start: int = 0, rank: int = 0) -> Any:
    """All batches from a number on, through the replay socket, which knows them as soon as they are sent."""
    await asyncio.sleep(0)
    socket = context.socket(zmq.DEALER)
    socket.connect(engine.feed.settings[rank].replay_endpoint)
    await socket.send_multipart((b"", start.to_bytes(8, "big")))
    found = []
    async with asyncio.timeout(60):
        while True:
            message = await socket.recv_multipart()
            if message[-2] == b"\xff" * 8:
                socket.close()
                return found
            found.append(msgspec.msgpack.decode(message[-1]))


async def complete(client: Any, prompt: Any, **more: Any) -> Any:
    answer = await client.post("/v1/completions", json=BODY | {"prompt": prompt} | more)
    return answer.json()


async def test_a_subscriber_hears_what_a_request_stored(start: Any, context: Any) -> None:
    _, client = await start(kv_events=KvEventsSettings("tcp://*:0", topic="kv"), block_tokens=16)
    info = (await client.get("/server_info")).json()["kv_events"]
    assert info["block_size"] == 16
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"kv")
    socket.connect(f"tcp://127.0.0.1:{info['endpoint_port_base']}")
    number = 0
    async with asyncio.timeout(60):
        while not await socket.poll(20):
            number += 1
            await complete(client, [number] * 40)
    topic, _, batch = await socket.recv_multipart()

    at_s, events, rank = msgspec.msgpack.decode(batch)
    assert (topic, rank) == (b"kv", 0)
    assert at_s > 1e9
    assert {event[0] for event in events} == {"BlockStored"}


async def test_sglang_tells_prompt_and_answer_block_by_block(start: Any, context: Any) -> None:
    """40 prompt tokens are two blocks of 16, 7 of the 8 answered ones have KV: still two."""
    engine, client = await start(kv_events=ANYWHERE, block_tokens=16)
    prompt = list(range(1, 41))
    await complete(client, prompt)
    await complete(client, [*prompt[:32], 99, *range(40)], max_tokens=30)
    events = [event for batch in await batches(context, engine) for event in batch[1]]

    assert [event[3] for event in events[:2]] == [prompt[:16], prompt[16:32]]
    assert [event[2] for event in events] == [None, *(event[1][0] for event in events[:-1])]
    assert {(*event[4:], event[0]) for event in events} == {(16, None, "GPU", "BlockStored")}
    # The second prompt adds two blocks; 29 tokens of its answer another two.
    assert len(events) == 2 + 4


async def test_vllm_tells_spans_and_what_else_is_in_a_hash(start: Any, context: Any) -> None:
    engine, client = await start(
        dialect="vllm", kv_events=ANYWHERE, block_tokens=16, loras=("adapter",), chunk_tokens=64
    )
    sources = (await client.get("/kv_event_sources")).json()
    assert sources["0"]["replay_endpoint"] == engine.feed.settings[0].replay_endpoint
    await complete(client, list(range(1, 41)), model="adapter", cache_salt="tenant")
    (_, (event,), rank), *_ = await batches(context, engine)

    assert rank == 0
    assert event["type"] == "BlockStored"
    assert event["token_ids"] == list(range(1, 33))
    assert len(event["block_hashes"]) == 2
    assert event["extra_keys"] == [["adapter", "tenant"], ["adapter"]]
    assert (event["lora_name"], event["lora_id"], event["group_idx"]) == ("adapter", 1, 0)


async def test_a_hybrid_model_tells_its_groups(start: Any, context: Any) -> None:
    """MiMo-V2-Flash is one full group and five with a window of 128 tokens."""
    engine, client = await start(dialect="vllm", profile="mimo-v2-flash", kv_events=ANYWHERE)
    await complete(client, [7] * 1000)
    events = [event for batch in await batches(context, engine) for event in batch[1]]
    stored = {event["group_idx"]: event for event in events if len(event.get("token_ids", ())) == 960}

    assert sorted(stored) == [0, 1, 2, 3, 4, 5]
    assert len(stored[0]["block_hashes"]) == 15
    for number in range(1, 6):
        assert stored[number]["kv_cache_spec_sliding_window"] == 128
        assert set(stored[number]["block_hashes"]) < set(stored[0]["block_hashes"])


async def test_each_rank_has_a_publisher_of_its_own(start: Any, context: Any) -> None:
    engine, client = await start(dialect="vllm", dp_ranks=2, kv_events=ANYWHERE, block_tokens=16)
    assert sorted((await client.get("/kv_event_sources")).json()) == ["0", "1"]
    await asyncio.gather(*(complete(client, [number] * 100) for number in range(4)))
    ranks = [await batches(context, engine, rank=rank) for rank in range(2)]

    assert [{batch[2] for batch in told} for told in ranks] == [{0}, {1}]


async def test_a_flush_is_told_with_the_next_request(start: Any, context: Any) -> None:
    engine, client = await start(dialect="vllm", kv_events=ANYWHERE, block_tokens=16)
    await complete(client, [1] * 40)
    told = len(await batches(context, engine))
    await client.post("/reset_prefix_cache")
    assert await batches(context, engine, told) == []
    await complete(client, [1] * 40)

    assert (await batches(context, engine, told))[0][1][0] == {"type": "AllBlocksCleared"}


async def test_evictions_are_told_one_block_at_a_time_by_vllm(start: Any, context: Any) -> None:
    engine, client = await start(dialect="vllm", kv_events=ANYWHERE, block_tokens=16, cache_tokens=512)
    for number in range(8):
        await complete(client, [number] * 200)
    events = [event for batch in await batches(context, engine) for event in batch[1]]
    held = set()
    for event in events:
        if event["type"] == "BlockStored":
            held |= set(event["block_hashes"])
        else:
            assert len(event["block_hashes"]) == 1
            held -= set(event["block_hashes"])

    assert len(held) * 16 == engine.scheduler.held_tokens


async def test_an_engine_that_crashed_begins_anew_on_the_same_ports(start: Any, context: Any) -> None:
    engine, client = await start(kv_events=ANYWHERE, block_tokens=16)
    await complete(client, [1] * 40)
    before = engine.feed.settings
    engine.inject(Fault("crash", seconds=0.001))
    async with asyncio.timeout(60):
        while True:
            try:
                await complete(client, [1] * 40)
                break
            except OSError:
                pass
            except Exception:  # noqa: BLE001 - httpx has several errors for a closed port
                await asyncio.sleep(0.01)

    assert engine.feed.settings == before
    assert len(await batches(context, engine)) == 1


async def test_without_events_there_is_nothing_to_find(start: Any) -> None:
    _, sglang = await start()
    _, vllm = await start(dialect="vllm")

    assert (await sglang.get("/server_info")).json()["kv_events"] is None
    assert (await vllm.get("/kv_event_sources")).json() == {}
