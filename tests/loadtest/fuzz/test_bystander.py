"""A bystander asks all replicas all the time, and reports requests that were not served."""

import asyncio
from types import SimpleNamespace
from typing import cast

import httpx

from loadtest.fuzz.bystander import Bystander
from loadtest.fuzz.stage import Gateway


def gateway(*statuses: int) -> tuple[Gateway, asyncio.Event]:
    """One that answers with these in turn, then with 200; the event is set when it has."""
    left, done = list(statuses), asyncio.Event()

    def answered(request: httpx.Request) -> httpx.Response:
        if not left:
            done.set()
            return httpx.Response(200, json={})
        if (status := left.pop(0)) == 0:
            raise httpx.ReadError("reset", request=request)
        return httpx.Response(status, json={})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answered), base_url="http://gateway")
    return cast(Gateway, SimpleNamespace(name="gateway-0", client=client)), done


async def asked(*statuses: int, excused: bool = False) -> Bystander:
    one, done = gateway(*statuses)
    bystander = Bystander([one])
    bystander.excused = lambda: excused
    async with bystander.asking():
        await done.wait()
    await one.client.aclose()
    return bystander


async def test_what_is_served_is_counted_and_everything_else_is_told() -> None:
    bystander = await asked(200, 429, 503, 0)
    assert bystander.served >= 1
    assert [line.split(":")[1].strip() for line in bystander.wrong] == ["429", "503", "ReadError reset"]


async def test_a_worker_that_takes_every_model_excuses_its_own_failures_only() -> None:
    bystander = await asked(502, 504, 500, excused=True)
    assert [line.split(":")[1].strip() for line in bystander.wrong] == ["500"]
