"""Limits hold over replicas on a real server, and by fair shares without one; no request waits long."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from fakes.leased import Allowed
from redis import Redis

from loadtest.chaos.valkey import SentinelGroup, ValkeyServer
from router.shared import Charge, LogClock
from router.shared.keys import Keys
from router.shared.leases import ASKS_MAX, ROUND_MAX, Leases

ACCOUNT = "tenant"
TTL_S = 1.0


class Replica:
    """The leases of one replica, and the results of its requests."""

    def __init__(self, url: str, namespace: str, name: str, names: list[str], limits: Allowed) -> None:
        self.leases = Leases(
            url,
            Keys(namespace),
            name,
            now_us=LogClock().now_us,
            replicas=lambda: names,
            ttl_s=TTL_S,
            loop=asyncio.get_running_loop(),
        )
        self.limits = limits
        self.task = asyncio.create_task(self.leases.run())

    def charge(self, tokens: int = 1, decided: Callable[[Charge], None] = lambda charge: None) -> Charge:
        """Charge a request."""
        return self.leases.charge(self.leases.account(ACCOUNT, self.limits), tokens, decided)

    async def request(self, tokens: int = 1) -> Charge:
        """Charge a request, and wait for the verdict."""
        verdict: asyncio.Future[Charge] = asyncio.get_running_loop().create_future()
        charge = self.charge(tokens, verdict.set_result)
        if charge.granted or charge.ended:
            return charge
        async with asyncio.timeout(60):
            return await verdict

    async def granted(self, requests: int, tokens: int = 1) -> int:
        """Return how many of some simultaneous requests are granted; they end at once."""
        charges = await asyncio.gather(*(self.request(tokens) for _ in range(requests)))
        granted = [charge for charge in charges if charge.granted]
        for charge in granted:
            self.leases.settle(charge, tokens)
        return len(granted)

    def quiet(self) -> bool:
        """True if Redis knows all charges."""
        return not self.leases.account(ACCOUNT, self.limits).active

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def fleet(url: str, namespace: str, limits: Allowed, count: int) -> AsyncIterator[list[Replica]]:
    names = [f"r{number}" for number in range(count)]
    replicas = [Replica(url, namespace, name, names, limits) for name in names]
    # The first answer waits for a connection; later ones have it.
    for replica in replicas:
        await connected(replica)
    try:
        yield replicas
    finally:
        for replica in replicas:
            await replica.end()


async def connected(replica: Replica) -> None:
    """Wait until a replica has asked Redis."""
    leases = replica.leases
    leases.charge(leases.account("warm-up", Allowed(1_000_000)), 1, lambda charge: None)
    await until(lambda: replica.leases.rounds > 0)


async def retried(replica: Replica, tokens: int) -> None:
    """Send requests until one is granted."""
    async with asyncio.timeout(60):
        while not await replica.granted(1, tokens):  # noqa: ASYNC110 - it is asked again each time
            await asyncio.sleep(0.05)


async def until(true: Callable[[], bool]) -> None:
    """Wait for a condition, for as long as a busy machine may take."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - plain state without signals
            await asyncio.sleep(0.01)


async def test_a_limit_holds_over_eight_replicas(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(100), 8) as replicas:
        granted = await asyncio.gather(*(replica.granted(50) for replica in replicas))
        assert sum(granted) == 100 or any(replica.leases.alone for replica in replicas)


async def test_requests_that_wait_are_decided_in_their_order(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(0, 100), 1) as (replica,):
        outcomes = await asyncio.gather(*(replica.request(tokens) for tokens in (70, 40, 30)))
        assert [outcome.granted for outcome in outcomes] == [True, False, True]


async def test_leases_go_back_when_nobody_uses_them(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(0, 0, 100), 2) as (one, other):
        charge = await one.request(100)
        assert charge.granted
        assert not await other.granted(1)
        one.leases.settle(charge, 100)
        await until(lambda: charge.account.concurrent == 0)
        await retried(other, 100)


async def test_a_replica_that_ends_gives_everything_back(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(0, 0, 100), 2) as (one, other):
        charge = await one.request(100)
        assert charge.granted
        one.leases.settle(charge, 100)
        await one.end()
        assert await other.granted(1, 100)


async def test_a_replica_that_ends_gives_back_what_many_accounts_hold(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(0, 0, 100), 2) as (one, other):
        names = [f"tenant-{number}" for number in range(2 * ROUND_MAX + 1)]

        def charged(replica: Replica) -> list[Charge]:
            leases = replica.leases
            accounts = [leases.account(name, replica.limits) for name in names]
            return [leases.charge(account, 100, lambda charge: None) for account in accounts]

        charges = charged(one)
        await until(lambda: all(charge.granted for charge in charges))
        for charge in charges:
            one.leases.settle(charge, 100)
        await one.end()
        others = charged(other)
        await until(lambda: all(charge.granted for charge in others))


async def test_tokens_in_flight_of_a_replica_that_died_come_back(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(0, 0, 100), 2) as (one, other):
        assert (await one.request(100)).granted
        one.leases._goodbye = one.leases._link.aclose  # type: ignore[method-assign]
        one.task.cancel()
        await retried(other, 100)


async def test_a_long_request_keeps_its_tokens_in_flight(redis_url: str, namespace: str) -> None:
    """It is renewed while it lasts, three times as long here as an unrenewed one is believed."""
    async with fleet(redis_url, namespace, Allowed(0, 0, 100), 2) as (one, other):
        assert (await one.request(100)).granted
        rounds = one.leases.rounds
        await until(lambda: one.leases.rounds >= rounds + 3)
        assert not await other.granted(1)


async def test_a_script_that_the_server_forgot_is_loaded_again(redis_url: str, namespace: str) -> None:
    async with fleet(redis_url, namespace, Allowed(100), 1) as (replica,):
        with Redis.from_url(redis_url) as redis:
            redis.script_flush()
        rounds = replica.leases.rounds
        assert await replica.granted(1)
        await until(lambda: replica.leases.rounds > rounds)
        assert replica.leases.degraded_reason is None


async def test_each_replica_falls_back_to_its_share_when_redis_is_gone(
    namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """100 over three replicas: 34, 33 and 33; reported once it is back, they leave nothing."""
    caplog.set_level(logging.INFO)
    async with ValkeyServer() as valkey, fleet(valkey.url, namespace, Allowed(100), 3) as replicas:
        await valkey.kill()
        assert [await replica.granted(60) for replica in replicas] == [34, 33, 33]
        await until(lambda: all(replica.leases.degraded_reason for replica in replicas))
        await valkey.start()
        await until(lambda: not any(replica.leases.degraded_reason for replica in replicas))
        for replica in replicas:
            await until(replica.quiet)
        assert [await replica.granted(20) for replica in replicas] == [0, 0, 0]
    events = [record.__dict__.get("event") for record in caplog.records]
    assert events.count("limits.degraded") == events.count("limits.recovered") == 3


async def test_what_redis_lost_is_told_again_also_by_replicas_that_nobody_asks(namespace: str) -> None:
    async with ValkeyServer() as valkey, fleet(valkey.url, namespace, Allowed(100), 2) as (one, other):
        assert await one.granted(60) >= 50  # 60, or its share if the machine is too busy
        used = one.leases.account(ACCOUNT, one.limits).used_requests
        await until(one.quiet)
        await valkey.kill()
        await valkey.start()
        await until(lambda: _told(valkey.url, namespace))
        await connected(other)
        # On a busy machine a share decides a late round, which is then counted.
        assert 100 - used <= await other.granted(100) <= 100 - used + other.leases.alone


async def test_a_primary_that_was_replaced_is_left_although_it_grants(namespace: str) -> None:
    """It slept through a failover, say; only a request to it reveals that: no sentinel reports it here."""
    async with SentinelGroup() as group, fleet(group.url, namespace, Allowed(100), 1) as (replica,):
        old, new = group.servers
        assert await replica.granted(60) >= 50
        await until(replica.quiet)
        assert _told(old.url, namespace)
        for sentinel in group.sentinels:
            await sentinel.command("SENTINEL", "REMOVE", group.SERVICE)
        await new.command("REPLICAOF", "NO", "ONE")
        await new.command("FLUSHALL")
        for sentinel in group.sentinels:
            await sentinel.command("SENTINEL", "MONITOR", group.SERVICE, new.host, str(new.port), "2")
        await until(lambda: _told(new.url, namespace))
        assert (await old.command("ROLE"))[0] == b"master"
        assert replica.leases.degraded_reason is None


def _told(url: str, namespace: str) -> bool:
    """True if the server knows the account."""
    with Redis.from_url(url) as redis:
        return bool(redis.exists(Keys(namespace).limits(ACCOUNT)))


async def test_nobody_waits_for_a_server_that_is_paused(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request waits a little, the others not at all, long before the connection is given up."""
    monkeypatch.setattr("router.shared.leases.TIMEOUT_S", 60.0)
    async with ValkeyServer() as valkey, fleet(valkey.url, namespace, Allowed(100), 4) as replicas:
        valkey.pause()
        replica, granted = replicas[0], 0
        while not replica.leases._overdue:  # a signal takes effect when the kernel gets to it
            granted += await replica.granted(1)
        charges = [replica.charge() for _ in range(99)]
        assert all(charge.granted or charge.refusal for charge in charges)
        assert granted + sum(charge.granted for charge in charges) == 25
        valkey.resume()
        await until(lambda: not replica.leases.degraded_reason)
        await until(replica.quiet)
        assert await replica.granted(1) == 1


async def test_a_server_that_refuses_degrades_and_recovers(namespace: str) -> None:
    async with ValkeyServer() as valkey, fleet(valkey.url, namespace, Allowed(100), 1) as (replica,):
        with Redis.from_url(valkey.url) as redis:
            redis.execute_command("ACL", "SETUSER", "default", "-evalsha")
            assert await replica.granted(1) == 1
            await until(lambda: replica.leases.degraded_reason is not None)
            redis.execute_command("ACL", "SETUSER", "default", "+evalsha")
            await until(lambda: replica.leases.degraded_reason is None)


async def test_no_more_wait_than_fit(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.shared.leases.TIMEOUT_S", 60.0)
    async with ValkeyServer() as valkey, fleet(valkey.url, namespace, Allowed(100_000), 1) as (replica,):
        valkey.pause()
        charges = [replica.charge() for _ in range(ASKS_MAX + 10)]
        waiting = [charge for charge in charges if not charge.granted]
        assert 0 < len(waiting) <= ASKS_MAX  # one may have been granted while Valkey fell asleep
        await until(lambda: all(charge.granted for charge in waiting))
        valkey.resume()


async def test_an_account_that_nobody_uses_is_forgotten(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.shared.leases.FORGET_LOOKS", 1)
    async with fleet(redis_url, namespace, Allowed(0, 10), 1) as (replica,):
        assert replica.charge(11).refusal
        assert (await replica.request(10)).granted
        replica.leases.account("never used", Allowed(1))
        await until(lambda: "never used" not in replica.leases._accounts)
        assert ACCOUNT in replica.leases._accounts


async def test_without_charges_there_is_no_connection(namespace: str) -> None:
    leases = Leases(
        "redis://127.0.0.1:1",
        Keys(namespace),
        "r",
        now_us=LogClock().now_us,
        replicas=tuple,
        ttl_s=TTL_S,
        loop=asyncio.get_running_loop(),
    )
    task = asyncio.create_task(leases.run())
    await asyncio.sleep(0)
    assert leases.rounds == 0
    assert leases.degraded_reason is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
