"""Batches on real sockets, in the shapes that subscribers of the engines expect."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from loadtest.engine.kv_publisher import KvPublisher
from loadtest.engine.kv_settings import KvEventsSettings


@pytest.fixture
async def context() -> AsyncIterator[Any]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def subscribed(context: Any, publisher: KvPublisher, topic: bytes = b"") -> Any:
    """A subscriber that has heard the publisher once."""
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    socket.connect(publisher.settings.endpoint.replace("*", "127.0.0.1"))
    async with asyncio.timeout(60):
        while not await socket.poll(10):
            publisher.publish(b"hello")
        while await socket.poll(50):
            await socket.recv_multipart()
    return socket


async def replayed(context: Any, endpoint: str, start: int) -> Any:
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    await socket.send_multipart((b"", start.to_bytes(8, "big")))
    messages: list[list[bytes]] = []
    async with asyncio.timeout(60):
        while not messages or messages[-1][-2] != b"\xff" * 8:
            messages.append(await socket.recv_multipart())
    return messages


async def test_a_subscriber_gets_topic_sequence_and_batch(context: Any) -> None:
    publisher = KvPublisher(KvEventsSettings("tcp://*:0", topic="kv@pod"), replay_topic=False)
    socket = await subscribed(context, publisher, b"kv@")
    publisher.publish(b"one")
    publisher.publish(b"two")
    first, second = [await socket.recv_multipart() for _ in range(2)]

    assert [first[0], first[2], second[2]] == [b"kv@pod", b"one", b"two"]
    assert len(first[1]) == 8
    assert int.from_bytes(second[1], "big") == int.from_bytes(first[1], "big") + 1
    publisher.close()


async def test_a_subscriber_that_binds_is_connected_to(context: Any) -> None:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    publisher = KvPublisher(KvEventsSettings(f"tcp://127.0.0.1:{port}"), replay_topic=False)
    async with asyncio.timeout(60):
        while not await socket.poll(10):
            publisher.publish(b"hello")

    assert (await socket.recv_multipart())[2] == b"hello"
    publisher.close()


async def test_a_path_is_bound(context: Any, tmp_path: Path) -> None:
    publisher = KvPublisher(KvEventsSettings(f"ipc://{tmp_path}/events"), replay_topic=False)
    await subscribed(context, publisher)

    publisher.close()


@pytest.mark.parametrize(("named", "head"), [(True, [b"", b"kv"]), (False, [b""])])
async def test_what_was_missed_is_sent_again(context: Any, named: bool, head: list[bytes]) -> None:
    settings = KvEventsSettings("tcp://*:0", "tcp://127.0.0.1:0", topic="kv")
    publisher = KvPublisher(settings, replay_topic=named)
    for number in range(5):
        publisher.publish(b"batch %d" % number)
    endpoint = publisher.settings.replay_endpoint
    assert endpoint is not None

    def numbered(number: int) -> list[bytes]:
        return [*head, number.to_bytes(8, "big"), b"batch %d" % number]

    end = [*head, b"\xff" * 8, b""]
    assert await replayed(context, endpoint, 3) == [numbered(3), numbered(4), end]
    assert await replayed(context, endpoint, 5) == [end]
    publisher.close()


async def test_the_oldest_batches_are_dropped_from_the_replay(context: Any) -> None:
    settings = KvEventsSettings("tcp://*:0", "tcp://127.0.0.1:0", buffer_steps=2)
    publisher = KvPublisher(settings, replay_topic=False)
    for number in range(5):
        publisher.publish(b"batch %d" % number)
    assert publisher.settings.replay_endpoint is not None
    messages = await replayed(context, publisher.settings.replay_endpoint, 0)

    assert [batch for *_, batch in messages] == [b"batch 3", b"batch 4", b""]
    publisher.close()


async def test_batches_that_are_too_large_to_keep_are_not_kept(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.engine.kv_publisher._REPLAY_BYTES_MAX", 10)
    publisher = KvPublisher(KvEventsSettings("tcp://*:0", "tcp://127.0.0.1:0"), replay_topic=False)
    for batch in (b"123456", b"abcdef", b"xyz"):
        publisher.publish(batch)
    assert publisher.settings.replay_endpoint is not None
    messages = await replayed(context, publisher.settings.replay_endpoint, 0)

    assert [batch for *_, batch in messages] == [b"abcdef", b"xyz", b""]
    publisher.close()


@pytest.mark.parametrize("wrong", [[b"", b"short"], [b"", b"x" * 8, b"more"]])
async def test_a_request_that_makes_no_sense_is_passed_over(context: Any, wrong: Any) -> None:
    publisher = KvPublisher(KvEventsSettings("tcp://*:0", "tcp://127.0.0.1:0"), replay_topic=False)
    publisher.publish(b"one")
    assert publisher.settings.replay_endpoint is not None
    socket = context.socket(zmq.DEALER)
    socket.connect(publisher.settings.replay_endpoint)
    await socket.send_multipart(wrong)
    await socket.send_multipart((b"", bytes(8)))
    async with asyncio.timeout(60):
        assert (await socket.recv_multipart())[-1] == b"one"

    publisher.close()


async def test_an_endpoint_that_is_taken_is_told() -> None:
    first = KvPublisher(KvEventsSettings("tcp://*:0"), replay_topic=False)
    with pytest.raises(OSError, match="KV events on"):
        KvPublisher(first.settings, replay_topic=False)
    first.close()
    # The port is free again, and the sequence starts over.
    second = KvPublisher(first.settings, replay_topic=False)
    second.close()
