"""A tenant's limits hold over several gateways, on real sockets, and go on without Redis."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.running import WITHIN_S, Fleet, RunningGateway, until

from loadtest.chaos.valkey import ValkeyServer
from router.shared import leases
from router.tenants.keys import digest_of

CHAT = {"model": "emulated", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """A tenant with 40 requests per minute, one with few tokens, and one without limits."""

    def entry(name: str, limits: str) -> str:
        return f"  {name}:\n    keys: ['sha256:{digest_of(f'cw-{name}'.encode()).hex()}']\n{limits}"

    file = tmp_path / "keys.yaml"
    file.write_text(
        "tenants:\n"
        + entry("acme", "    limits: {requests_per_minute: 40}\n")
        + entry("small", "    limits: {tokens_per_minute: 300, concurrent_tokens: 300}\n")
        + entry("free", "")
    )
    return file


@contextlib.asynccontextmanager
async def limited(redis_url: str, namespace: str, keys_file: Path, count: int) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(redis_url, namespace, stack)
        engine = await fleet.engine()
        for _ in range(count):
            # On a busy machine no gateway may believe itself alone: its fair share would be the whole limit.
            shared = {"heartbeat_ttl_s": 30.0}
            await fleet.gateway(engine.url, tenancy={"keys_file": str(keys_file)}, shared=shared)
        # Fair shares need to know who else lives.
        shareds = [gateway.process.shared for gateway in fleet.gateways]
        await until(lambda: all(len(shared.status.replicas) == count for shared in shareds))
        yield fleet
        for gateway in fleet.gateways:
            await until(gateway.idle)


async def asked(gateway: RunningGateway, tenant: str, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer cw-{tenant}"}
    return await gateway.client.post("/v1/chat/completions", json={**CHAT, **more}, headers=headers)


async def statuses(gateways: list[RunningGateway], tenant: str, requests: int) -> Counter[int]:
    """Return the statuses of some requests sent at once, each to the next gateway."""
    answers = await asyncio.gather(
        *(asked(gateways[number % len(gateways)], tenant) for number in range(requests))
    )
    return Counter(answer.status_code for answer in answers)


async def test_a_limit_is_the_same_over_three_gateways(
    redis_url: str, namespace: str, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every charge waits for Redis here: on a busy machine shares would decide, which admit more or less."""
    monkeypatch.setattr(leases, "WAIT_S", WITHIN_S)
    monkeypatch.setattr(leases, "TIMEOUT_S", WITHIN_S)
    async with limited(redis_url, namespace, keys_file, 3) as fleet:
        assert await statuses(fleet.gateways, "acme", 90) == {200: 40, 429: 50}
        rejected = await asked(fleet.gateways[0], "acme")
        assert rejected.status_code == 429
        assert rejected.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(rejected.headers["retry-after"]) <= 61
        assert rejected.headers["x-ratelimit-limit-requests"] == "40"
        assert rejected.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await statuses(fleet.gateways, "free", 50))[200] == 50
        await until(lambda: not fleet.gateways[0].process.tenants.leases.degraded_reason)
        metrics = (await fleet.gateways[0].client.get("/metrics")).text
        assert 'cacheway_limit_rejections_total{limit="requests",tenant="acme"}' in metrics
        assert 'cacheway_degraded{component="limits"} 0.0' in metrics


async def test_tokens_are_settled_by_what_was_used(redis_url: str, namespace: str, keys_file: Path) -> None:
    """Fewer tokens are used than were expected, so there is room for a second request."""
    async with limited(redis_url, namespace, keys_file, 1) as fleet:
        (gateway,) = fleet.gateways
        first = await asked(gateway, "small", max_tokens=150)
        used = first.json()["usage"]["total_tokens"]
        account = gateway.process.tenants.leases._accounts["small"]
        await until(lambda: account.used_tokens == used)
        assert (await asked(gateway, "small", max_tokens=150)).status_code == 200
        too_large = await asked(gateway, "small", max_tokens=400, n=3)
        assert too_large.status_code == 429
        assert "larger than the limit" in too_large.json()["error"]["message"]


async def test_without_redis_each_gateway_keeps_to_its_share(namespace: str, keys_file: Path) -> None:
    """40 over two gateways: 20 each."""
    async with ValkeyServer() as valkey, limited(valkey.url, namespace, keys_file, 2) as fleet:
        await valkey.kill()
        for gateway in fleet.gateways:
            assert (await statuses([gateway], "acme", 30)) == {200: 20, 429: 10}
        gateway = fleet.gateways[0]
        await until(lambda: gateway.process.tenants.leases.degraded_reason)
        assert 'cacheway_degraded{component="limits"} 1.0' in (await gateway.client.get("/metrics")).text
        await valkey.start()
        accounts = [gateway.process.tenants.leases.known("acme") for gateway in fleet.gateways]
        await until(lambda: not any(account is None or account.active for account in accounts))
        await until(
            lambda: not any(gateway.process.tenants.leases.degraded_reason for gateway in fleet.gateways)
        )
        assert (await statuses(fleet.gateways, "acme", 4)) == {429: 4}
