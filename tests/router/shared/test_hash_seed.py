"""All replicas of a namespace hash with one seed, which no client can guess. On a real Valkey."""

from collections.abc import AsyncIterator

import pytest

from router.shared.hash_seed import HashSeed
from router.shared.keys import Keys
from router.shared.server import RedisLink


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, 5.0)
    yield link
    await link.aclose()


async def test_the_first_replica_draws_a_seed_and_the_others_take_it_over(
    link: RedisLink, namespace: str
) -> None:
    a, b = (HashSeed(Keys(namespace).seed) for _ in range(2))
    assert a.value != b.value, "drawn at random"
    drawn = a.value
    assert not await a.agree(link)
    assert await b.agree(link)
    assert not await b.agree(link)
    assert a.value == b.value == drawn


async def test_a_seed_that_redis_lost_is_put_back(link: RedisLink, namespace: str) -> None:
    key = Keys(namespace).seed
    a, b = HashSeed(key), HashSeed(key)
    await a.agree(link)
    await b.agree(link)
    await link.call("DEL", key)
    assert not await b.agree(link)
    assert not await a.agree(link)
    assert a.value == b.value


@pytest.mark.parametrize("found", ["", "junk", "0x12", "f" * 17])
async def test_what_is_no_seed_is_replaced(link: RedisLink, namespace: str, found: str) -> None:
    key = Keys(namespace).seed
    await link.call("SET", key, found)
    a, b = HashSeed(key), HashSeed(key)
    assert not await a.agree(link)
    assert await b.agree(link)
    assert a.value == b.value


async def test_a_key_of_another_type_costs_nothing_but_the_seed(link: RedisLink, namespace: str) -> None:
    key = Keys(namespace).seed
    await link.call("LPUSH", key, "x")
    a = HashSeed(key)
    before = a.value
    assert not await a.agree(link)
    assert a.value == before
