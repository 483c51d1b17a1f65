"""A play: an open loop of clients, scene after scene, while strikes hit at set times; and its observations.

    scene     before ───> overload ──────────────────> after ───> no clients
    strikes                  Valkey killed ── a replica killed ── Valkey back, empty

Unlike a campaign, a play is written down, and its load is a fixed rate. Both strike by `strike_once` on
`loadtest.chaos.testbed`. When the clients have ended, everything must be empty soon
(`loadtest.chaos.leftovers`).
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from redis.exceptions import RedisError

from loadtest.bench.process_tree import cpu_s
from loadtest.chaos.crowd import MIX, Client, Crowd, Mix, Served
from loadtest.chaos.fault_injector import BY_NAME
from loadtest.chaos.leftovers import leftovers
from loadtest.chaos.record import Struck
from loadtest.chaos.schedule import Strike
from loadtest.chaos.testbed import ChaosStage, Troupe
from loadtest.processes import ChildFailed

SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """A part of a play: from when on, and how many requests a second."""

    name: str
    begins_s: float
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Play:
    """Script of a play.

    Attributes:
        troupe: The processes.
        scenes: One after the other; the first begins at 0.
        seconds: Time of the last request.
        strikes: Faults; one that lasts beyond the end is mended there.
        deadline_s: Of requests with a deadline.
        patience_s: A request that is not over by then hangs.
        seed: Seed of the crowd.
    """

    troupe: Troupe
    scenes: Sequence[Scene]
    seconds: float
    strikes: Sequence[Strike] = ()
    mix: Mix = MIX
    deadline_s: float = 4.0
    patience_s: float = 60.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one moment.

    Attributes:
        waiting: Waiting requests, as each living replica counts those of all.
        idle_workers: Workers without a request, while others waited, as each replica sees it.
    """

    scene: str
    waiting: tuple[int, ...]
    idle_workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at the beginning of a scene, or the end of the last one.

    Attributes:
        at_s: Event loop time.
        busy_s: Prefill seconds of all engines.
        cpu_s: CPU of each ready replica, by name and life.
        sent: Requests sent, by replica.
    """

    at_s: float
    busy_s: float = 0.0
    cpu_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """Observations of a play.

    Attributes:
        served: Outcome of every request.
        unsent: Requests for which the crowd had no connection left.
        late_s_max: Largest delay of the crowd: the machine's part of every time.
        readings: At the beginning of each scene, and at the end.
        stats: Last ones of each engine, by name and life.
        link: State of the link at the end.
        link_since_s: When it was made, in event loop time.
        offload: The first replica's report of its offload decisions at the end.
        metrics: Sums over all replicas at the end: counters by name with labels.
        left: Leftovers at the end, and processes that did not serve again, in words.
        errors: Lines that replicas logged as errors.
    """

    play: Play
    served: list[Served] = field(default_factory=list)
    sent: int = 0
    unsent: int = 0
    late_s_max: float = 0.0
    struck: list[Struck] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stats: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    link: dict[str, Any] = field(default_factory=dict)
    link_since_s: float = 0.0
    offload: dict[str, Any] = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def bounds(self, scene: str) -> tuple[Reading, Reading]:
        """Readings at the beginning and the end of a scene."""
        number = [each.name for each in self.play.scenes].index(scene)
        return self.readings[number], self.readings[number + 1]

    def busy(self, scene: str) -> float:
        """Share of a scene in which the engines prefilled, mean of all."""
        began, ended = self.bounds(scene)
        return (ended.busy_s - began.busy_s) / len(self.play.troupe.parts) / (ended.at_s - began.at_s)

    def cpu_us(self, scene: str) -> float:
        """CPU microseconds per request sent in a scene, of the replicas that lived through it."""
        began, ended = self.bounds(scene)
        lived = began.cpu_s.keys() & ended.cpu_s.keys()
        spent_s = sum(ended.cpu_s[key] - began.cpu_s[key] for key in lived)
        requests = sum(ended.sent.get(name, 0) - began.sent.get(name, 0) for name, _ in lived)
        return 1e6 * spent_s / max(requests, 1)


async def strike_once(testbed: ChaosStage, strike: Strike) -> tuple[Struck, str]:
    """Let one fault strike, and mend it when it has lasted.

    Return it and what failed to serve again, in words.
    """
    loop, injector, problem = asyncio.get_running_loop(), BY_NAME[strike.kind], ""
    began_s = loop.time()
    try:
        async with injector.strike(testbed, strike.target):
            await asyncio.sleep(strike.lasts_s)
    except (ChildFailed, TimeoutError, OSError, httpx.HTTPError, RedisError) as error:
        problem = f"{strike.kind}: {strike.target}: {type(error).__name__}: {error}"[:1000]
    engine = testbed.engines.get(strike.target)
    worker_id = "" if engine is None else engine.worker_id
    return Struck(strike, injector.kind.group, injector.blame, began_s, loop.time(), worker_id), problem


async def run_play(play: Play) -> Seen:
    """Run a play from start to end; `ChildFailed` if a process did not come up."""
    seen = Seen(play)
    with tempfile.TemporaryDirectory(prefix="cw-play-") as directory:
        async with ChaosStage(Path(directory), play.troupe) as testbed:
            tenants = play.troupe.tenants
            crowd = Crowd(
                lambda: testbed.ready_urls,
                [Client(tenant.name, tenant.load, testbed.headers(tenant.name)) for tenant in tenants],
                rate_per_s=play.scenes[0].rate_per_s,
                deadline_s=play.deadline_s,
                patience_s=play.patience_s,
                seed=play.seed,
                mix=play.mix,
            )
            async with crowd:
                sampler = asyncio.create_task(_sampled(testbed, crowd, seen), name="sampler")
                origin_s = asyncio.get_running_loop().time()
                async with asyncio.TaskGroup() as group:
                    for strike in play.strikes:
                        group.create_task(
                            _struck(testbed, strike, origin_s, seen), name=f"strike-{strike.kind}"
                        )
                    await _scenes(testbed, crowd, seen, origin_s)
                    await crowd.stop()
                sampler.cancel()
                await asyncio.gather(sampler, return_exceptions=True)
            seen.served, seen.sent, seen.unsent = crowd.served, crowd.sent.total(), crowd.unsent
            seen.late_s_max = crowd.late_s_max
            await _told(testbed, seen)
    return seen


async def _scenes(testbed: ChaosStage, crowd: Crowd, seen: Seen, origin_s: float) -> None:
    loop = asyncio.get_running_loop()
    for scene in seen.play.scenes:
        await asyncio.sleep(origin_s + scene.begins_s - loop.time())
        crowd.phase, crowd.rate_per_s = scene.name, scene.rate_per_s
        seen.readings.append(await _reading(testbed, crowd))
    await asyncio.sleep(origin_s + seen.play.seconds - loop.time())
    seen.readings.append(await _reading(testbed, crowd))


async def _struck(testbed: ChaosStage, strike: Strike, origin_s: float, seen: Seen) -> None:
    await asyncio.sleep(origin_s + strike.at_s - asyncio.get_running_loop().time())
    struck, problem = await strike_once(testbed, strike)
    seen.struck.append(struck)
    seen.left += [problem] if problem else []


async def _reading(testbed: ChaosStage, crowd: Crowd) -> Reading:
    at_s = asyncio.get_running_loop().time()
    cpu = {
        (name, gateway.lives): cpu_s(gateway.pids)
        for name, gateway in testbed.gateways.items()
        if gateway.ready
    }
    stats = await _stats(testbed)
    busy_s = sum(each.get("prefill_busy_s", 0.0) for each in stats.values())
    return Reading(at_s, busy_s, cpu, crowd.sent.copy())


async def _stats(testbed: ChaosStage) -> dict[tuple[str, int], Mapping[str, Any]]:
    stats = {}
    for engine in testbed.engines.values():
        with contextlib.suppress(httpx.TransportError):
            stats[engine.name, engine.lives] = (await testbed.control.get(f"{engine.url}/_stats")).json()
    return stats


async def _sampled(testbed: ChaosStage, crowd: Crowd, seen: Seen) -> None:
    while True:
        waiting, idle = [], []
        for gateway in [each for each in testbed.gateways.values() if each.ready]:
            with contextlib.suppress(httpx.TransportError):  # killed while it was asked
                queue = (await gateway.view.client.get("/queue")).json()
                waiting.append(queue["waiting"]["requests"])
                free = sum(worker["inflight_requests"] == 0 for worker in queue["workers"])
                idle.append(free if waiting[-1] else 0)
        seen.samples.append(Sample(crowd.phase, tuple(waiting), tuple(idle)))
        seen.stats |= await _stats(testbed)
        await asyncio.sleep(SAMPLE_S)


async def _told(testbed: ChaosStage, seen: Seen) -> None:
    """Note what engines, link and replicas say at the end."""
    replicas = [gateway.view for gateway in testbed.gateways.values()]
    urls = [engine.url for engine in testbed.engines.values()]
    seen.left += await leftovers(replicas, [*urls, *filter(None, [testbed.link_url])])
    seen.stats |= await _stats(testbed)
    if testbed.link_url:
        seen.link = (await testbed.control.get(f"{testbed.link_url}/_stats")).json()
        seen.link_since_s = asyncio.get_running_loop().time() - seen.link["age_s"]
        seen.offload = (await replicas[0].client.get("/offload")).raise_for_status().json()
    for replica in replicas:
        for name, value in (await replica.metrics()).items():
            seen.metrics[name] += value  # type: ignore[assignment]  # counters may be fractions
    seen.errors = testbed.errors()
