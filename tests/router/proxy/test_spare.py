"""The choice of the connection that makes room for a new one: on a test's clock, and on real sockets."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest

from router.proxy import ClientQuota, Clients, Refusal
from router.proxy.deadlines import Deadlines
from router.proxy.spare import LOOKS_MAX, PATIENCE_S, Spare

HELLO = b"GET /hello HTTP/1.1\r\nhost: g\r\n\r\n"
STREAM = b"POST /v1/stream HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}"


class Clock:
    """The clock of an event loop; no timer falls due."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return cast(asyncio.TimerHandle, None)


class Connection:
    """One of a crowd; it lets itself be closed if it may be."""

    def __init__(self, crowd: "Crowd", name: str, *, willing: bool = True) -> None:
        self.crowd = crowd
        self.name = name
        self.willing = willing

    def vacate(self) -> bool:
        if self.willing:
            self.crowd.closed.append(self.name)
            self.crowd.idle.pop(self, None)
        return self.willing


class Crowd:
    """Connections by their names, and the closed ones."""

    def __init__(self) -> None:
        self.clock = Clock()
        loop = cast(asyncio.AbstractEventLoop, self.clock)
        self.idle: Deadlines[Any] = Deadlines(loop, lambda _: None)
        self.spare = Spare(loop, self.idle)
        self.closed: list[str] = []

    def one(self, name: str, *, willing: bool = True) -> Connection:
        return Connection(self, name, willing=willing)

    def passes(self, seconds: float) -> None:
        self.clock.now_s += seconds


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_without_connections_there_is_no_room_to_make(crowd: Crowd) -> None:
    assert not crowd.spare.make_room()


def test_the_connection_that_waits_for_longest_is_closed_first_whatever_it_waits_for(crowd: Crowd) -> None:
    crowd.spare.add(crowd.one("never asked"))
    crowd.passes(1)
    crowd.idle.add(crowd.one("asked before"), 75)
    crowd.passes(1)
    crowd.spare.add(crowd.one("half a head"))
    crowd.passes(1)
    crowd.idle.add(crowd.one("just answered"), 75)
    assert len(crowd.spare) == 4
    assert all(crowd.spare.make_room() for _ in range(4))
    assert crowd.closed == ["never asked", "asked before", "half a head", "just answered"]
    assert len(crowd.spare) == 0


def test_saying_the_same_again_makes_no_connection_younger(crowd: Crowd) -> None:
    """A byte now and then gains no time."""
    first, second = crowd.one("first"), crowd.one("second")
    crowd.spare.add(first)
    crowd.passes(1)
    crowd.spare.add(second)
    crowd.spare.add(first)
    assert crowd.spare.make_room()
    assert crowd.closed == ["first"]


def test_requests_that_their_clients_hold_up_come_last_and_not_at_once(crowd: Crowd) -> None:
    crowd.spare.add_slow(crowd.one("half a body"))
    crowd.passes(PATIENCE_S - 1)
    assert not crowd.spare.make_room()
    crowd.spare.add(crowd.one("idle"))
    crowd.passes(1)
    assert crowd.spare.make_room()
    assert crowd.spare.make_room()
    assert crowd.closed == ["idle", "half a body"]


def test_a_connection_is_in_one_group_and_leaves_all_of_them(crowd: Crowd) -> None:
    one = crowd.one("one")
    crowd.spare.add(one)
    crowd.spare.add_slow(one)
    assert len(crowd.spare) == 1
    crowd.spare.add(one)
    assert len(crowd.spare) == 1
    crowd.spare.discard(one)
    crowd.passes(PATIENCE_S)
    assert not crowd.spare.make_room()


def test_those_that_are_busy_after_all_are_passed_over_and_only_so_many_are_asked(crowd: Crowd) -> None:
    for number in range(LOOKS_MAX - 1):
        crowd.spare.add(crowd.one(str(number), willing=False))
    crowd.spare.add(crowd.one("willing"))
    assert crowd.spare.make_room()
    assert crowd.closed == ["willing"]
    for number in range(LOOKS_MAX):
        crowd.spare.add(crowd.one(str(number), willing=False))
    crowd.spare.add(crowd.one("behind them"))
    assert not crowd.spare.make_room()
    assert crowd.spare.make_room()
    assert crowd.closed == ["willing", "behind them"]


def test_one_whose_next_request_has_just_come_stays_idle_and_others_are_asked(crowd: Crowd) -> None:
    crowd.idle.add(crowd.one("asks", willing=False), 75)
    slow = crowd.one("slow")
    crowd.spare.add_slow(slow)
    crowd.passes(PATIENCE_S)
    assert crowd.spare.make_room()
    assert crowd.closed == ["slow"]
    assert len(crowd.idle) == 1


# On sockets.


@pytest.fixture
def refused(gateway: Any) -> Iterator[list[Refusal]]:
    """A listener with two places, and the clients that it refused or closed for others."""
    refused: list[Refusal] = []
    gateway.clients = Clients(ClientQuota(connections_max=2), time.monotonic, refused.append)
    yield refused
    gateway.clients = None


Read = Callable[[asyncio.StreamReader], Awaitable[tuple[bytes, bytes]]]


async def answered(gateway: Any, read_answer: Read) -> bool:
    """True if a new connection is served."""
    reader, writer = await gateway.connect(HELLO)
    try:
        head, _ = await read_answer(reader)
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
    return head.startswith(b"http/1.1 200 ")


async def held(gateway: Any, until: Any, *starts: bytes) -> list[asyncio.StreamReader]:
    """Connections that hold all places, from the listener's view."""
    readers = []
    for count, start in enumerate(starts, 1):
        readers.append((await gateway.connect(start))[0])
        await until(lambda count=count: len(gateway.connections) == count)
    return readers


@pytest.mark.parametrize(
    "start",
    [b"", b"GET /hel", b"nonsense\r\n\r\n", b"GET /hello HTTP/1.1\r\nhost: g\r\nhost: g\r\n\r\n"],
    ids=["nothing", "half a head", "refused", "refused head"],
)
async def test_one_that_asks_for_nothing_makes_room(
    gateway: Any, until: Any, read_answer: Read, refused: list[Refusal], start: bytes
) -> None:
    await gateway.start()
    first, _ = await held(gateway, until, start, start)
    assert await answered(gateway, read_answer)
    assert refused == [Refusal.IDLE]
    async with asyncio.timeout(60):
        await first.read()  # it was closed


async def test_one_that_was_answered_makes_room(
    gateway: Any, until: Any, read_answer: Read, refused: list[Refusal]
) -> None:
    await gateway.start()
    readers = await held(gateway, until, HELLO, HELLO)
    for reader in readers:
        await read_answer(reader)
    assert await answered(gateway, read_answer)
    assert await readers[0].read() == b""


async def test_requests_under_way_keep_their_places_and_the_new_one_is_closed(
    gateway: Any, until: Any, read_answer: Read, refused: list[Refusal]
) -> None:
    await gateway.start()
    readers = await held(gateway, until, STREAM, STREAM)
    await until(lambda: len(gateway.exchanges) == 2)
    assert not await answered(gateway, read_answer)
    assert refused == [Refusal.CONNECTIONS]
    for exchange, reader in zip(gateway.exchanges, readers, strict=True):
        exchange.answer(b"done")
        assert (await read_answer(reader))[1] == b"done"
    assert await answered(gateway, read_answer)


async def test_a_pipelined_head_behind_an_answer_that_is_under_way_gives_no_place_away(
    gateway: Any, until: Any, read_answer: Read, refused: list[Refusal]
) -> None:
    await gateway.start()
    await held(gateway, until, STREAM + b"POST /v1/", STREAM + STREAM[:-1])
    await until(lambda: len(gateway.exchanges) == 2)
    for connection in gateway.connections:
        assert not connection.vacate()
    assert not await answered(gateway, read_answer)
    for exchange in gateway.exchanges:
        exchange.answer(b"done")


async def test_an_upload_makes_room_only_after_a_while(
    gateway: Any, until: Any, read_answer: Read, refused: list[Refusal]
) -> None:
    await gateway.start()
    await held(gateway, until, STREAM[:-1], b"POST /size HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n\r\n")
    spare = gateway.connections[0].spare
    await until(lambda: len(spare._slow_s) == 2)
    assert not await answered(gateway, read_answer)
    for connection in spare._slow_s:
        spare._slow_s[connection] -= PATIENCE_S
    assert await answered(gateway, read_answer)
    assert refused == [Refusal.CONNECTIONS, Refusal.IDLE]


async def test_places_are_counted_right_whatever_closes_a_connection(
    gateway: Any, until: Any, read_answer: Read, refused: list[Refusal]
) -> None:
    await gateway.start()
    for start in (b"", HELLO, b"GET /h", STREAM, STREAM[:-1], b"x\r\n\r\n") * 3:
        _, writer = await gateway.connect(start)
        writer.close()
    await until(lambda: not gateway.connections)
    assert gateway.clients.connections == 0
    assert await answered(gateway, read_answer)
