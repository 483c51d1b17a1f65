"""A fleet that gets several times what it can do: what is run, and what is looked at.

Replicas, a Valkey and emulated engines are processes; the crowd (`loadtest.chaos.crowd`) is in this one.

    phase      before ─────> overload ──────────────────────────> after ────> nobody
    load       calm          times of capacity                    calm
    disaster                    Valkey killed ── a replica killed ── Valkey back, empty
                                40 %             50 %                60 % of the overload

Capacity is what the engines can prefill: their number over the mean service time of the crowd's requests. The
calm load is less than half of it. While Valkey is gone the others cannot hear that the killed replica is.

The balancer in front of real replicas stops sending to a dead one; here that is the crowd, which forgets
its URL at the moment of the kill. What it had sent there before is cut, and nothing else may be.

When nobody asks any more, everything must be empty soon (`loadtest.chaos.leftovers`).
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from loadtest.bench.process_tree import cpu_s
from loadtest.chaos.crowd import Client, Crowd, Served, mean_service_s
from loadtest.chaos.leftovers import leftovers
from loadtest.chaos.replica import Replica, logged_errors
from loadtest.chaos.valkey import ValkeyServer
from loadtest.engine import EngineSettings
from loadtest.processes import Child, free_port
from loadtest.scenario import engine_flags
from loadtest.workload import MODEL
from router.tenants.keys import digest_of, new_key

ENGINE = EngineSettings(
    models=(MODEL,), prefill_tokens_per_s=12_000, prefill_base_ms=10, tpot_ms=5, chunk_tokens=4096
)
"""Slow enough for a test machine to send several times what four of them can do."""

CALM_RATIO = 0.4
SAMPLE_S = 0.5
REPLICA = "r{}"
ADMIN_KEY = "overload-admin"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of the keys file.

    Attributes:
        name: Its name.
        load: Its share of the requests, in any unit.
        weight: Its weight.
        requests_per_minute: Its limit; 0 for none.
    """

    name: str
    load: float = 1.0
    weight: float = 1.0
    requests_per_minute: int = 0


TENANTS = (
    Tenant("gold", load=2, weight=4),
    Tenant("silver", load=2, weight=2),
    Tenant("noisy", load=5, weight=1),
    Tenant("capped", load=1, requests_per_minute=120),
)
"""The noisy one asks for more than the fleet can do, and weighs least."""

QUEUE = ("--queue-size", "100", "--queue-timeout-secs", "6")
"""Some three seconds of work for the engines, twice that beside the calm load: times are soon normal."""


@dataclass(frozen=True, slots=True)
class OverloadPlan:
    """What happens.

    Attributes:
        replicas: How many.
        engines: How many.
        times: Load in the overload, in units of capacity.
        before_s: Calm load before, seconds.
        overload_s: The overload.
        after_s: Calm load after.
        disaster: Whether Valkey and a replica are killed in the middle of the overload.
        deadline_s: What a quarter of the requests says in ``x-request-timeout``.
        patience_s: A request that is not over by then hangs.
        tenants: Who asks.
        flags: More flags of ``cacheway serve``, `QUEUE` by default.
        seed: Of the crowd.
    """

    replicas: int = 4
    engines: int = 4
    times: float = 3.0
    before_s: float = 15.0
    overload_s: float = 120.0
    after_s: float = 20.0
    disaster: bool = False
    deadline_s: float = 4.0
    patience_s: float = 60.0
    tenants: Sequence[Tenant] = TENANTS
    flags: Sequence[str] = QUEUE
    seed: int = 1

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the engines can prefill."""
        return self.engines / mean_service_s(ENGINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one moment of the run.

    Attributes:
        at_s: Event loop time.
        phase: Of the run.
        waiting: Requests that wait, as each living replica counts those of all.
        idle_workers: Workers without a request, while others waited, as each replica sees it.
    """

    at_s: float
    phase: str
    waiting: tuple[int, ...]
    idle_workers: tuple[int, ...]


@dataclass(slots=True)
class OverloadRun:
    """What was seen.

    Attributes:
        plan: What was to happen.
        served: What came of every request.
        sent: Requests that were sent.
        unsent: Requests for which the crowd had no connection left.
        late_s_max: How late the crowd ever came to what was due: the machine's share of every time.
        dead: Base URL of the replica that was killed; empty if none was.
        stopped_s: When the overload stopped, in event loop time.
        samples: Taken all the time.
        busy: Share of the overload in which the engines prefilled, mean of all.
        cpu_us: CPU of the replicas that lived on per request sent to them in the overload, microseconds.
        metrics: Of every living replica at the end, summed up: counters by name with labels.
        left: What was not empty at the end, in words.
        errors: Lines that replicas logged as errors.
    """

    plan: OverloadPlan
    served: list[Served] = field(default_factory=list)
    sent: int = 0
    unsent: int = 0
    late_s_max: float = 0.0
    dead: str = ""
    stopped_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    busy: float = 0.0
    cpu_us: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Stage:
    """The processes of one run."""

    def __init__(self, plan: OverloadPlan, stack: contextlib.AsyncExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-overload-")))
        self.valkey = ValkeyServer()
        self.engine_urls: list[str] = []
        self.children: list[Child] = []
        self.replicas: list[Replica] = []
        self._control = httpx.AsyncClient(trust_env=False, timeout=10.0)
        self._keys = {tenant.name: new_key() for tenant in plan.tenants}
        self._keys_file = self._directory / "keys.json"
        self._keys_file.write_text(
            json.dumps({"tenants": {each.name: self._entry(each) for each in plan.tenants}})
        )

    def clients(self) -> list[Client]:
        """The tenants' clients, with their keys."""
        return [
            Client(tenant.name, tenant.load, {"authorization": f"Bearer {self._keys[tenant.name]}"})
            for tenant in self._plan.tenants
        ]

    def _entry(self, tenant: Tenant) -> dict[str, object]:
        """A tenant in the keys file."""
        digest = digest_of(self._keys[tenant.name].encode())
        entry: dict[str, object] = {"keys": [f"sha256:{digest.hex()}"], "weight": tenant.weight}
        if tenant.requests_per_minute:
            entry["limits"] = {"requests_per_minute": tenant.requests_per_minute}
        return entry

    async def start(self) -> None:
        """Start everything and wait until all replicas are warm."""
        await self._stack.enter_async_context(self.valkey)
        await self._stack.enter_async_context(self._control)
        count = str(self._plan.engines)
        arguments = ["engine", "--port", "0", "--engines", count, *engine_flags(ENGINE)]
        arguments += ["--chunk-tokens", str(ENGINE.chunk_tokens)]
        engines = await self._stack.enter_async_context(Child("engines", arguments, self._directory))
        ready = await engines.wait_for_line("cacheway engine ready:")
        self.engine_urls = [word for word in ready.split() if word.startswith("http://")]
        self.replicas = list(await asyncio.gather(*map(self._replica, range(self._plan.replicas))))

    async def _replica(self, number: int) -> Replica:
        port, name = free_port(), REPLICA.format(number + 1)
        arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--replica-id", name]
        arguments += ["--worker-urls", *self.engine_urls, "--redis-url", self.valkey.url]
        arguments += ["--tenant-keys-file", str(self._keys_file), "--api-key", ADMIN_KEY]
        arguments += ["--namespace", "overload", "--log-level", "warning", *self._plan.flags]
        child = await self._stack.enter_async_context(Child(name, arguments, self._directory))
        self.children.append(child)
        url = f"http://127.0.0.1:{port}"
        await child.wait_for_answer(f"{url}/readiness")
        client = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {ADMIN_KEY}"}, timeout=30.0, trust_env=False
        )
        replica = Replica(await self._stack.enter_async_context(client))
        await replica.warmed()
        return replica

    async def kill_last_replica(self) -> str:
        """Kill one; its URL."""
        victim = self.replicas.pop()
        await self.children.pop().kill()
        return victim.url

    async def engine_stats(self) -> list[dict[str, float]]:
        """What every engine says of itself."""
        return [(await self._control.get(f"{url}/_stats")).json() for url in self.engine_urls]

    def errors(self) -> list[str]:
        """Lines that replicas logged as errors, whether they live or not."""
        return logged_errors(self._directory.glob("r*.log"))


async def run_overload(plan: OverloadPlan) -> OverloadRun:
    """Run it from start to end.

    Raises:
        ChildFailed: A process did not come up.
    """
    run = OverloadRun(plan)
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        stage = _Stage(plan, stack)
        await stage.start()
        crowd = Crowd(
            [replica.url for replica in stage.replicas],
            stage.clients(),
            rate_per_s=CALM_RATIO * plan.capacity_per_s,
            deadline_s=plan.deadline_s,
            patience_s=plan.patience_s,
            seed=plan.seed,
        )
        crowd.phase = "before"
        async with crowd:
            sampler = asyncio.create_task(_sampled(stage, crowd, run), name="sampler")
            await asyncio.sleep(plan.before_s)
            await _overloaded(stage, crowd, run)
            run.stopped_s = loop.time()
            crowd.phase, crowd.rate_per_s = "after", CALM_RATIO * plan.capacity_per_s
            await asyncio.sleep(plan.after_s)
            await crowd.stop()
            sampler.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampler
        run.served, run.sent, run.unsent = crowd.served, crowd.sent.total(), crowd.unsent
        run.late_s_max = crowd.late_s_max
        run.left = await leftovers(stage.replicas, stage.engine_urls)
        for replica in stage.replicas:
            for name, value in (await replica.metrics()).items():
                run.metrics[name] = run.metrics.get(name, 0.0) + value
        run.errors = stage.errors()
    return run


async def _overloaded(stage: _Stage, crowd: Crowd, run: OverloadRun) -> None:
    """Overload the fleet, and let disaster strike in the middle if it shall."""
    plan, loop = run.plan, asyncio.get_running_loop()
    crowd.phase, crowd.rate_per_s = "overload", plan.times * plan.capacity_per_s
    began_s = loop.time()
    survivors = stage.children[: plan.replicas - plan.disaster]
    pids = [child.pid for child in survivors]
    cpu_before_s, sent_before = cpu_s(pids), crowd.sent.copy()
    busy_before_s = sum(stats["prefill_busy_s"] for stats in await stage.engine_stats())
    if plan.disaster:
        await asyncio.sleep(0.4 * plan.overload_s)
        await stage.valkey.kill()
        await asyncio.sleep(0.1 * plan.overload_s)
        run.dead = stage.replicas[-1].url
        crowd.urls.remove(run.dead)
        await stage.kill_last_replica()
        await asyncio.sleep(0.1 * plan.overload_s)
        await stage.valkey.start()
    await asyncio.sleep(began_s + plan.overload_s - loop.time())
    lasted_s = loop.time() - began_s
    busy_s = sum(stats["prefill_busy_s"] for stats in await stage.engine_stats()) - busy_before_s
    run.busy = busy_s / plan.engines / lasted_s
    requests = sum(count for url, count in (crowd.sent - sent_before).items() if url != run.dead)
    run.cpu_us = 1e6 * (cpu_s(pids) - cpu_before_s) / max(requests, 1)


async def _sampled(stage: _Stage, crowd: Crowd, run: OverloadRun) -> None:
    """Look at every living replica until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        waiting, idle = [], []
        for replica in list(stage.replicas):
            with contextlib.suppress(httpx.TransportError):  # killed while it was asked
                queue = (await replica.client.get("/queue")).json()
                waiting.append(queue["waiting"]["requests"])
                idle.append(
                    sum(worker["inflight_requests"] == 0 for worker in queue["workers"]) if waiting[-1] else 0
                )
        run.samples.append(Sample(loop.time(), crowd.phase, tuple(waiting), tuple(idle)))
        await asyncio.sleep(SAMPLE_S)
