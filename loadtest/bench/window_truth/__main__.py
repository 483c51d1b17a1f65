"""The table of window-safe lengths: ``python -m loadtest.bench.window_truth`` (docs/window-truth.md).

For each kind of tiny model a real vLLM (`loadtest.vllm`) behind a gateway gets a script of token-id prompts,
one at a time. The table compares predictions with the engine's ``cached_tokens``.

    --requests N --seed S        how many, and which
    --kinds qwen3 gemma3 ...     models [all three]
    --kv-blocks N                a small cache, which evicts
    --events                     with KV events: the gateway knows what is decoded, and what goes
    --engine URL                 a running engine with an empty cache, for one kind
    --record FOLDER              keep the engine's answers, for tests without engines (`records`)

It fails if the gateway is wrong by more than a block on average or promises too much for more than 1 % of the
requests, where they are predictable: not from a small cache, and on a model with full attention only with KV
events where prompts come back to answers.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx

from loadtest.bench.window_truth.asking import KEPT_MAX, Truth, truths
from loadtest.bench.window_truth.judges import (
    BLOCK_TOKENS,
    SWA_GROUPS,
    Simulated,
    attention_of,
    rules_of,
)
from loadtest.bench.window_truth.records import Record, write
from loadtest.bench.window_truth.script import Script
from loadtest.bench.window_truth.table import lines, markdown
from loadtest.processes import ChildFailed, GatewayChild
from loadtest.vllm import EngineFailed, VllmServer, VllmSettings

STEP_TOKENS = 256
MODEL_TOKENS = 1024
KV_BLOCKS = 8192
"""Room for everything that a run leaves behind."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each model; 1 if one is worse than promised, or an engine cannot be had."""
    options = _parser().parse_args(arguments)
    try:
        return asyncio.run(_all(options))
    except (EngineFailed, ChildFailed) as error:
        print(error, file=sys.stderr)
        return 1


async def _all(options: argparse.Namespace) -> int:
    status = 0
    for kind in options.kinds:
        found = await _one(kind, options)
        table = lines(found, BLOCK_TOKENS)
        print(f"\n{kind}, {len(found)} requests, seed {options.seed}, {options.kv_blocks} blocks", end="")
        print(", with KV events\n" if options.events else "\n")
        print(markdown(table), flush=True)
        name = "all" if SWA_GROUPS[kind] or options.events else "prompts alone"
        judged = next(line.errors["window-safe"] for line in table if line.name == name)
        if options.kv_blocks >= KV_BLOCKS and not judged.kept:
            status = 1
    return status


async def _one(kind: str, options: argparse.Namespace) -> list[Truth]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="window-truth-")))
        engine_url = options.engine
        if not engine_url:
            settings = VllmSettings(
                model=kind,
                max_model_tokens=MODEL_TOKENS,
                block_tokens=BLOCK_TOKENS,
                kv_blocks=options.kv_blocks,
                step_tokens_max=STEP_TOKENS,
            )
            engine_url = (await stack.enter_async_context(VllmServer(settings, told=_told))).url
        gateway_url = await stack.enter_async_context(
            gateway(engine_url, kind, folder, events=options.events)
        )
        rules = rules_of(kind, kv_blocks=options.kv_blocks, step_tokens=STEP_TOKENS)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway_url, trust_env=False))
        found = await truths(client, Script(options.seed), options.requests, Simulated(rules))
    if options.record:
        cached = [truth.cached_tokens for truth in found]
        write(Path(options.record), Record(kind, options.seed, options.kv_blocks, STEP_TOKENS, cached))
    return found


@contextlib.asynccontextmanager
async def gateway(engine_url: str, kind: str, folder: Path, *, events: bool) -> AsyncIterator[str]:
    """A gateway with one worker, which follows its events or does not; yields its URL."""
    profile = attention_of(kind)
    model: dict[str, object] = {"attention": profile.kind, "window_tokens": profile.window_tokens}
    if events:  # which are about token ids, so there must be a way from text to them
        model["tokenizer"] = "engine"
    settings = {
        "placement": {"block_tokens": BLOCK_TOKENS, "models": {"*": model}},
        "fleet": {"kv_events": "auto" if events else "off"},
    }
    config = folder / "gateway.yaml"
    config.write_text(json.dumps(settings))
    flags = ["--config", str(config), "--worker-urls", engine_url, "--log-level", "warning"]
    async with GatewayChild("gateway", flags, folder) as child:
        await child.wait_until_ready()
        yield child.url


def _told(line: str) -> None:
    print(line, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.window_truth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = list(SWA_GROUPS)
    parser.add_argument("--requests", type=int, default=300, choices=range(1, KEPT_MAX + 1), metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, metavar="KIND")
    parser.add_argument("--kv-blocks", type=int, default=KV_BLOCKS, metavar="N")
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--engine", default="", metavar="URL")
    parser.add_argument("--record", default="", metavar="FOLDER")
    return parser


if __name__ == "__main__":
    sys.exit(main())
