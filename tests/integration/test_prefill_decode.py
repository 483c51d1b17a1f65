"""Prefill and decode workers on real sockets: two replicas, a real Valkey, engines of every protocol.

Afterwards no replica has anything in flight at any worker, and no engine holds anything.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import httpx
import pytest
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.engine import EmulatedEngine, EngineSettings, Fault
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.link.server import LinkServer
from loadtest.engine.profiles import PROFILES
from policies import HAND_OVERS
from router.fleet import Health

PROTOCOLS = tuple(HAND_OVERS)
TEXT = "word " * 3000
QUICK: dict[str, Any] = {
    "prefill_tokens_per_s": 1e6,
    "prefill_base_ms": 1.0,
    "tpot_ms": 0.5,
    "block_tokens": 16,
}


class Pairs:
    """A fleet of prefill and decode workers, with two replicas in front."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.replicas: list[RunningGateway] = []
        self.engines: dict[str, EmulatedEngine] = {}

    async def open(self, **sections: dict[str, Any]) -> "Pairs":
        """Start both replicas."""
        self.replicas = [await self.fleet.gateway(**sections) for _ in range(2)]
        return self

    async def add(
        self,
        role: str,
        protocol: str = "sglang",
        *,
        site: str = "",
        link: str = "",
        waiting_s: float = 600.0,
        **settings: Any,
    ) -> EmulatedEngine:
        """Start an engine and make it a worker; in another site, its KV leaves over a link."""
        handover = None
        if role != "plain":
            part = cast(Any, role)
            # KV without its decode leg is kept this long: longer by default than any wait of a test, so that
            # a machine that stalls for some seconds ends no leg.
            handover = HandoverSettings(
                protocol=cast(Any, protocol),
                part=part,
                heartbeat_s=0.5,
                lease_s=waiting_s,
                waiting_s=waiting_s,
                kv_link=link,
            )
        dialect = "sglang" if protocol == "sglang" else "vllm"
        engine = await self.fleet.engine(
            EngineSettings(dialect=cast(Any, dialect), handover=handover, **{**QUICK, **settings})
        )
        # The replicas end before their engines, since they connect to them all the time.
        self.fleet.stack.push_async_callback(self._stop)
        labels = {"handover": protocol} if role != "plain" and protocol == "mooncake" else {}
        labels |= {"site": site} if site else {}
        if role == "prefill" and protocol == "mooncake":
            assert engine.handover is not None
            labels["bootstrap_port"] = str(engine.handover.port)
        worker_id = self.replicas[0].process.registry.add(engine.url, role=role, labels=labels)
        self.engines[worker_id] = engine
        for replica in self.replicas:
            registry = replica.process.registry
            await until(
                lambda registry=registry: (  # type: ignore[misc]
                    (local := registry.get(worker_id)) and local.health is Health.HEALTHY and local.models
                )
            )
        return engine

    async def _stop(self) -> None:
        for replica in self.replicas:
            replica.server.should_exit = True
            await replica.task

    async def ask(self, number: int = 0, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
        """Ask one of the replicas."""
        body: dict[str, Any] = {"model": "emulated", "max_tokens": 12, "ignore_eos": True, **more}
        if "messages" not in body and "prompt" not in body and path == "/v1/chat/completions":
            body["messages"] = [{"role": "user", "content": f"{number} {TEXT}"}]
        return await self.replicas[number % 2].client.post(path, json=body)

    async def at_rest(self) -> None:
        """Wait until no replica and no engine has work left."""
        await until_async(self._rested)
        for engine in self.engines.values():
            at = engine.scheduler
            await until(lambda at=at: not (at.running or at.waiting or at.used_tokens))  # type: ignore[misc]

    async def _rested(self) -> bool:
        busy: list[dict[str, Any]] = []
        for replica in self.replicas:
            workers = (await replica.client.get("/workers")).json()["workers"]
            assert len(workers) == len(self.engines)
            busy += [
                worker
                for worker in workers
                if worker["inflight_requests"] or worker["inflight_tokens"] or worker["backlog_s"]
            ]
        return not busy and all(replica.idle() for replica in self.replicas)


def complete(answers: Iterable[httpx.Response], tokens: int = 12) -> None:
    """Every answer is whole."""
    for answer in answers:
        assert answer.status_code == 200, answer.text
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n")
            assert "error" not in answer.text
        else:
            assert answer.json()["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_pairs_serve_requests_of_every_kind_and_keep_nothing(fleet: Fleet, protocol: str) -> None:
    """Each prompt comes twice, so that the second finds the first one's prefix where it was prefilled."""
    pairs = await Pairs(fleet).open()
    for role in ("prefill", "prefill", "decode", "decode"):
        await pairs.add(role, protocol)
    alone = await fleet.engine(EngineSettings(**QUICK))
    async with httpx.AsyncClient(base_url=alone.url, trust_env=False) as client:
        expected = (await client.post("/v1/completions", json=completion())).json()["choices"][0]["text"]
    for stream in (False, True):
        first = await asyncio.gather(*(pairs.ask(number, stream=stream) for number in range(12)))
        again = await asyncio.gather(*(pairs.ask(number, stream=stream) for number in range(12)))
        complete([*first, *again])
        for answer in (*first, *again):
            worker = pairs.replicas[0].process.fleet.worker(answer.headers["x-cacheway-worker"])
            assert worker is not None
            assert worker.role == "decode"
            if protocol == "sglang":
                assert "x-cacheway-prefill-worker" in answer.headers
    assert any(int(answer.headers["x-cacheway-cached-tokens"]) > 2000 for answer in again)
    answer = await pairs.ask(path="/v1/completions", **completion())
    assert answer.json()["choices"][0]["text"] == expected
    await pairs.at_rest()
    counted = [engine.handover.counters for engine in pairs.engines.values() if engine.handover is not None]
    assert sum(counters.received_tokens for counters in counted) > 3000
    assert sum(counters.failed + counters.unmet + counters.expired for counters in counted) == 0


def completion() -> dict[str, Any]:
    return {"model": "emulated", "prompt": list(range(10, 400)), "max_tokens": 20, "ignore_eos": True}


async def test_pairs_of_two_protocols_and_plain_workers_share_one_gateway(fleet: Fleet) -> None:
    """120 requests, over both replicas; every kind of worker serves some."""
    pairs = await Pairs(fleet).open()
    for protocol in ("sglang", "nixl"):
        for role in ("prefill", "decode"):
            await pairs.add(role, protocol)
    await pairs.add("plain", "sglang")
    await pairs.add("plain", "nixl")
    answers = await asyncio.gather(*(pairs.ask(number, stream=number % 3 == 0) for number in range(120)))
    complete(answers)
    served = Counter(answer.headers["x-cacheway-worker"] for answer in answers)
    prefilled = Counter(answer.headers.get("x-cacheway-prefill-worker") for answer in answers)
    roles: dict[str, tuple[str, str]] = {}
    for worker_id in pairs.engines:
        local = pairs.replicas[0].process.registry.get(worker_id)
        assert local is not None
        roles[worker_id] = (local.worker.role, local.protocol)
    for worker_id, (role, _) in roles.items():
        assert (prefilled if role == "prefill" else served)[worker_id] > 0
    for answer in answers:
        prefill = answer.headers.get("x-cacheway-prefill-worker")
        if prefill is not None:
            assert roles[prefill][1] == roles[answer.headers["x-cacheway-worker"]][1]
    await pairs.at_rest()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engine_that_dies_costs_no_request_that_has_no_answer_yet(
    fleet: Fleet, protocol: str, role: str
) -> None:
    """One of two engines of each role crashes while all are busy, and comes back."""
    pairs = await Pairs(fleet).open(reliability={"retry_max_retries": 5})
    slow = {"prefill_base_ms": 50.0, "tpot_ms": 5.0}
    roles = ("prefill", "prefill", "decode", "decode")
    engines = [await pairs.add(each, protocol, waiting_s=3.0, **slow) for each in roles]
    dying = engines[0] if role == "prefill" else engines[2]
    tasks = [asyncio.create_task(pairs.ask(number)) for number in range(16)]
    await until(lambda: dying.scheduler.running)
    dying.inject(Fault("crash"))
    complete(await asyncio.gather(*tasks))
    dying.accept()
    await pairs.at_rest()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_that_leaves_ends_both_legs(fleet: Fleet, protocol: str) -> None:
    """Prefill takes ten minutes; the replicas do not wait for it."""
    pairs = await Pairs(fleet).open()
    for role in ("prefill", "decode"):
        await pairs.add(role, protocol, prefill_base_ms=600_000.0)
    if protocol != "sglang":
        # An idle decode worker would serve the request alone.
        busy = await busy_decode(pairs)
    tasks = [asyncio.create_task(pairs.ask(number, stream=True)) for number in range(4)]
    await until(lambda: any(engine.scheduler.running for engine in pairs.engines.values()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if protocol != "sglang":
        busy.cancel()
    await pairs.at_rest()


async def busy_decode(pairs: Pairs) -> "asyncio.Task[httpx.Response]":
    """Keep the decode worker busy with another client's request."""
    local = next(each for each in pairs.replicas[0].process.registry.all() if each.worker.role == "decode")
    client = await pairs.fleet.stack.enter_async_context(
        httpx.AsyncClient(base_url=local.worker.url, timeout=60, trust_env=False)
    )
    return asyncio.create_task(client.post("/v1/completions", json=completion()))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_link_that_stops_is_not_waited_for(fleet: Fleet, protocol: str) -> None:
    """Engines would wait for ten minutes; prompts of the cut site are prefilled again on this side."""
    link = LinkServer(gbps=100.0)
    await link.open()
    fleet.stack.push_async_callback(closed, link)
    pairs = await Pairs(fleet).open(
        fleet={"site": "home", "links": {"far>home": {"gbps": 100.0, "rtt_ms": 1.0}}},
        placement={"models": {"*": {"kv_bytes_per_token": PROFILES["dense-70b"].shape.token_bytes}}},
        offload={"threshold_tokens": 500},
    )
    await pairs.add("prefill", protocol, site="far", link=link.url)
    await pairs.add("decode", protocol)
    await pairs.add("prefill", protocol)
    far, _, home = pairs.engines
    first = [await pairs.ask(number) for number in range(10, 20)]
    assert far in [answer.headers.get("x-cacheway-prefill-worker") for answer in first]
    link.link.slow(0.0)
    answers = await asyncio.gather(*(pairs.ask(number, stream=number > 1) for number in range(4)))
    complete([*first, *answers])
    # vLLM's decode worker may serve the request alone.
    assert {answer.headers.get("x-cacheway-prefill-worker") for answer in answers} <= {home, None}
    assert any(
        "transfer_late" in replica.process.metrics.exposition()[0].decode() for replica in pairs.replicas
    )
    link.link.restore()
    await pairs.at_rest()
    assert not link.link.under_way


async def closed(link: LinkServer) -> None:
    """Close a link, and wait until the loop has dropped its connections."""
    link.close()
    await until(lambda: not link._side._connections)


async def test_a_fleet_without_decode_workers_says_so(fleet: Fleet) -> None:
    pairs = await Pairs(fleet).open()
    await pairs.add("prefill")
    answer = await pairs.ask()
    assert answer.status_code == 503
    assert "have no decode worker for it that is well" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
    await pairs.at_rest()
