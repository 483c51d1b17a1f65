import asyncio
from typing import Any

import pytest

from loadtest.engine.handover.peer import PeerLost, call
from loadtest.engine.handover.side_port import HeldCall, SidePort
from loadtest.engine.server import Connection


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition knows of no event
            await asyncio.sleep(0.002)


async def test_a_call_is_answered_when_its_holder_says_so() -> None:
    held: list[HeldCall] = []
    port = SidePort(0, lambda _, answer: held.append(HeldCall(answer, lambda _: None)))
    await port.open("127.0.0.1")
    asking = asyncio.create_task(call("127.0.0.1", port.port, "/kv", {}))
    await until(lambda: held)
    held[0].answer.send(200, b"[1]")

    assert await asking == [1]
    port.close()


async def test_a_caller_that_gives_up_is_seen_to_be_gone() -> None:
    held: list[HeldCall] = []
    left: list[HeldCall] = []
    port = SidePort(0, lambda _, answer: held.append(HeldCall(answer, left.append)))
    await port.open("127.0.0.1")
    asking = asyncio.create_task(call("127.0.0.1", port.port, "/kv", {}))
    await until(lambda: held)
    asking.cancel()
    await until(lambda: left)

    assert left == held
    port.close()


async def test_closing_resets_those_who_wait() -> None:
    held: list[HeldCall] = []
    port = SidePort(0, lambda _, answer: held.append(HeldCall(answer, lambda _: None)))
    await port.open("127.0.0.1")
    # Asked for again after a crash, it is the same port.
    await port.open("127.0.0.1")
    asking = asyncio.create_task(call("127.0.0.1", port.port, "/kv", {}))
    await until(lambda: held)
    port.close()

    with pytest.raises(PeerLost):
        await asking


async def test_a_call_that_was_accepted_in_the_moment_of_closing_is_reset() -> None:
    port = SidePort(0, lambda _, __: None)
    await port.open("127.0.0.1")
    _, writer = await asyncio.open_connection("127.0.0.1", port.port)
    try:
        late = Connection(port)
        port.close()
        late.connection_made(writer.transport)
        assert writer.transport.is_closing()
    finally:
        writer.close()
