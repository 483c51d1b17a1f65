"""Predicted against real reuse of simulated fleets, by engine and rule (docs/window-truth.md).

    python -m loadtest.bench.promises [--traffic T ...] [--engines E ...] [--seeds N ...] [--blocks 256]

Each row is a run of the policy study's traffic at 80 % load with the production decisions. *Over* and
*under* are requests that were promised a block too much or too little, and tokens so promised per token
reused. An engine that ends in ``/1`` has the memory of all its data-parallel ranks in one: which rank an
engine chooses is another promise. ``/vllm`` runs the engine by vLLM's rule.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.simulator.records import Outcome
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.study.traffic import TRACES, TRAFFIC

BLOCK_TOKENS = 256
"""An error of more than one of the gateway's usual blocks counts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a Markdown table; a row for each traffic, engine and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--traffic", nargs="+", default=["conversation", "agentic-64"], choices=TRAFFIC)
    parser.add_argument("--engines", nargs="+", default=["mimo-v2.5-pro/1", "kimi-linear-1t"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--blocks", type=int, default=BLOCK_TOKENS)
    options = parser.parse_args(arguments)
    print("| traffic | engine | seed | hit | over | over, tokens | under | under, tokens |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for traffic in options.traffic:
        for engine in options.engines:
            for seed in options.seeds:
                print(row(traffic, engine, seed, options.blocks), flush=True)
    return 0


def engine_of(name: str) -> EngineProfile:
    """Return a profile, with what its suffixes say."""
    name, *suffixes = name.split("/")
    engine = PROFILES[name]
    if "1" in suffixes:
        rules, ranks = engine.rules, engine.dp_ranks
        rules = replace(rules, full_tokens=ranks * rules.full_tokens, swa_tokens=ranks * rules.swa_tokens)
        engine = replace(engine, rules=rules, dp_ranks=1)
    if "vllm" in suffixes:
        engine = replace(engine, rules=replace(engine.rules, match_rule="vllm"))
    return engine


def row(traffic: str, engine: str, seed: int, block_tokens: int) -> str:
    """Run one cell and return its row."""
    load = TRAFFIC[traffic]
    config = SimulationConfig(
        engine=engine_of(engine),
        workers=load.workers,
        speed=load.speed,
        seed=seed,
        utilisation=0.8,
        block_tokens=block_tokens,
    )
    result = simulate(load.load(TRACES, seed), config)
    records = result.records
    done = records.outcome == Outcome.COMPLETED
    reused = records.reused_tokens[done]
    error = records.predicted_tokens[done] - reused
    over, under = np.maximum(error, 0).sum() / reused.sum(), np.maximum(-error, 0).sum() / reused.sum()
    return (
        f"| {traffic} | {engine} | {seed} | {result.summary()['hit_ratio']:.1%} "
        f"| {np.mean(error > BLOCK_TOKENS):.1%} | {over:.2%} "
        f"| {np.mean(error < -BLOCK_TOKENS):.1%} | {under:.2%} |"
    )


if __name__ == "__main__":
    sys.exit(main())
