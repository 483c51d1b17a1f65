"""Ways for KV: their times; each end is reported once."""

import asyncio
from typing import Any

import pytest

from loadtest.engine.faults import Fault, Faults
from loadtest.engine.handover.carriers import Fabric, FaultyWay, Load, SharedLink
from loadtest.engine.link.server import LinkServer
from loadtest.engine.timing import LinkTiming

WHOLE = Load(1000, 1000, 0.0, 4)
LAYERS = Load(1000, 0, 0.01, 4)
FAST = Fabric(LinkTiming(1e9))
NEVER = Fabric(LinkTiming(1e-6))


class Ends(list[str | None]):
    """Reported ends; a test waits for the first."""

    async def first(self) -> str | None:
        async with asyncio.timeout(60):
            while not self:  # noqa: ASYNC110 - a list has no signal
                await asyncio.sleep(0.002)
        return self[0]


async def test_sending_layer_by_layer_hides_most_of_a_transfer(monkeypatch: Any) -> None:
    """1,000 bytes at 1,000 a second are one second; of four layers all but the last hide behind 2 s."""
    waits: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda after_s, *_: waits.append(after_s))
    fabric = Fabric(LinkTiming(1000.0))
    fabric.send(WHOLE, print)
    fabric.send(LAYERS, print).computed(2.0)
    fabric.send(LAYERS, print).computed(0.0)
    monkeypatch.undo()

    assert waits == pytest.approx([1.0, 0.25, 1.0])


@pytest.mark.parametrize("way", ["fabric", "link"])
async def test_kv_arrives_once_it_is_computed(way: str) -> None:
    server = LinkServer(8.0)
    await server.open()
    carrier = FAST if way == "fabric" else SharedLink(server.url)
    whole, layers = Ends(), Ends()
    carrier.send(WHOLE, whole.append)
    shipment = carrier.send(LAYERS, layers.append)
    assert await whole.first() is None
    await asyncio.sleep(0.03)
    assert layers == []
    shipment.computed(0.01)
    assert await layers.first() is None
    shipment.cancel()
    server.close()

    assert (whole, layers) == ([None], [None])


async def test_the_end_of_a_prefill_may_be_heard_before_its_transfer() -> None:
    server = LinkServer(8.0)
    await server.open()
    ends = Ends()
    SharedLink(server.url).send(LAYERS, ends.append).computed(0.0)

    assert await ends.first() is None
    server.close()


async def test_kv_is_lost_with_its_link() -> None:
    server = LinkServer(8.0)
    await server.open()
    way, gone, ends = SharedLink(server.url), Ends(), Ends()
    given_up = way.send(Load(10**12, 10**12, 0.0, 4), gone.append)
    way.send(Load(10**12, 0, 1.0, 4), ends.append)
    async with asyncio.timeout(60):
        while server.link.under_way < 2:  # noqa: ASYNC110 - the link has no event for it
            await asyncio.sleep(0.002)
    given_up.cancel()
    server.close()
    assert await ends.first()
    unheard = Ends()
    way.send(LAYERS, unheard.append).computed(0.0)
    assert await unheard.first()

    assert (gone, len(ends)) == ([], 1)


@pytest.mark.parametrize("load", [WHOLE, LAYERS])
async def test_a_fault_hits_as_many_transfers_as_asked(load: Load) -> None:
    faults = Faults()
    way = FaultyWay(FAST, faults)
    faults.add(Fault("fail_transfer", count=1))
    faults.add(Fault("stall_transfer", count=1, seconds=0.01))
    faults.add(Fault("stall_transfer", count=1))
    told = [Ends() for _ in range(4)]
    for ends in told:
        shipment = way.send(load, ends.append)
        if not load.whole:
            shipment.computed(0.0)
    assert [await told[number].first() for number in (0, 1, 3)] == ["injected fault", None, None]

    assert told[2] == []
    shipment.cancel()


@pytest.mark.parametrize("fault", [None, "stall_transfer", "fail_transfer"])
async def test_who_gives_up_hears_nothing(fault: Any) -> None:
    faults = Faults()
    if fault is not None:
        faults.add(Fault(fault, seconds=0.01))
    ends = Ends()
    shipment = FaultyWay(NEVER if fault is None else FAST, faults).send(WHOLE, ends.append)
    shipment.cancel()
    shipment.cancel()
    await asyncio.sleep(0.03)

    assert ends == []
