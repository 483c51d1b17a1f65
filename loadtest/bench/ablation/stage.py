"""One arm in one round: empty engines, a new gateway in front of them, the load, and what was seen."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest.bench.ablation.arms import Arm
from loadtest.bench.ablation.conversations import Agent, ideal_ratio
from loadtest.bench.ablation.engines import BLOCK_TOKENS, empty, hit_tokens
from loadtest.bench.ablation.results import Run, summed
from loadtest.bench.process_tree import cpu_s
from loadtest.client import LoadClient, Outcome
from loadtest.ideal import IdealCache
from loadtest.processes import ChildFailed, GatewayChild
from loadtest.progress import shown
from loadtest.replay import Sample, replay
from loadtest.report import Tally
from loadtest.vllm import MODEL_NAME, VllmEngine
from loadtest.vllm.models import WINDOW_TOKENS

ATTENTION: dict[str, dict[str, object]] = {
    "qwen3": {},
    "gemma3": {"attention": "sliding_window", "window_tokens": WINDOW_TOKENS},
}
"""Operator's description of each kind of model (``placement.models``)."""

REQUEST_TIMEOUT_S = 300.0
"""Long enough for a machine that does much else."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Parts that all arms of one kind of model share.

    ``tokenizer`` is a folder for arms with exact identity.
    """

    kind: str
    engines: Sequence[VllmEngine]
    tokenizer: Path
    flags: Sequence[str] = ()

    def gateway_flags(self, arm: Arm) -> list[str]:
        """Flags of ``cacheway serve`` for one arm."""
        profile = ATTENTION[self.kind] | ({"tokenizer": str(self.tokenizer)} if arm.exact else {})
        return [
            *("--policy", arm.policy, "--worker-urls", *(engine.url for engine in self.engines)),
            *("--block-tokens", str(BLOCK_TOKENS), "--models", json.dumps({MODEL_NAME: profile})),
            *("--log-level", "warning", "--shutdown-delay-secs", "0"),
            *(("--kv-events", "auto") if arm.events else ()),
            *self.flags,
        ]


async def run_arm(
    stage: Stage, arm: Arm, scripts: Sequence[Agent], round_number: int, console: Console
) -> Run:
    """Run one arm; `ChildFailed` if the gateway or a request fails, `EngineFailed` if an engine does."""
    loop = asyncio.get_running_loop()
    await empty(stage.engines)
    outcomes: list[Outcome] = []
    tally = Tally()

    def observe(sample: Sample) -> None:
        tally.add(sample)
        outcomes.append(sample.outcome)

    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-ablation-")))
        gateway = GatewayChild(arm.key, stage.gateway_flags(arm), directory)
        await stack.enter_async_context(gateway)
        await gateway.wait_until_ready()
        client = await stack.enter_async_context(LoadClient(REQUEST_TIMEOUT_S))
        hits_before = await hit_tokens(stage.engines)
        cpu_before_s, started_s = cpu_s([gateway.pid]), loop.time()
        title = f"{stage.kind}, round {round_number}, {arm.title}"
        async with shown(console, title, sum(script.turn_count for script in scripts), tally):
            await replay(scripts, [gateway.url], client, IdealCache(BLOCK_TOKENS), observe)
        duration_s = loop.time() - started_s
        gateway_cpu_s = cpu_s([gateway.pid]) - cpu_before_s
        hits = await hit_tokens(stage.engines)
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed or not outcomes:
        raise ChildFailed(f"{title}: {len(failed)} requests failed: {next(iter(failed), 'none was sent')}")
    return summed(
        outcomes,
        model=stage.kind,
        arm=arm.key,
        round_number=round_number,
        ideal_ratio=ideal_ratio(scripts, BLOCK_TOKENS),
        engine_hit_tokens=hits - hits_before,
        block_tokens=BLOCK_TOKENS,
        gateway_cpu_s=gateway_cpu_s,
        duration_s=duration_s,
    )
