"""Effects of a cable on packets, by their source or destination port."""

import asyncio
import contextlib
import json
import os
import random
import socket
from collections.abc import Iterator

import pytest

from loadtest.chaos.cable import MTU_BYTES, QUEUE_S, Direction, Rule, address

PORT, OTHER = 6379, 8000


def packet(to: int, source: int = 40_000, data: bytes = b"", options: bytes = b"") -> bytes:
    """An IPv4 packet with TCP, as far as a cable looks at it."""
    words = 5 + len(options) // 4
    head = bytes([0x40 | words, 0, 0, 0, 0, 0, 0, 0, 64, 6]) + bytes(10) + options
    return head + source.to_bytes(2, "big") + to.to_bytes(2, "big") + data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Datagrams keep their bounds, as packets do."""
    with contextlib.ExitStack() as stack:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        stack.enter_context(here)
        stack.enter_context(there)
        there.setblocking(False)
        yield here, there


def direction(ends: tuple[socket.socket, socket.socket], *rules: Rule) -> Direction:
    by_port = {port: rule for rule in rules for port in rule.ports}
    return Direction(-1, ends[0].fileno(), by_port, random.Random(1))


def came(ends: tuple[socket.socket, socket.socket]) -> list[bytes]:
    packets = []
    with contextlib.suppress(BlockingIOError):
        while True:
            packets.append(ends[1].recv(MTU_BYTES))
    return packets


async def test_without_a_rule_packets_pass(ends: tuple[socket.socket, socket.socket]) -> None:
    for one in (packet(PORT), b"\x60" + bytes(60), packet(OTHER)):
        direction(ends).take(one)
    assert len(came(ends)) == 3


async def test_a_rule_hits_its_port_both_ways_and_no_other(ends: tuple[socket.socket, socket.socket]) -> None:
    silent = direction(ends, Rule((PORT,), loss_ratio=1.0))
    passing = [packet(OTHER), b"\x60" + bytes(60), packet(40_001, 40_002)]
    for one in (packet(PORT), packet(40_000, PORT), packet(PORT, options=bytes(8)), *passing):
        silent.take(one)
    assert came(ends) == passing


async def test_a_lossy_cable_loses_about_its_share(ends: tuple[socket.socket, socket.socket]) -> None:
    lossy = direction(ends, Rule((PORT,), loss_ratio=0.25))
    passed = 0
    for _ in range(400):
        lossy.take(packet(PORT))
        await asyncio.sleep(0)
        passed += len(came(ends))
    assert 250 < passed < 350


async def test_a_slow_cable_keeps_the_order(ends: tuple[socket.socket, socket.socket]) -> None:
    slow = direction(ends, Rule((PORT,), delay_s=0.02))
    sent = [packet(PORT, data=bytes([number])) for number in range(20)]
    for one in sent:
        slow.take(one)
    assert came(ends) == []
    await asyncio.sleep(0.2)
    assert came(ends) == sent


async def test_a_narrow_cable_holds_back_what_it_cannot_carry_and_loses_the_rest(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one = packet(PORT, data=bytes(1000))
    narrow = direction(ends, Rule((PORT,), bytes_per_s=100 * len(one)))
    for _ in range(1000):
        narrow.take(one)
    waiting = list(narrow._free_s.values())
    assert len(waiting) == 1
    assert waiting[0] - asyncio.get_running_loop().time() < QUEUE_S + 0.1
    assert len(came(ends)) < 5


async def test_what_comes_is_read_until_nothing_more_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    source, sink = os.pipe()
    try:
        ends[0].setblocking(False)
        ends[1].send(packet(PORT))
        ends[1].send(packet(OTHER))
        Direction(ends[0].fileno(), sink, {}, random.Random(1)).pump()
        assert os.read(source, 1000) == packet(PORT) + packet(OTHER)
    finally:
        os.close(source)
        os.close(sink)


def test_a_rule_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    line = json.dumps({"ports": [PORT], "delay_s": 0.1, "loss_ratio": 0.0, "bytes_per_s": 0.0}).encode()
    assert Rule.parse(line) == Rule((PORT,), delay_s=0.1)
    for wrong in (b"[]", b'{"port": 1}', b"{"):
        with pytest.raises(ValueError):
            Rule.parse(wrong)


def test_each_cable_has_two_addresses_of_its_own() -> None:
    assert len({address(number, inside=inside) for number in (1, 2) for inside in (True, False)}) == 4
