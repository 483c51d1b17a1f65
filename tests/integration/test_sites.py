"""Two sites on real sockets: prefill workers in both, decode workers in one, two replicas, a mortal link.

The far engine is five times as fast, and its KV leaves over an emulated link (`loadtest.engine.link`).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fakes.running import Fleet, RunningGateway, until

from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.link.server import LinkServer
from policies.disaggregation import OffloadReason
from router.fleet import Health

LINK = "dc2>dc1"
KV_TOKEN_BYTES = 327_680
"""Size in the model that an engine without a profile emulates: 80 layers of 8 heads of 128, key and value."""

SECTIONS: dict[str, dict[str, Any]] = {
    "fleet": {"site": "dc1", "links": {LINK: {"gbps": 100, "rtt_ms": 2}}},
    "placement": {"models": {"*": {"kv_bytes_per_token": KV_TOKEN_BYTES}}},
    "offload": {"threshold_tokens": 1000},
}


class Sites:
    """The fleet."""

    def __init__(self, fleet: Fleet, link: LinkServer) -> None:
        self.fleet = fleet
        self.link = link
        self.replicas: list[RunningGateway] = []
        self.engines: dict[str, EmulatedEngine] = {}

    async def open(self, protocol: str) -> None:
        self.replicas = [await self.fleet.gateway(**SECTIONS) for _ in range(2)]
        await self.add("near", "prefill", protocol, "dc1", 20_000)
        await self.add("far", "prefill", protocol, "dc2", 100_000)
        for name in ("d1", "d2"):
            await self.add(name, "decode", protocol, "dc1", 20_000)

    async def add(self, name: str, part: Any, protocol: Any, site: str, tokens_per_s: float) -> None:
        handover = HandoverSettings(
            protocol=protocol,
            part=part,
            heartbeat_s=0.5,
            lease_s=3.0,
            waiting_s=3.0,
            kv_link=self.link.url if site == "dc2" else "",
        )
        engine = await self.fleet.engine(
            EngineSettings(
                dialect="sglang" if protocol == "sglang" else "vllm",
                handover=handover,
                prefill_tokens_per_s=tokens_per_s,
                prefill_base_ms=1.0,
                tpot_ms=0.5,
                block_tokens=16,
            )
        )
        labels = {"site": site, "worker_class": site, "handover": protocol}
        worker_id = self.replicas[0].process.registry.add(engine.url, role=part, labels=labels)
        self.engines[name] = engine
        for replica in self.replicas:
            registry = replica.process.registry
            await until(
                lambda registry=registry: (  # type: ignore[misc]
                    (local := registry.get(worker_id)) and local.health is Health.HEALTHY and local.models
                )
            )

    async def ask(self, number: int, words: int) -> httpx.Response:
        content = f"{number} " + "word " * words
        body = {"model": "emulated", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
        return await self.replicas[number % 2].client.post("/v1/chat/completions", json=body)

    def prefilled_by(self, answer: httpx.Response) -> str:
        """Return the engine that prefilled a request; a NIXL decode worker may do all of it."""
        assert answer.status_code == 200, answer.text
        worker = answer.headers.get("x-cacheway-prefill-worker") or answer.headers["x-cacheway-worker"]
        return next(name for name, engine in self.engines.items() if engine.url.endswith(worker))

    def reasons(self) -> set[OffloadReason]:
        return {
            told.verdict.reason
            for replica in self.replicas
            for told in replica.process.gateway.placing.decider.offloading.latest
        }

    async def at_rest(self) -> None:
        """Wait until nothing is in flight anywhere."""
        for replica in self.replicas:
            links = replica.process.fleet.links
            await until(lambda replica=replica: replica.idle())  # type: ignore[misc]
            await until(lambda links=links: not links.transfers)  # type: ignore[misc]
            assert len(replica.process.pairs.link_watch) == 0


@pytest.fixture
async def link() -> AsyncIterator[LinkServer]:
    """The link outlives the engines that use it."""
    server = LinkServer(gbps=100, rtt_ms=2)
    await server.open()
    yield server
    server.close()
    for _ in range(5):  # connections just accepted are reset in the next turns of the loop
        await asyncio.sleep(0)


@pytest.mark.parametrize("protocol", ["sglang", "nixl"])
async def test_long_prompts_are_prefilled_in_the_other_site_and_say_why(
    link: LinkServer, fleet: Fleet, protocol: str
) -> None:
    """Prompts of 2,000 and of 100 words; both replicas reserve the link, and release their reservations."""
    sites = Sites(fleet, link)
    await sites.open(protocol)
    for number in range(6):
        assert sites.prefilled_by(await sites.ask(number, 2_000)) == "far"
        assert sites.prefilled_by(await sites.ask(number, 100)) != "far"
    await sites.at_rest()
    assert sites.reasons() == {OffloadReason.ABOVE_THRESHOLD, OffloadReason.BELOW_THRESHOLD}
    assert link.link.arrived == 6
    verdict = next(iter(sites.replicas[0].process.gateway.placing.decider.offloading.latest)).verdict
    assert verdict.kv_bytes == pytest.approx(verdict.uncached_remote * KV_TOKEN_BYTES, rel=0.01)
    metrics = (await sites.replicas[0].client.get("/metrics")).text
    assert 'reason="above_threshold"' in metrics


@pytest.mark.parametrize("protocol", ["sglang", "nixl"])
async def test_when_the_link_dies_no_request_is_lost_and_all_are_prefilled_here(
    link: LinkServer, fleet: Fleet, protocol: str
) -> None:
    """The link dies with transfers under way, of 0.7 GB or more each; the near worker serves them again."""
    sites = Sites(fleet, link)
    await sites.open(protocol)
    assert sites.prefilled_by(await sites.ask(0, 2_000)) == "far"
    link.link.slow(0.01)
    asked = [asyncio.ensure_future(sites.ask(number, 2_000)) for number in range(1, 7)]
    await until(lambda: link.link.under_way)
    # Watched from now on: a replica forgets a loss after a while, and a busy machine answers later than that.
    lossy = [
        asyncio.ensure_future(until(lambda links=replica.process.fleet.links: links.loss_ratio(LINK) > 0))  # type: ignore[misc]
        for replica in sites.replicas
    ]
    link.link.die()
    answers = await asyncio.gather(*asked)
    assert "far" not in {sites.prefilled_by(answer) for answer in answers}
    assert (link.link.arrived, link.link.lost > 0) == (1, True)
    await sites.at_rest()
    await asyncio.gather(*lossy)
