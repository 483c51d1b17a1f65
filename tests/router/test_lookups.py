"""Names are looked up in threads, and one that hangs holds up no other."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from router import lookups
from router.lookups import Lookups


class Resolver:
    """A resolver of which some names hang until the test ends."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("hangs"):
            self.release.wait()
        if host.startswith("unknown"):
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", port))] * 2


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.release.set()


async def test_a_name_has_each_of_its_addresses_once(resolver: Resolver) -> None:
    assert await Lookups().find("engine", 80) == ["10.0.0.7"]


async def test_a_name_that_is_none_is_an_error(resolver: Resolver) -> None:
    names = Lookups()
    for _ in range(2):
        with pytest.raises(socket.gaierror):
            await names.find("unknown", 80)
    assert resolver.asked == ["unknown"] * 2


async def test_names_that_hang_hold_up_no_other(resolver: Resolver) -> None:
    """More of them than an event loop has threads for lookups, each asked for twice."""
    names = Lookups()
    hanging = [asyncio.create_task(names.find(f"hangs{number % 100}", 80)) for number in range(200)]
    for number in range(50):
        assert await names.find(f"well{number}", 80) == ["10.0.0.7"]
    assert not any(task.done() for task in hanging)
    assert len([host for host in resolver.asked if host.startswith("hangs")]) == 100
    resolver.release.set()
    assert await asyncio.gather(*hanging) == [["10.0.0.7"]] * 200


async def test_a_name_that_answered_promptly_needs_no_place_among_those_that_hang(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "OTHERS_AT_ONCE", 3)
    names = Lookups()
    await names.find("known", 80)
    hanging = [asyncio.create_task(names.find(f"hangs{number}", 80)) for number in range(10)]
    assert await names.find("known", 80) == ["10.0.0.7"]
    resolver.release.set()
    await asyncio.gather(*hanging)


async def test_a_lookup_that_was_given_up_goes_on_for_the_next_who_asks(resolver: Resolver) -> None:
    names = Lookups()
    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await names.find("hangs", 80)
    last = asyncio.create_task(names.find("hangs", 80))
    await asyncio.sleep(0)
    resolver.release.set()
    assert await last == ["10.0.0.7"]
    assert resolver.asked == ["hangs"]


async def test_a_failure_that_nobody_waits_for_is_no_error_of_ours(
    resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    names = Lookups()
    waiting = asyncio.create_task(names.find("unknown", 80))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(socket.gaierror):
        await names.find("unknown", 80)
    await asyncio.sleep(0)
    assert caplog.records == []
