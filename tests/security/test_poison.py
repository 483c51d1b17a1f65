"""Numbers, names and log entries that try to break gateways with a shared log.

Before they were bounded, one request with ``n`` of 10**17 left a reservation for an hour and ended the
snapshots of the fleet, and one entry in Redis stopped all replicas for good.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from fakes.running import Fleet, RunningGateway, until, until_async
from redis.asyncio import Redis

from policies import Finished, encode_ops

MESSAGE: dict[str, Any] = {"model": "emulated", "prompt": "hello", "max_tokens": 2}


@pytest_asyncio.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_url) as client:
        yield client


async def is_served(gateway: RunningGateway) -> bool:
    answer = await gateway.client.post("/v1/completions", json=MESSAGE)
    return answer.status_code == 200


async def two(fleet: Fleet) -> tuple[RunningGateway, RunningGateway]:
    """Two replicas in front of two engines, each warm."""
    urls = [(await fleet.engine()).url for _ in range(2)]
    one, other = await fleet.gateway(*urls), await fleet.gateway(*urls)
    for gateway in (one, other):
        await until(lambda gateway=gateway: gateway.process.shared.status.ready)
    return one, other


async def snapshot_written(gateway: RunningGateway) -> None:
    """Wait until a snapshot is written that begins now or later."""
    log, now_us = gateway.process.shared, gateway.process.clock.now_us()

    def is_new() -> bool:
        age_s = log.status.snapshot_age_s
        return age_s is not None and gateway.process.clock.now_us() - age_s * 1e6 > now_us

    await until(is_new)
    await until(lambda: log.status.degraded_reason is None)  # a busy Redis answers late for a while


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"n": 10**16}),
        ("/v1/completions", {"n": 10**17, "max_tokens": 2000}),
        ("/v1/completions", {"n": 10**400}),
        ("/v1/completions", {"max_tokens": 10**309}),
        ("/v1/chat/completions", {"n": 2**63, "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/chat/completions", {"max_completion_tokens": 2**64, "messages": []}),
        ("/v1/responses", {"max_output_tokens": 10**18, "input": "x"}),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 10**17}}),
        ("/generate", {"text": "x", "sampling_params": [{"n": 10**17}]}),
        ("/v1/completions", {"priority": 10**400}),
        ("/v1/completions", {"model": "z" * 300_000}),
        ("/explain", {"n": 10**400}),
    ],
)
async def test_no_number_of_a_request_reserves_anything_or_ends_the_snapshots(
    fleet: Fleet, path: str, fields: dict[str, Any]
) -> None:
    one, other = await two(fleet)
    answers = await asyncio.gather(*(one.client.post(path, json=MESSAGE | fields) for _ in range(12)))
    assert {answer.status_code for answer in answers} == {400}
    assert all("error" in answer.json() for answer in answers)
    for gateway in (one, other):
        await until(gateway.idle)
        assert await is_served(gateway)
    await snapshot_written(one)


def entry(*ops: object) -> bytes:
    return msgspec.msgpack.encode(ops)


POISON = {
    "no UTF-8": bytes.fromhex("91930ca2fffe01"),
    "too deep": b"\x91" * 100_000 + b"\xc0",
    "junk": b"\xc1\xff\x00",
    "nothing": b"",
    "many nothings": b"\xdc\xff\xff" + b"\xc0" * 65_535,
    "an infinite price": entry([30, "default", 2**50, "evil", float("inf"), float("nan"), 0.0]),
    "a price of zero": entry([30, "default", 2**50, "evil", 0.0, 0.0, 0.0]),
    "no bytes in a token": entry([31, "emulated", 2**50, "evil", 0.0]),
    "a worker at no URL": entry([20, "evil:1", 5, "evil", "not a url"]),
    "a worker at an odd URL": entry([20, "evil:2", 5, "evil", "http://[::1"]),
    "a worker at no port": entry([20, "evil:3", 5, "evil", "http://host:99999999"]),
    "a capacity that nobody has": entry([20, "evil:4", 5, "evil", "http://evil:4", "plain", False, 2**63]),
    "a load that nobody has": entry([10, "evil", 5, "evil:5", "evil", 2**62, 2**62, 2**62]),
    "a load below nothing": entry([10, "evil", 5, "evil:5", "evil", -5, -5, -5]),
    "half a hash": entry([10, "evil", 5, "evil:5", "evil", 5, 5, 5, [b"123"]]),
    "a time of no clock": entry([12, "evil", 2**63], [13, "evil", -1]),
    "a circuit of no state": entry([22, "evil:6", 5, "evil", "ajar"]),
}


async def test_no_entry_of_the_log_stops_a_replica_and_the_next_one_is_applied(
    fleet: Fleet, redis: "Redis", namespace: str
) -> None:
    one, other = await two(fleet)
    key = f"cw:{{{namespace}}}:log"
    for name, poison in POISON.items():
        skipped = [sum(gateway.process.shared.status.skipped_ops.values()) for gateway in (one, other)]
        await redis.xadd(key, {"v": 1, "r": "evil", "o": poison})
        await redis.xadd(key, {"v": 1, "r": "evil", "o": encode_ops([Finished(f"behind {name}", 5)])})
        for gateway, before in zip((one, other), skipped, strict=True):
            await until(partial(gateway.process.fleet.loads.has_finished, f"behind {name}"))
            assert gateway.process.shared.status.connected
            assert await is_served(gateway)
            added = await gateway.client.post(
                "/workers", json={"url": f"http://127.0.0.1:{gateway.server.config.port}"}
            )
            assert added.status_code == 202, name
            worker_id = added.json()["worker_id"]
            removed = await gateway.client.delete(f"/workers/{worker_id}")
            assert removed.status_code == 202
            if poison:
                assert sum(gateway.process.shared.status.skipped_ops.values()) > before, name
        await snapshot_written(one)


async def test_junk_beside_the_log_degrades_nothing_for_good(
    fleet: Fleet, redis: "Redis", namespace: str
) -> None:
    """Keys of another type, fake replicas, and a snapshot that no replica can read or replace."""
    one, other = await two(fleet)
    prefix = f"cw:{{{namespace}}}:"
    await redis.zadd(f"{prefix}replicas", {b"\xff\xfe": 5, b"evil": 1e300, "x" * 5000: 1})
    await redis.set(f"{prefix}replica:evil", b"\xff\xfe")
    await redis.hset(
        f"{prefix}snap", mapping={"at": 2**60, "id": "99999999999999-0", "mark": "99999999999999-0"}
    )
    await redis.set(f"{prefix}lease", "for ever")
    for gateway in (one, other):
        assert await is_served(gateway)
    await until_async(lambda: _covers(redis, f"{prefix}snap"))
    newcomer = await fleet.gateway(*(engine.url for engine in fleet.engines))
    await until(lambda: newcomer.process.shared.status.ready)
    assert newcomer.process.shared.status.degraded_reason is None
    assert (await newcomer.client.get("/replicas")).status_code == 200


async def _covers(redis: "Redis", key: str) -> bool:
    """True if the snapshot's place is one that the log has reached."""
    place = await redis.hget(key, "id")
    return place is not None and not place.startswith(b"999")


@pytest.mark.parametrize("key", ["log", "probe", "replicas"])
async def test_a_key_of_another_type_keeps_nobody_from_sharing(
    fleet: Fleet, redis: "Redis", namespace: str, key: str
) -> None:
    """Redis refuses the heartbeat or the log as long as an attacker's text is in its place."""
    one, other = await two(fleet)
    await redis.set(f"cw:{{{namespace}}}:{key}", "junk")
    for gateway in (one, other):
        assert await is_served(gateway)
    await until_async(lambda: _is_ours(redis, f"cw:{{{namespace}}}:{key}"))
    for gateway in (one, other):
        assert await is_served(gateway)
        await until(lambda gateway=gateway: gateway.process.shared.status.degraded_reason is None)
        await until(lambda gateway=gateway: gateway.process.shared.status.connected)
    await snapshot_written(one)


async def _is_ours(redis: "Redis", key: str) -> bool:
    """True if the text is gone."""
    return bool(await redis.type(key) != b"string")
