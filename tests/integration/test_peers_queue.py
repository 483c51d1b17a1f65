"""The queue as conformance suites of the peers pin it, with the flags that their users type (`wire.md` 4).

SGLang's router has it in ``sgl-router/py_test/integration/test_rate_limiting.py``: beyond
``--max-concurrent-requests`` a request waits; beyond ``--queue-size`` it gets 429; after
``--queue-timeout-secs`` 408.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import httpx
from fakes.running import Fleet, serving

from loadtest.engine import EngineSettings

SLOW = EngineSettings(prefill_base_ms=2000, prefill_tokens_per_s=1e7, tpot_ms=0, max_running=1)
"""Two seconds a request, one at a time."""

FAST = EngineSettings(prefill_base_ms=50, prefill_tokens_per_s=1e7, tpot_ms=0)


@contextlib.asynccontextmanager
async def gateway(fleet: Fleet, engine: EngineSettings, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    worker = await fleet.engine(engine)
    async with serving(fleet.redis_url, fleet.namespace, [worker.url], *flags) as (_, client):
        yield client


async def burst(client: httpx.AsyncClient, requests: int) -> list[httpx.Response]:
    """Send some requests at once."""
    return await asyncio.gather(
        *(
            client.post("/v1/completions", json={"model": "emulated", "prompt": f"q{n}", "max_tokens": 1})
            for n in range(requests)
        )
    )


def rejected(answers: list[httpx.Response]) -> list[httpx.Response]:
    return [answer for answer in answers if answer.status_code == 429]


def says_when_to_come_back(answer: httpx.Response) -> bool:
    """In whole seconds, with the reason in the shape of OpenAI's errors."""
    error = answer.json()["error"]
    return int(answer.headers["retry-after"]) >= 1 and bool(error["code"]) and bool(error["message"])


async def test_beyond_the_queue_is_429_and_beyond_its_timeout_408(fleet: Fleet) -> None:
    """Of four requests at once one runs for 2 s, one waits for 1 s in vain, and two are rejected."""
    flags = ("--max-concurrent-requests", "1", "--queue-size", "1", "--queue-timeout-secs", "1")
    async with gateway(fleet, SLOW, *flags) as client:
        answers = await burst(client, 4)
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses == {200: 1, 408: 1, 429: 2}
    assert all(says_when_to_come_back(answer) for answer in rejected(answers))
    assert {answer.json()["error"]["code"] for answer in answers if answer.status_code == 408} == {
        "request_expired"
    }


async def test_without_a_queue_what_is_too_much_is_429_at_once(fleet: Fleet) -> None:
    flags = ("--max-concurrent-requests", "2", "--queue-size", "0")
    async with gateway(fleet, FAST, *flags) as client:
        answers = await burst(client, 16)
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(says_when_to_come_back(answer) for answer in rejected(answers))


async def test_what_waits_is_served_in_time(fleet: Fleet) -> None:
    flags = ("--max-concurrent-requests", "2", "--queue-size", "20", "--queue-timeout-secs", "30")
    async with gateway(fleet, FAST, *flags) as client:
        answers = await burst(client, 16)
    assert {answer.status_code for answer in answers} == {200}


async def test_a_busy_fleet_queues_and_expires_without_a_limit_of_its_own(fleet: Fleet) -> None:
    """Requests wait under the same bounds at a full worker of ``max_running_requests`` 1."""
    flags = ("--queue-size", "1", "--queue-timeout-secs", "1", "--worker-running-max", "1")
    async with gateway(fleet, SLOW, *flags) as client:
        answers = await burst(client, 4)
    assert Counter(answer.status_code for answer in answers) == {200: 1, 408: 1, 429: 2}
