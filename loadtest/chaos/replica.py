"""Replicas seen from outside: their own reports, and agreement of their decisions.

Comparing must not change state. `settled` only reads; it waits until nothing is in flight or buffered and
every replica counts the same tokens per worker. `disagreements` then asks every replica for every prompt, one
after the other: a prompt that was sent before is held already, so asking for it changes nothing.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from loadtest.workload import MODEL

SETTLE_TIMEOUT_S = 30.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Decision:
    """A replica's worker for a prompt, and the tokens that it expected to be cached there."""

    worker: str
    cached_tokens: int


class Replica:
    """One running replica, through its client with a base URL."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.url = str(client.base_url).rstrip("/")

    async def shared(self) -> dict[str, Any]:
        """Its report of the shared log; `AssertionError` if it is not ready."""
        answer = await self.client.get("/readiness")
        assert answer.status_code == 200, answer.text
        fields: dict[str, Any] = answer.json()["shared"]
        return fields

    async def warmed(self) -> None:
        """Wait until it has read the log to its end once."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while not (await self.shared())["warm"]:  # noqa: ASYNC110 - it is another process's state
                await asyncio.sleep(POLL_S)

    async def metric(self, name: str) -> float:
        """One of its metrics by name and labels as in the exposition; `KeyError` if there is none."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", (await self.client.get("/metrics")).text, re.M)
        if found is None:
            raise KeyError(name)
        return float(found[1])

    async def metrics(self) -> dict[str, float]:
        """All its metrics, by name with labels."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        samples = (line.rpartition(" ") for line in lines if line[:1] != "#")
        return {name: float(value) for name, _, value in samples}

    async def degraded(self) -> str | None:
        """Why it is degraded, None if it is not; its metric says the same or is a moment away."""
        reason: str | None = (await self.shared())["degraded"]
        return reason

    async def loads(self) -> dict[str, int]:
        """Requests in flight by worker, over all replicas."""
        loads = (await self.client.get("/get_loads")).json()["loads"]
        return {load["worker"]: load["load"] for load in loads}

    async def held(self) -> dict[str, int]:
        """Tokens held by worker."""
        workers = (await self.client.get("/workers")).json()["workers"]
        return {worker["id"]: worker["held_tokens"] for worker in workers}

    async def decide(self, text: str) -> Decision:
        """Ask it for a prompt, when it has heard that nothing is in flight."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while any((await self.loads()).values()):  # noqa: ASYNC110 - it is another process's state
                await asyncio.sleep(POLL_S)
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        answer = await self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        headers = answer.headers
        return Decision(headers["x-cacheway-worker"], int(headers["x-cacheway-cached-tokens"]))


async def settled(replicas: Sequence[Replica], within_s: float = SETTLE_TIMEOUT_S) -> None:
    """Wait until all replicas are well, idle and agree about cached tokens.

    `TimeoutError` says what differs.
    """
    views: list[tuple[object, ...]] = []
    try:
        async with asyncio.timeout(within_s):
            while True:
                views = [await _view(replica) for replica in replicas]
                if all(view == views[0] and view[:3] == (None, 0, 0.0) for view in views):
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise TimeoutError(f"(degraded, in flight, buffered, held) by replica: {views}") from error


async def _view(replica: Replica) -> tuple[object, ...]:
    """Return what it says of itself; the first two only while these show that it is not at rest."""
    at_rest = await replica.degraded(), sum((await replica.loads()).values())
    if at_rest != (None, 0):
        return at_rest
    buffered_ops = await replica.metric("cacheway_log_buffered_ops")
    return (*at_rest, buffered_ops, tuple((await replica.held()).items()))


async def disagreements(replicas: Sequence[Replica], prompts: Iterable[str]) -> list[str]:
    """Return a line for each prompt on which replicas decide differently, also when they are asked again.

    Lessons from an answer (tokens per byte, prices) may reach the others between two questions.
    """
    lines = []
    for prompt in prompts:
        for _ in range(2):
            decisions = [await replica.decide(prompt) for replica in replicas]
            if len(set(decisions)) == 1:
                break
        else:
            lines.append(f"{prompt[:20]!r}: {decisions}")
    return lines
