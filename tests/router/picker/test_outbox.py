import asyncio
from collections.abc import Iterator

from router.picker.outbox import BATCHES_MAX, Outbox
from router.picker.proto import ext_proc_pb2 as pb


def reply(name: str = "") -> pb.ProcessingResponse:
    return pb.ProcessingResponse(immediate_response=pb.ImmediateResponse(details=name))


def names(outbox: Outbox) -> list[str]:
    return [message.immediate_response.details for message in outbox.taken()]


async def test_messages_come_in_order_until_the_end() -> None:
    outbox = Outbox()
    outbox.put([reply("a"), reply("b")])
    outbox.put([reply("c")])
    outbox.end()
    outbox.put([reply("late")])
    assert [message.immediate_response.details async for message in outbox.messages()] == ["a", "b", "c"]
    assert outbox.ended
    assert not outbox.failed


async def test_a_writer_waits_for_messages() -> None:
    outbox = Outbox()
    got: list[str] = []

    async def write() -> None:
        async for message in outbox.messages():
            got.append(message.immediate_response.details)  # noqa: PERF401 - each as it comes

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        await asyncio.sleep(0)
        outbox.put([reply("a")])
        await asyncio.sleep(0)
        outbox.end()
    assert got == ["a"]


async def test_messages_are_made_when_they_are_sent() -> None:
    made: list[str] = []

    def making() -> Iterator[pb.ProcessingResponse]:
        for name in "ab":
            made.append(name)
            yield reply(name)

    outbox = Outbox()
    outbox.put(making())
    assert made == []
    messages = outbox.messages()
    await anext(messages)
    assert made == ["a"]


def test_a_failure_drops_what_is_left_and_says_why_once() -> None:
    outbox = Outbox()
    outbox.put([reply("a")])
    outbox.end("broken")
    outbox.end("again")
    assert (names(outbox), outbox.failed) == ([], "broken")


def test_a_failure_after_the_end_changes_nothing() -> None:
    outbox = Outbox()
    outbox.put([reply("a")])
    outbox.end()
    outbox.end("broken")
    assert (names(outbox), outbox.failed) == (["a"], "")


async def test_a_reader_waits_while_many_are_left() -> None:
    outbox = Outbox()
    for _ in range(BATCHES_MAX - 1):
        outbox.put([reply()])
    await outbox.room()
    outbox.put([reply()])
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    messages = outbox.messages()
    await anext(messages)
    await anext(messages)
    await waiting


async def test_a_reader_does_not_wait_for_a_stream_that_ended() -> None:
    outbox = Outbox()
    for _ in range(BATCHES_MAX):
        outbox.put([reply()])
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    outbox.end()
    await waiting
