"""Work that is left when all clients have ended: within `EMPTY_S` it must be nothing.

At every living replica no request in flight or waiting and no second of prefill reserved, on links no bytes;
in every engine nothing that runs, waits or is held for another engine.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import httpx

from loadtest.chaos.replica import Replica

EMPTY_S = 15.0
POLL_S = 0.1


async def leftovers(
    replicas: Sequence[Replica], engine_urls: Sequence[str], within_s: float = EMPTY_S
) -> list[str]:
    """Return leftovers at living replicas, engines and links after ``within_s``, in words."""
    left: list[str] = []
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while left := await _not_empty(replicas, engine_urls, client):  # noqa: ASYNC110 - it is other processes' state
                    await asyncio.sleep(POLL_S)
    return left


async def _not_empty(
    replicas: Sequence[Replica], engine_urls: Sequence[str], client: httpx.AsyncClient
) -> list[str]:
    left: list[str] = []

    def found(where: str, **amounts: float) -> None:
        left.extend(f"{where}: {name} {amount:g}" for name, amount in amounts.items() if amount)

    for replica in replicas:
        workers = (await replica.client.get("/workers")).json()["workers"]
        queue = (await replica.client.get("/queue")).json()
        found(
            replica.url,
            exchanges=await replica.metric("cacheway_inflight_requests"),
            in_flight=sum(worker["inflight_requests"] for worker in workers),
            tokens_in_flight=sum(worker["inflight_tokens"] for worker in workers),
            backlog_s=sum(worker["backlog_s"] for worker in workers),
            waiting=queue["waiting"]["requests"],
            uncached_tokens_waiting=queue["waiting"]["uncached_tokens"],
        )
    for url in engine_urls:
        stats = (await client.get(f"{url}/_stats")).json()
        counted = {name: stats[name] for name in ("running", "waiting", "held", "under_way") if name in stats}
        found(url, **counted, **stats.get("handover", {}))
    return left
