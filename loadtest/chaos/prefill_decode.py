"""Prefill and decode apart, some prefill in another site, and everything that can fail on the way.

Where what stands is in `loadtest.chaos.two_sites`; the crowd is in this process.

    0.15  p2 killed ─ 0.22 back         0.45  link at 10 % ─ 0.65 as before      (shares of the run's seconds)
    0.30  d2 killed ─ 0.37 back         0.72  r2 killed      0.80 link dead ─ 0.83 back

Workers that are killed come back on their port, as an orchestrator lets them; the replica does not, and the
crowd forgets its URL in that moment, as a balancer would. The prompts of the crowd are chat, growing
sessions, and long ones: together nearly what both local workers can prefill.
"""

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from loadtest.chaos.crowd import Client, Crowd, Mix, Served
from loadtest.chaos.leftovers import leftovers
from loadtest.chaos.two_sites import SLOW_RATIO, Sites, TwoSites

MIX = Mix(
    shares=(0.55, 0.37, 0.08),
    short_tokens=(200, 1500),
    long_tokens=(10_000, 30_000),
    follow_up_tokens=400,
    context_tokens_max=12_000,
    output_tokens=(8, 60),
    deadline_share=0.0,
)

SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class PrefillDecodePlan(Sites):
    """What happens, and where.

    Attributes:
        seconds: How long requests are sent.
        rate_per_s: Requests per second.
        disaster: Whether anything fails.
        patience_s: A request that is not over by then hangs.
        seed: Of the crowd.
    """

    seconds: float = 300.0
    rate_per_s: float = 5.0
    disaster: bool = True
    patience_s: float = 60.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed, and when in event loop time."""

    name: str
    at_s: float


@dataclass(slots=True)
class PrefillDecodeRun:
    """What was seen.

    Attributes:
        plan: What was to happen.
        served: What came of every request.
        sent: Requests that were sent.
        unsent: Requests for which the crowd had no connection left.
        kills: What was killed.
        dead: Base URL of the replica that was killed; empty if none was.
        prefilled: Requests that each prefill worker took, all its lives together.
        prompt_tokens: Of the prompts that prefill workers computed, as far as they could still tell.
        cached_tokens: What of these they had cached.
        link: What the link says at the end.
        link_since_s: When it was made, in event loop time.
        link_faults: From when to when in event loop time it carried less than it should.
        offload: What a living replica says of its offload decisions at the end.
        metrics: Of every living replica at the end, summed up.
        left: What was not empty at the end, in words.
        errors: Lines that replicas logged as errors.
    """

    plan: PrefillDecodePlan
    served: list[Served] = field(default_factory=list)
    sent: int = 0
    unsent: int = 0
    kills: list[Kill] = field(default_factory=list)
    dead: str = ""
    prefilled: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    link: dict[str, Any] = field(default_factory=dict)
    link_since_s: float = 0.0
    link_faults: list[tuple[float, float]] = field(default_factory=list)
    offload: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def run_prefill_decode(plan: PrefillDecodePlan) -> PrefillDecodeRun:
    """Run it from start to end.

    Raises:
        ChildFailed: A process did not come up.
    """
    run = PrefillDecodeRun(plan)
    async with contextlib.AsyncExitStack() as stack:
        stage = TwoSites(plan, stack)
        await stage.start()
        crowd = Crowd(
            [replica.url for replica in stage.replicas],
            [Client("")],
            rate_per_s=plan.rate_per_s,
            deadline_s=plan.patience_s,
            patience_s=plan.patience_s,
            seed=plan.seed,
            mix=MIX,
        )
        crowd.phase = "calm"
        async with crowd:
            sampler = asyncio.create_task(_sampled(stage), name="sampler")
            if plan.disaster:
                await _disaster(stage, crowd, run)
            else:
                await asyncio.sleep(plan.seconds)
            await crowd.stop()
            sampler.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampler
        run.served, run.sent, run.unsent = crowd.served, crowd.sent.total(), crowd.unsent
        engines = [worker.url for worker in stage.workers.values()]
        run.left = await leftovers(stage.replicas, [*engines, stage.link_url])
        await _told(stage, run)
    return run


async def _disaster(stage: TwoSites, crowd: Crowd, run: PrefillDecodeRun) -> None:
    """What the module says, when it says."""
    loop, seconds = asyncio.get_running_loop(), run.plan.seconds
    began_s = loop.time()

    async def until(share: float) -> None:
        await asyncio.sleep(began_s + share * seconds - loop.time())

    async def killed(name: str, share: float) -> None:
        run.kills.append(Kill(name, loop.time()))
        await stage.workers[name].kill()
        await until(share)
        await stage.workers[name].start()

    await until(0.15)
    crowd.phase = "workers killed"
    await killed("p2", 0.22)
    await until(0.30)
    await killed("d2", 0.37)

    async def link_fails(kind: str, share: float) -> None:
        run.link_faults.append((loop.time(), loop.time() + share * seconds))
        await stage.link_fault(kind, share * seconds)

    await until(0.45)
    crowd.phase = f"link at {SLOW_RATIO:.0%}"
    await link_fails("slow", 0.20)
    await until(0.65)
    crowd.phase = "replica killed, link dead"
    await until(0.72)
    run.dead = stage.replicas[-1].url
    crowd.urls.remove(run.dead)
    run.kills.append(Kill("r2", loop.time()))
    await stage.kill_last_replica()
    await until(0.80)
    await link_fails("dead", 0.03)
    await until(0.88)
    crowd.phase = "after"
    await until(1.0)


async def _sampled(stage: TwoSites) -> None:
    while True:
        await stage.look()
        await asyncio.sleep(SAMPLE_S)


async def _told(stage: TwoSites, run: PrefillDecodeRun) -> None:
    """What engines, link and replicas say at the end."""
    await stage.look()
    for (name, _), stats in stage.stats.items():
        if stage.workers[name].role == "prefill":
            run.prefilled[name] += stats["requests"]
            run.prompt_tokens += stats["prompt_tokens"]
            run.cached_tokens += stats["cached_tokens"]
    run.link = (await stage.control.get(f"{stage.link_url}/_stats")).json()
    run.link_since_s = asyncio.get_running_loop().time() - run.link["age_s"]
    run.offload = (await stage.replicas[0].client.get("/offload")).raise_for_status().json()
    for replica in stage.replicas:
        for name, value in (await replica.metrics()).items():
            run.metrics[name] = run.metrics.get(name, 0.0) + value
    run.errors = stage.errors()
