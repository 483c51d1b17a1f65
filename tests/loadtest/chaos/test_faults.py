"""Every fault keeps a client from writing while it lasts, and no longer."""

import pytest
from fakes.running import until_async
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from loadtest.chaos import FAULTS, Fault, Stage, staged
from loadtest.chaos.faults import SLOW_S


async def writes(stage: Stage) -> bool:
    """True if a client that is used to a fast server gets a write through."""
    never = Retry(NoBackoff(), 0)
    async with Redis.from_url(stage.url, socket_timeout=SLOW_S * 0.8, retry=never, protocol=2) as client:
        try:
            return bool(await client.set("key", "1"))
        except (RedisError, OSError):
            return False


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.lasting], ids=lambda fault: fault.name)
async def test_a_lasting_fault_keeps_clients_from_writing_until_it_is_mended(fault: Fault) -> None:
    async with staged(fault) as stage:
        await until_async(lambda: writes(stage))
        async with fault.strike(stage):
            assert not await writes(stage)
        await until_async(lambda: writes(stage))


@pytest.mark.parametrize("name", ["flushed", "rolled back"])
async def test_a_fault_that_passes_takes_what_came_after_the_copy(name: str) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    async with staged(fault) as stage:
        await stage.server.keep_copy()
        await stage.server.command("SET", "new", "1")
        async with fault.strike(stage):
            assert await stage.server.command("GET", "new") is None


@pytest.mark.deep
async def test_a_primary_that_is_replaced_has_a_successor() -> None:
    (fault,) = [fault for fault in FAULTS if fault.sentinel]
    async with staged(fault) as stage:
        hosts, service = stage.url.removeprefix("redis+sentinel://").split("/")
        async with Redis.from_url(f"redis://{hosts.split(',')[0]}", protocol=2) as sentinel:

            async def replaced() -> bool:
                told = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)  # type: ignore[no-untyped-call]
                return bool(int(told[1]) != stage.server.port)

            assert not await replaced()
            async with fault.strike(stage):
                await until_async(replaced)


def test_half_of_the_replicas_of_a_fault_of_half_go_past_the_proxy() -> None:
    (fault,) = [fault for fault in FAULTS if fault.half]
    stage = Stage(server=type("Server", (), {"url": "direct"})(), url="proxied")
    assert [fault.url_of(stage, number) for number in range(4)] == ["direct", "proxied"] * 2
    assert FAULTS[0].url_of(stage, 0) == "proxied"
