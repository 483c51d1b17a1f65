"""Bytes are written as a case says, answers are read to their end, and every wait is bounded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from loadtest.fuzz.actions import NUMBERED, Commands, Wire
from loadtest.fuzz.cases import Case
from loadtest.fuzz.player import Player, exchanged, judged
from loadtest.fuzz.stage import NAMESPACE, Stage

FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@contextlib.asynccontextmanager
async def listening(answer: bytes, taken: list[bytes]) -> AsyncIterator[int]:
    """A server that answers the first bytes it gets, and closes; ``taken`` is all that it got."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            taken.append(await reader.read(1 << 16))
            writer.write(answer)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def player(port: int, commands: list[tuple[Any, ...]] | None = None) -> Player:
    async def command(*given: Any) -> None:
        assert commands is not None
        commands.append(given)

    gateway = SimpleNamespace(ports={"data": port, "admin": port})
    stage = SimpleNamespace(gateways=[gateway, gateway], valkey=SimpleNamespace(command=command))
    return Player(cast(Stage, stage))


async def test_what_was_answered_is_read_to_its_end() -> None:
    async with listening(FINE, taken := []) as port:
        assert await exchanged(port, [b"GET / ", b"HTTP/1.1\r\n\r\n"]) == FINE
        assert await exchanged(port, [b"x"], leaves=True) in (b"", FINE)
        assert await exchanged(port, [b"x"], leaves=True, resets=True) in (b"", FINE)
    assert taken[0].startswith(b"GET / ")


async def test_nobody_listening_is_no_answer() -> None:
    async with listening(FINE, []) as port:
        pass
    assert await exchanged(port, [b"x"]) == b""


async def test_a_wire_that_is_repeated_says_its_number() -> None:
    async with listening(FINE, taken := []) as port:
        wire = Wire((b"n=" + NUMBERED,), repeat=20)
        assert await player(port).play(Case(1, 2, "floods", wire)) == []
    assert sorted(taken) == [b"n=%08d" % number for number in range(20)]


async def test_what_is_wrong_with_an_answer_is_told() -> None:
    body = b'{"error":{"code":"internal_error"}}'
    answer = b"HTTP/1.1 500 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with listening(answer, []) as port:
        (found,) = await player(port).play(Case(1, 2, "bodies", Wire((b"x",))))
    assert "internal_error" in found
    assert judged(FINE) == []


async def test_keys_are_those_of_the_namespace() -> None:
    commands: list[tuple[Any, ...]] = []
    case = Case(1, 2, "entries", Commands((("SET", "key:lease", b"key:x"),)))
    await player(0, commands).play(case)
    assert commands == [("SET", f"cw:{{{NAMESPACE}}}:lease", b"key:x")]
