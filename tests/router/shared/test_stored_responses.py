"""The worker of a stored response is known to all replicas, on a real server; without one, to its own."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from fakes.running import until
from redis import Redis

from router.session_rules import SessionRules
from router.shared.keys import Keys
from router.shared.stored_responses import DUE_MAX, UNKNOWN, StoredResponses, name_of

Make = Callable[..., StoredResponses]


@pytest.fixture
async def make(redis_url: str, namespace: str) -> AsyncIterator[Make]:
    """Start the memory of a replica."""
    tasks = []

    def start(name: str = "r1", url: str = redis_url, **rules: float) -> StoredResponses:
        made = StoredResponses(SessionRules(**rules), url, Keys(namespace), name)  # type: ignore[arg-type]
        tasks.append(asyncio.create_task(made.run()))
        return made

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def found(responses: StoredResponses, tenant: str, response_id: str) -> str | None:
    answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    responses.find(tenant, response_id, answer.set_result)
    async with asyncio.timeout(60):
        return await answer


async def told(responses: StoredResponses) -> None:
    await until(lambda: not responses.due)


async def test_every_replica_finds_the_worker(make: Make) -> None:
    one, other = make("r1"), make("r2")
    one.keep("acme", "resp_1", "w1:80")
    await told(one)
    for each in (one, other):
        assert await found(each, "acme", "resp_1") == "w1:80"
        assert await found(each, "acme", "resp_2") == UNKNOWN
        assert await found(each, "other", "resp_1") == UNKNOWN


async def test_what_is_kept_ends_by_itself(make: Make, redis_url: str, namespace: str) -> None:
    one = make(response_ttl_s=0.05)
    one.keep("", "resp_1", "w1:80")
    await told(one)
    with Redis.from_url(redis_url) as redis:
        await until(lambda: not redis.exists(Keys(namespace).response(name_of("", "resp_1"))))
    assert await found(one, "", "resp_1") == UNKNOWN


async def test_the_oldest_one_is_forgotten_everywhere(make: Make) -> None:
    one, other = make("r1", responses_max=2), make("r2")
    for number in range(3):
        one.keep("", f"resp_{number}", "w1:80")
    await told(one)
    assert len(one) == 2
    assert [await found(other, "", f"resp_{number}") for number in range(3)] == [UNKNOWN, "w1:80", "w1:80"]


async def test_turned_off_nothing_is_kept(make: Make) -> None:
    one = make(responses_max=0)
    one.keep("", "resp_1", "w1:80")
    assert (one.is_on, len(one), one.due) == (False, 0, 0)


async def test_without_redis_a_replica_knows_its_own(make: Make) -> None:
    one = make(url="redis://127.0.0.1:1")
    one.keep("", "resp_1", "w1:80")
    assert await found(one, "", "resp_1") == "w1:80"
    assert await found(one, "", "resp_2") is None
    for number in range(DUE_MAX + 5):
        one.keep("", f"resp_{number}", "w1:80")
    assert one.due <= DUE_MAX + 256
    assert one.dropped > 0


async def test_what_another_hand_wrote_is_bounded(make: Make, redis_url: str, namespace: str) -> None:
    one = make()
    with Redis.from_url(redis_url) as redis:
        redis.set(Keys(namespace).response(name_of("", "resp_1")), b"x" * 10_000)
        redis.set(Keys(namespace).response(name_of("", "resp_2")), b"\xff")
        redis.hset(Keys(namespace).response(name_of("", "resp_3")), "a", "b")
    assert await found(one, "", "resp_1") == UNKNOWN
    assert await found(one, "", "resp_2") == "\ufffd"
    assert await found(one, "", "resp_3") is None


def test_names_of_tenants_and_responses_do_not_run_together() -> None:
    assert name_of("a", "b") != name_of("ab", "")
    assert name_of("", "resp_\ud800")
