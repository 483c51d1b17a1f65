"""Two prefill and two decode workers of one protocol behind two replicas, and requests that stand in between.

    client ──> calm    (a minute for everything) ──┐    ┌── prefill, prefill     one set of faults for both
    client ──> strict  (a second)                ──┴────┴── decode, decode       one set of faults for both

Engines of a role share their faults, so that a fault for one request hits the first engine that gets it, and
the test need not know the gateway's choice.
"""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any

import httpx
import orjson
from fakes.running import Fleet, RunningGateway, until, until_async
from fakes.scripted_client import ScriptedClient

from loadtest.engine import EmulatedEngine, EngineSettings, Fault
from loadtest.engine.faults import Faults
from loadtest.engine.handover import HandoverSettings
from policies import HAND_OVERS
from router.fleet import Health
from router.shared import EmbeddedValkey

PROTOCOLS = tuple(HAND_OVERS)

ENGINE = EngineSettings(
    prefill_tokens_per_s=5_000, prefill_base_ms=0.1, tpot_ms=0.5, emit_interval_ms=0.5, block_tokens=16
)
SLOW_CLASS, SLOW_MS = "8xh200-1t-hybrid", 400.0
"""Class and prefill time of the decode workers: prefill takes 0.4 s, and the gateway knows it from the start.
So none of them gets a whole request while there is a prefill worker."""

BELIEVED_TOKENS_PER_S = 100_000.0
"""Speed that the gateway believes of prefill workers: too high, so that it holds for long prompts, too."""

LEASE_S = 0.8
"""Time for which vLLM keeps KV that no engine fetches: with NIXL and Mooncake only vLLM can release it.

A decode leg of Mooncake after that time never ends, and a busy machine may be late by half a second.
"""

MINUTE = {"connect_timeout_s": 60.0, "first_byte_timeout_s": 60.0, "idle_timeout_s": 60.0}
STRICT = dict.fromkeys(MINUTE, 1.0)

WORDS = 40
LONG_WORDS = 30_000
"""Some ten seconds of prefill."""

_numbers = itertools.count()


class Step(StrEnum):
    """Position of a request between its two workers."""

    ASKED = "the prefill worker has it, and is silent"
    PREFILLING = "its prompt is computed"
    SHIPPING = "its KV is on its way"
    FETCHING = "the decode worker has it, and is silent"
    HEADED = "the decode worker has its KV, and sent at most the head of the answer"
    BEGUN = "the client has the first bytes of the answer"


_HOLD = {
    Step.ASKED: ("prefill", Fault("stall", count=1)),
    Step.SHIPPING: ("prefill", Fault("stall_transfer", count=1)),
    Step.FETCHING: ("decode", Fault("stall", count=1)),
    Step.HEADED: ("decode", Fault("stall", count=1, after_head=True)),
    Step.BEGUN: ("decode", Fault("stall", count=1, after_chunks=1)),
}


class Pairs:
    """The stage; see `open_pairs`."""

    def __init__(self, protocol: str, fleet: Fleet) -> None:
        self.protocol = protocol
        self.fleet = fleet
        self.faults = {"prefill": Faults(), "decode": Faults()}
        self.engines: dict[str, list[EmulatedEngine]] = {"prefill": [], "decode": []}
        self.replicas: dict[str, RunningGateway] = {}
        self.plain: EmulatedEngine

    async def start(self, pairs: int, reliability: dict[str, Any]) -> None:
        """Start all engines and both replicas, and wait until each finds all workers well."""
        dialect: Any = "sglang" if self.protocol == "sglang" else "vllm"
        engine = replace(ENGINE, dialect=dialect)
        self.plain = await self.fleet.stack.enter_async_context(EmulatedEngine(engine))
        for role, _ in itertools.product(self.engines, range(pairs)):
            part: Any = role if self.protocol != "nixl" else "both"
            waits: dict[str, float] = {"lease_s": LEASE_S}
            if self.protocol == "mooncake" and role == "prefill":
                waits["waiting_s"] = LEASE_S
            handover = HandoverSettings(protocol=self.protocol, part=part, **waits)  # type: ignore[arg-type]
            own = replace(engine, prefill_base_ms=SLOW_MS) if role == "decode" else engine
            worker = EmulatedEngine(replace(own, handover=handover))
            worker.faults = self.faults[role]
            self.engines[role].append(await self.fleet.stack.enter_async_context(worker))
        for name, limits in (("calm", MINUTE), ("strict", STRICT)):
            self.replicas[name] = await self.fleet.gateway(
                fleet={
                    "prefill": [self._line(worker) for worker in self.engines["prefill"]],
                    "decode": [self._line(worker) for worker in self.engines["decode"]],
                    "health_check_interval_s": 0.3,
                    "slow_start_s": 0.0,
                },
                upstream=limits,
                placement={"prefill_tokens_per_s": BELIEVED_TOKENS_PER_S},
                reliability={"retry_max_retries": 3, "disable_circuit_breaker": True, **reliability},
                shared={"replica_id": name, "snapshot_interval_s": 3600.0},
            )
        await self._all_well()

    async def _all_well(self) -> None:
        for gateway in self.replicas.values():
            await until(lambda gateway=gateway: self._well(gateway))  # type: ignore[misc]

    def _line(self, worker: EmulatedEngine) -> str:
        assert worker.handover is not None
        port = f" {worker.handover.port}" if worker.handover.port else ""
        slow = f" worker_class={SLOW_CLASS}" if worker in self.engines["decode"] else ""
        return f"{worker.url}{port} handover={self.protocol}{slow}"

    def _well(self, gateway: RunningGateway) -> bool:
        workers = list(gateway.process.registry.all())
        return len(workers) == sum(map(len, self.engines.values())) and all(
            worker.health is Health.HEALTHY and worker.models for worker in workers
        )

    def arm(self, role: str, fault: Fault) -> None:
        """Let a fault hit requests of a role."""
        self.faults[role].add(fault)

    def kill(self, role: str) -> None:
        """Let those engines of a role die that have to do with a request. They stay away until `mended`."""
        busy = [engine for engine in self.engines[role] if engine.answering or held(engine)]
        assert busy
        for engine in busy:
            engine.inject(Fault("crash"))

    def total(self, role: str, of: Callable[[EmulatedEngine], int]) -> int:
        """A number, over all engines of a role."""
        return sum(of(engine) for engine in self.engines[role])

    def receiving(self) -> int:
        """Requests at decode engines whose KV has not come."""
        return self.total("decode", lambda engine: engine.stats()["handover"].get("receiving", 0))

    async def ask(
        self, replica: str, *, streamed: bool, words: int = WORDS, output_tokens: int = 20
    ) -> "PairCourse":
        """Send a request of its own prompt."""
        text = f"{next(_numbers)} " + "word " * words
        body = {"model": "emulated", "messages": [{"role": "user", "content": text}], "stream": streamed}
        body |= {"max_tokens": output_tokens, "ignore_eos": True}
        client = await ScriptedClient.connect(self.replicas[replica].process.settings.server.port)
        self.fleet.stack.callback(client.close)
        course = PairCourse(self, client, body)
        client.send(orjson.dumps(body))
        return course

    async def reach(self, replica: str, step: Step, *, streamed: bool) -> "PairCourse":
        """Send a request and wait until it stands at a step."""
        if step in _HOLD:
            self.arm(*_HOLD[step])
        decoded = self.total("decode", lambda engine: engine.counters.requests)
        words = LONG_WORDS if step is Step.PREFILLING else WORDS
        course = await self.ask(replica, streamed=streamed, words=words)
        match step:
            case Step.ASKED:
                await until(lambda: not self.faults["prefill"].armed)
            case Step.PREFILLING:
                await until(lambda: self.total("prefill", lambda engine: engine.scheduler.running))
            case Step.SHIPPING:
                await until(lambda: self.total("prefill", lambda engine: engine.scheduler.held))
                await until(lambda: self.receiving() and not self.faults["prefill"].armed)
            case Step.FETCHING:
                await until(lambda: not self.faults["decode"].armed)
            case Step.HEADED:
                requests = decoded + 1
                await until(lambda: self.total("decode", lambda engine: engine.counters.requests) >= requests)
                await until(lambda: not self.receiving())
            case Step.BEGUN:
                await course.client.receive(1)
        return course

    async def empty(self) -> None:
        """Wait until no replica has anything reserved or in use, and no engine holds anything for others."""
        for gateway in self.replicas.values():
            await until(gateway.idle)
            process = gateway.process
            assert not process.fleet.loads.prefill_tokens.any()
            assert not process.fleet.loads.inflight_requests.any()
            for local in process.registry.all():
                await until(lambda pool=local.pool: (pool.waiting, pool.in_use) == (0, 0))  # type: ignore[misc]
        for engine in itertools.chain(*self.engines.values()):
            await until(lambda engine=engine: not held(engine))  # type: ignore[misc]

    async def mended(self) -> None:
        """End all faults, and wait until every worker is well and everything is free again."""
        for engine in itertools.chain(*self.engines.values()):
            engine.mend()
        await self._all_well()
        await self.empty()


def held(engine: EmulatedEngine) -> dict[str, int]:
    """Resources that an engine still holds, by name; empty if it is as after its start, but for its cache."""
    stats = engine.stats()
    numbers = {name: stats[name] for name in ("running", "waiting", "held")} | stats["handover"]
    return {name: n for name, n in (numbers | {"used": stats["cache"]["used_tokens"]}).items() if n}


class PairCourse:
    """One request on its way through two workers."""

    def __init__(self, pairs: Pairs, client: ScriptedClient, body: dict[str, Any]) -> None:
        self.client = client
        self.body = body
        self._pairs = pairs

    async def answered(self) -> None:
        """Wait for the answer, which must be that of one engine alone."""
        client = await self.client.finished()
        assert (client.status, client.complete) == (200, True), client.body
        async with httpx.AsyncClient(base_url=self._pairs.plain.url, trust_env=False) as plain:
            alone = await plain.post("/v1/chat/completions", json=self.body)
        assert said(client.body, streamed=self.body["stream"]) == said(
            alone.content, streamed=self.body["stream"]
        )


def said(body: bytes, *, streamed: bool) -> str:
    """The text of an answer."""
    if not streamed:
        text: str = orjson.loads(body)["choices"][0]["message"]["content"]
        return text
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    chunks = [orjson.loads(event) for event in events[:-1]]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ())
    )


@contextlib.asynccontextmanager
async def open_pairs(protocol: str, pairs: int = 2, **reliability: Any) -> AsyncIterator[Pairs]:
    """A Valkey, replicas ``calm`` and ``strict``, and pairs of workers of one protocol."""
    async with contextlib.AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey())
        stage = Pairs(protocol, Fleet(valkey.url, f"pairs-{protocol}", stack))
        await stage.start(pairs, reliability)

        async def shares(gateway: RunningGateway) -> bool:
            shared = gateway.process.shared
            return bool(shared.status.ready and shared.status.connected)

        for gateway in stage.replicas.values():
            await until_async(lambda gateway=gateway: shares(gateway))  # type: ignore[misc]
        yield stage
        await stage.empty()
