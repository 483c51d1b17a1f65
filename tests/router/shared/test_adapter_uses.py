"""The newest use of each adapter is known to all replicas, on a real server; without one, to its own."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest
from fakes.running import until
from redis import Redis

from router.shared import adapter_uses
from router.shared.adapter_uses import KEPT_US, LEAVES_US, SYNC_US, TOLD_US, AdapterUses, Use
from router.shared.keys import Keys

Make = Callable[..., AdapterUses]

NOW_US = 1_700_000_000_000_000


class Clock:
    now_us = NOW_US


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make(redis_url: str, namespace: str, clock: Clock) -> AsyncIterator[Make]:
    made: list[AdapterUses] = []

    def make(url: str = redis_url) -> AdapterUses:
        made.append(AdapterUses(lambda: clock.now_us, url, Keys(namespace), f"r{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def redis(redis_url: str) -> "Redis[bytes]":
    return Redis.from_url(redis_url)


async def test_each_replica_knows_the_newest_use(
    make: Make, clock: Clock, redis: "Redis[bytes]", namespace: str
) -> None:
    one, other, key = make(), make(), Keys(namespace).adapters
    one.begun("a")
    await until(lambda: redis.zscore(key, "a") == NOW_US)
    clock.now_us += 10 * TOLD_US
    other.begun("b")
    await until(lambda: redis.zscore(key, "b") == clock.now_us)
    expected = {"a": NOW_US, "b": clock.now_us, "c": 0}
    for each in (one, other):
        assert await each.newest("abc") == expected
    assert 0 < redis.pttl(key) <= KEPT_US // 1000


async def test_a_use_is_told_once_a_second_and_forgotten_after_a_day(
    make: Make, clock: Clock, redis: "Redis[bytes]", namespace: str
) -> None:
    uses, key = make(), Keys(namespace).adapters
    uses.begun("old")
    await until(lambda: redis.zcard(key) == 1)
    clock.now_us += TOLD_US // 2
    uses.begun("old")
    assert await uses.newest(["old"]) == {"old": clock.now_us}
    assert redis.zscore(key, "old") == NOW_US
    clock.now_us += KEPT_US + TOLD_US
    uses.begun("new")
    await until(lambda: redis.zrange(key, 0, -1) == [b"new"])


async def test_what_others_wrote_does_no_harm(make: Make, redis: "Redis[bytes]", namespace: str) -> None:
    uses, key = make(), Keys(namespace).adapters
    redis.zadd(key, {b"\xff": 5, b"a": float("inf"), b"b": 7})
    assert await uses.newest("ab") == {"a": 0, "b": 7}
    redis.delete(key)
    redis.set(key, "text")
    uses.begun("a")
    assert await uses.newest("a") == {"a": NOW_US}


async def test_all_replicas_know_where_an_adapter_leaves(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_uses, "GRACE_S", 0.0)
    one, other, place = make(), make(), ("w1:80", "a\u00e9")
    one.leaves(place)
    assert (one.leaving(), other.leaving()) == ({place}, frozenset())
    await one.all_know(place)

    reading = other.stale()
    assert reading is not None
    assert other.stale() is reading
    await reading
    assert other.leaving() == {place}
    assert other.stale() is None
    assert await other.is_leaving(place)

    await other.returned(place)  # it was loaded there by this one
    assert other.leaving() == frozenset()
    clock.now_us += SYNC_US + 1
    reading = other.stale()
    assert reading is not None
    await reading
    assert other.leaving() == frozenset()
    assert one.leaving() == {place}
    assert not await one.is_leaving(place), "another replica has loaded it again"
    clock.now_us += LEAVES_US
    assert one.leaving() == frozenset()


async def test_without_a_server_a_request_waits_once_a_second_at_most(make: Make, clock: Clock) -> None:
    uses = make("redis://127.0.0.1:1")
    uses.leaves(("w", "a"))
    await uses.all_know(("w", "a"))
    reading = uses.stale()
    assert reading is not None
    await reading
    assert uses.stale() is None
    assert uses.leaving() == {("w", "a")}
    await uses.returned(("w", "a"))
    assert AdapterUses(lambda: clock.now_us).stale() is None


async def test_without_a_server_each_process_knows_its_own_uses(make: Make, clock: Clock) -> None:
    for uses in (make("redis://127.0.0.1:1"), AdapterUses(lambda: clock.now_us)):
        uses.begun("a")
        assert await uses.newest("ab") == {"a": NOW_US, "b": 0}
        await uses.close()


def in_flight(uses: AdapterUses) -> Use:
    use = uses.begun("a")
    assert not uses.is_busy("a")
    use.in_flight = True
    assert uses.is_busy("a")
    return use


async def test_a_request_is_in_flight_until_it_ends_or_is_forgotten(clock: Clock) -> None:
    uses = AdapterUses(lambda: clock.now_us)
    assert not uses.is_busy("a")
    use = in_flight(uses)
    use.in_flight = False
    assert not uses.is_busy("a")
    use = in_flight(uses)
    del use
    gc.collect()
    assert not uses.is_busy("a")


async def test_adapters_that_are_no_longer_declared_are_forgotten(clock: Clock) -> None:
    uses = AdapterUses(lambda: clock.now_us)
    kept = [uses.begun(name) for name in "ab"]
    for use in kept:
        use.in_flight = True
    uses.keep("b")
    assert len(kept) == 2
    assert [uses.is_busy(name) for name in "ab"] == [False, True]
    assert await uses.newest("ab") == {"a": 0, "b": NOW_US}
    await asyncio.sleep(0)
