"""A whole run: acts of faults under load, each followed by a check of the promises.

    act   calm ── strikes ── recovery ── pause: no requests ── checks ── next act
                              10 s + 3    nothing reserved, all agree, each answer right, and once

A broken promise is recorded with its moment, and the run goes on. Limits grow with the largest delay of the
clients' event loop in an act: everything else may have been as late. A slow machine plays fewer acts.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import xxhash

from loadtest.bench.process_tree import open_files, rss_bytes
from loadtest.chaos.agents import Agents
from loadtest.chaos.leftovers import leftovers
from loadtest.chaos.play import strike_once
from loadtest.chaos.record import ActSeen, Broken, Record, Sample
from loadtest.chaos.replica import Replica, settled
from loadtest.chaos.schedule import CALM_S, RECOVERY_S, Act, Strike
from loadtest.chaos.testbed import ChaosStage, standing
from loadtest.chaos.verdict import WINDOW_S, hit_ratio, judge_act, judge_growth
from loadtest.chaos.witness import Observer
from loadtest.engine import EngineSettings
from loadtest.workload import MODEL

WARM_S = 12.0
SAMPLE_S = 2.0
EMPTY_S = 20.0
AGREE_S = 20.0
ERRORS_MAX = 10

CLIENTS = 24
CLIENTS_RANGE = (8, 48)
THINK_S = 0.7
TOKENS_PER_S = 3000.0
"""Prefill speed of one engine, for `CLIENTS`: four are then two thirds busy, and three can do all of it."""

HASHED_BYTES = 64 * 1024
HASHES_PER_S = 40_000.0
"""Idle speed of the reference machine in `_machine_speed`; others are compared with it."""

COUNTED = ("cacheway_redispatches_total", "cacheway_requests_total", "cacheway_ops_dropped_total")
"""Metrics that the report tells."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Plan of a run.

    Attributes:
        seconds: Load time after which no act begins.
        cabled: Replicas have cables.
        clients: 0 for as many as the machine can run.
    """

    acts: Sequence[Act]
    seconds: float
    seed: int
    cabled: bool
    clients: int = 0


Progress = Callable[[Record, str], None]


async def run_campaign(campaign: Campaign, directory: Path, progress: Progress) -> Record:
    """Run a campaign, with all files in ``directory``; ``progress`` gets every change.

    Raises:
        ChildFailed: A process did not come up.
    """
    clients = campaign.clients or fitting_clients()
    record = Record(campaign.seed, campaign.cabled, clients)
    progress(record, "starting")
    engine = EngineSettings(
        models=(MODEL,),
        cache_tokens=400_000,
        prefill_tokens_per_s=TOKENS_PER_S * clients / CLIENTS,
        prefill_base_ms=8,
        tpot_ms=12,
        chunk_tokens=4096,
        emit_interval_ms=25.0,
    )
    async with ChaosStage(directory, standing(engine), cabled=campaign.cabled, seed=campaign.seed) as testbed:
        await _Stage(campaign, testbed, record, progress).play()
        record.broken += [
            Broken("no replica logs an error", line[:500]) for line in testbed.errors()[:ERRORS_MAX]
        ]
    return record


def fitting_clients() -> int:
    """Number of clients that this machine can serve now, by its speed at a fixed calculation."""
    low, high = CLIENTS_RANGE
    return min(high, max(low, round(CLIENTS * _machine_speed() / HASHES_PER_S)))


def _machine_speed() -> float:
    """Hashes of 64 KiB per second, on the wall's clock: others who use the machine count."""
    data, until_s, hashes = bytes(HASHED_BYTES), time.monotonic() + 0.5, 0
    while time.monotonic() < until_s:
        xxhash.xxh64_intdigest(data)
        hashes += 1
    return 2.0 * hashes


class _Stage:
    def __init__(self, campaign: Campaign, testbed: ChaosStage, record: Record, progress: Progress) -> None:
        self._campaign = campaign
        self._testbed = testbed
        self._record = record
        self._progress = progress
        self._witness = Observer({engine.journal: engine.role for engine in testbed.engines.values()})
        self._told: dict[tuple[str, int], dict[str, float]] = {}
        self._loop = asyncio.get_running_loop()

    async def play(self) -> None:
        record, testbed, campaign = self._record, self._testbed, self._campaign
        agents = Agents(
            lambda: testbed.ready_urls,
            testbed.headers,
            clients=record.clients,
            think_s=THINK_S,
            seed=campaign.seed,
        )
        testbed.leave = agents.leave
        record.began_s = self._loop.time()
        async with agents, self._sampled():
            self._progress(record, "warming up")
            await asyncio.sleep(WARM_S)
            warm_from_s = record.began_s + WARM_S / 2
            record.warm_ratio = hit_ratio(one for one in agents.asked if one.visit.sent_s > warm_from_s)[0]
            origin_s = self._loop.time()
            for act in campaign.acts:
                begins_s = act.strikes[0].at_s - CALM_S
                if record.acts and self._loop.time() - record.began_s > campaign.seconds:
                    break
                agents.resume()
                await asyncio.sleep(origin_s + begins_s - self._loop.time())
                origin_s = self._loop.time() - begins_s
                await self._act(act, agents, origin_s)
                agents.check()
            await agents.pause()
        record.seconds = self._loop.time() - record.began_s
        record.ends, record.sent = agents.ends, agents.sent
        if agents.ends.total() != agents.sent:
            seen = f"{agents.sent} sent, {agents.ends.total()} ended"
            record.broken.append(Broken("each request is answered", seen))
        for metrics in self._told.values():
            for name, value in metrics.items():
                if name.partition("{")[0] in COUNTED:
                    record.counters[name] += int(value)
        record.broken += judge_growth(record)

    async def _act(self, act: Act, agents: Agents, origin_s: float) -> None:
        loop, record = self._loop, self._record
        seen = ActSeen(act, loop.time())
        record.acts.append(seen)
        agents.asked.clear()
        agents.late_s_max = 0.0
        self._progress(record, "calm")
        async with asyncio.TaskGroup() as group:
            for strike in act.strikes:
                group.create_task(self._strike(strike, seen, origin_s), name=f"strike-{strike.kind}")
        seen.mended_s = loop.time()
        calm = [one for one in agents.asked if one.visit.ended_s < seen.began_s + CALM_S]
        ratio, turns = hit_ratio(calm)
        seen.hit_ratio = min(ratio, record.warm_ratio) if turns else record.warm_ratio
        self._progress(record, "recovering")
        await asyncio.sleep(RECOVERY_S + WINDOW_S + agents.late_s_max)
        seen.late_s = agents.late_s_max
        self._progress(record, "pausing")
        await agents.pause()
        await self._look(seen)
        asked = list(agents.asked)
        seen.ends = Counter(one.visit.end.value for one in asked)
        seen.broken += judge_act(seen, asked, self._witness.look())

    async def _strike(self, strike: Strike, seen: ActSeen, origin_s: float) -> None:
        await asyncio.sleep(origin_s + strike.at_s - self._loop.time())
        self._progress(self._record, f"{strike.kind}: {strike.target}")
        struck, problem = await strike_once(self._testbed, strike)
        if problem:
            seen.broken.append(Broken("what was struck serves again", problem, struck.began_s))
        seen.struck.append(struck)

    async def _look(self, seen: ActSeen) -> None:
        """Check leftovers and agreement while no client asks."""
        testbed, at_s = self._testbed, self._loop.time()
        replicas = [gateway.view for gateway in testbed.gateways.values()]
        urls = [engine.url for engine in testbed.engines.values()]
        try:
            for line in await leftovers(replicas, urls, EMPTY_S):
                seen.broken.append(Broken("nothing is left", line, at_s))
            await settled(replicas, AGREE_S)
            for line in await disagreeing(replicas):
                seen.broken.append(Broken("replicas agree", line, at_s))
        except TimeoutError as error:
            seen.broken.append(Broken("replicas agree", str(error)[:1000], at_s))
        except (httpx.HTTPError, AssertionError, KeyError) as error:
            seen.broken.append(Broken("replicas answer", f"{type(error).__name__}: {error}"[:500], at_s))
        for name, gateway in testbed.gateways.items():
            with contextlib.suppress(httpx.HTTPError):
                self._told[name, gateway.lives] = await gateway.view.metrics()

    @contextlib.asynccontextmanager
    async def _sampled(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sample(), name="chaos-sampler")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sample(self) -> None:
        while True:
            for gateway in self._testbed.gateways.values():
                if gateway.ready:
                    pids = gateway.pids
                    sample = (sum(map(rss_bytes, pids)), sum(map(open_files, pids)))
                    self._record.samples.append(
                        Sample(self._loop.time(), gateway.name, gateway.lives, *sample)
                    )
            await asyncio.sleep(SAMPLE_S)


async def disagreeing(replicas: Sequence[Replica]) -> list[str]:
    """Lasting differences between replicas' reports of settings and workers, or workers that stay unwell."""
    until_s = asyncio.get_running_loop().time() + AGREE_S
    while True:
        views = {}
        for replica in replicas:
            settings = (await replica.client.get("/settings/history", params={"limit": 1})).json()
            workers = (await replica.client.get("/workers")).json()["workers"]
            states = sorted((each["id"], each["role"], each["state"]) for each in workers)
            views[replica.url] = (settings["revision"], settings["refused"], states)
        first = next(iter(views.values()))
        healthy = {state for *_, state in first[2]} == {"healthy"} and not first[1]
        if healthy and all(view == first for view in views.values()):
            return []
        if asyncio.get_running_loop().time() > until_s:
            return [f"{url}: {view}" for url, view in views.items()]
        await asyncio.sleep(0.2)
