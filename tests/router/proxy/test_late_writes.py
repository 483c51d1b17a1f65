"""Writes of one turn leave together, in order, and none is lost."""

import asyncio
import gc
from typing import cast

import pytest

from router.proxy.late_writes import WRITES_MAX, LateTransport, _of_loop, late_writes


class _Connection(asyncio.Transport):
    """Writes down what it is told."""

    def __init__(self, journal: list[object], name: str = "a") -> None:
        super().__init__()
        self.journal, self.name, self.closed = journal, name, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "a closed connection takes nothing"
        self.journal.append((self.name, bytes(data)))

    def writelines(self, list_of_data: object) -> None:
        self.journal.append((self.name, list_of_data))

    def write_eof(self) -> None:
        self.journal.append((self.name, "eof"))

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self.journal.append((self.name, "close"))

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Not of interest."""

    def pause_reading(self) -> None:
        """Not of interest."""

    def resume_reading(self) -> None:
        """Not of interest."""


@pytest.fixture(autouse=True)
async def busy() -> None:
    """Let the turn before each test have had several writes."""
    late_writes(asyncio.get_running_loop()).is_quiet = False


def _late(connection: asyncio.Transport) -> LateTransport:
    return LateTransport(connection, late_writes(asyncio.get_running_loop()))


async def test_writes_of_a_turn_leave_at_its_end_in_order() -> None:
    journal: list[object] = []
    one, other = _late(_Connection(journal)), _late(_Connection(journal, "b"))
    one.write(b"1")
    other.write(b"2")
    one.write(b"3")
    assert journal == []
    await asyncio.sleep(0)
    assert journal == [("a", b"1"), ("b", b"2"), ("a", b"3")]


async def test_many_writes_do_not_wait_for_the_end_of_the_turn() -> None:
    journal: list[object] = []
    transport = _late(_Connection(journal))
    for number in range(WRITES_MAX + 1):
        transport.write(b"%d" % number)
    assert journal == [("a", b"%d" % number) for number in range(WRITES_MAX)]
    await asyncio.sleep(0)
    assert journal[WRITES_MAX:] == [("a", b"%d" % WRITES_MAX)]


async def test_pieces_the_end_and_closing_come_behind_what_waits() -> None:
    journal: list[object] = []
    pieces = _late(_Connection(journal))
    pieces.write(b"head")
    pieces.writelines((b"body",))
    assert journal == []
    await asyncio.sleep(0)
    assert journal == [("a", b"head"), ("a", (b"body",))]
    for call, word in (("write_eof", "eof"), ("close", "close")):
        journal.clear()
        transport = _late(_Connection(journal))
        transport.write(b"last")
        getattr(transport, call)()
        assert journal == [("a", b"last"), ("a", word)]
    await asyncio.sleep(0)


async def test_a_connection_that_broke_takes_nothing_and_the_others_get_theirs() -> None:
    journal: list[object] = []
    broken = _Connection(journal)
    gone, other = _late(broken), _late(_Connection(journal, "b"))
    gone.write(b"1")
    other.write(b"2")
    broken.closed = True
    await asyncio.sleep(0)
    assert journal == [("b", b"2")]


async def test_what_was_written_before_an_abort_is_not_lost() -> None:
    journal: list[object] = []
    transport = _late(_Connection(journal))
    transport.write(b"1")
    transport.abort()
    assert journal == [("a", b"1")]


async def test_a_write_that_makes_others_keeps_the_order() -> None:
    journal: list[object] = []

    class Answering(_Connection):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            super().write(data)
            if bytes(data) == b"1":
                transport.write(b"3")
                late_writes(asyncio.get_running_loop()).flush()

    transport = _late(Answering(journal))
    transport.write(b"1")
    transport.write(b"2")
    await asyncio.sleep(0)
    assert journal == [("a", b"1"), ("a", b"2"), ("a", b"3")]


async def test_a_write_that_fails_costs_no_other_its_place() -> None:
    journal: list[object] = []
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

    class Failing(_Connection):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            raise RuntimeError

    failing, other = _late(Failing(journal)), _late(_Connection(journal, "b"))
    failing.write(b"1")
    other.write(b"2")
    await asyncio.sleep(0)
    assert len(told) == 1
    other.write(b"3")
    await asyncio.sleep(0)
    assert journal == [("b", b"2"), ("b", b"3")]


def test_a_loop_that_is_gone_leaves_nothing() -> None:
    loop = asyncio.new_event_loop()
    late_writes(loop)
    known = len(_of_loop)
    loop.close()
    del loop
    gc.collect()
    assert len(_of_loop) < known


async def test_a_real_connection_keeps_everything() -> None:
    received = bytearray()
    ended = asyncio.Event()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        ended.set()
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        loop = asyncio.get_running_loop()
        plain, _ = await loop.create_connection(asyncio.Protocol, *address)
        transport = _late(cast("asyncio.Transport", plain))
        for number in range(30):
            transport.write(b"%02d" % number)
        transport.close()
        await asyncio.wait_for(ended.wait(), 60)
    assert bytes(received) == b"".join(b"%02d" % number for number in range(30))


async def test_a_lone_write_leaves_at_once_and_others_of_its_turn_at_its_end() -> None:
    journal: list[object] = []
    one, other = _late(_Connection(journal)), _late(_Connection(journal, "b"))
    for turn in range(3):  # after the first one, turns are quiet
        one.write(b"alone")
        assert len(journal) == (turn and turn + 1)
        await asyncio.sleep(0)
    journal.clear()
    for waits in (False, True):  # the second such turn is known to be busy
        one.write(b"1")
        other.writelines((b"2",))
        assert journal == ([] if waits else [("a", b"1")])
        await asyncio.sleep(0)
        assert journal == [("a", b"1"), ("b", (b"2",))]
        journal.clear()


async def test_a_turn_of_exactly_so_many_writes_as_are_sent_together_was_busy() -> None:
    journal: list[object] = []
    transport = _late(_Connection(journal))
    for _ in range(WRITES_MAX):
        transport.write(b"x")
    await asyncio.sleep(0)
    transport.write(b"y")
    assert len(journal) == WRITES_MAX
    await asyncio.sleep(0)
