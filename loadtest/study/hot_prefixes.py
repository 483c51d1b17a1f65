"""Hot prefixes with and without copies made ahead of the queue: ``python -m loadtest.study.hot_prefixes``.

Four in five prompts begin with one of a few system prompts of 20,000 tokens and go on for some hundred; the
others share nothing. Cells differ in the number of hot prefixes (drawn by Pareto's law), load and seed. With
``--traces`` the recorded traffic of the policy study at 80 % follows, where copies are to change nothing.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from math import log

import numpy as np

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.identity import HASH_BYTES, hashes_of, scope_root
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.study.shipped import shipped_queue
from loadtest.study.traffic import TRACES, TRAFFIC

REQUESTS, RATE_PER_S = 3_000, 10.0
HEAD_TOKENS, HOT_SHARE = 20_000, 0.8
HEADS = (1, 4)
UTILISATIONS = (0.6, 0.8)
SEEDS = (1, 2, 3)
HORIZON_S = 300.0

Figures = tuple[float, float, float]
"""Hit rate, mean and P90 of the time to first token."""


def traffic(seed: int, heads: int, requests: int = REQUESTS) -> Workload:
    """Poisson arrivals; lengths are lognormal."""
    chance = random.Random(f"{seed}/hot prefixes")
    shared = hashes_of(scope_root("heads", seed), np.arange(HEAD_TOKENS, dtype=np.uint64))
    shared = shared[: heads * (HEAD_TOKENS // ENGINE_BLOCK_TOKENS)].reshape(heads, -1)
    made: list[Session] = []
    at_s = 0.0
    for number in range(requests):
        at_s += chance.expovariate(RATE_PER_S)
        output_tokens = max(1, min(2_000, int(chance.lognormvariate(log(150), 0.8))))
        head = shared[min(int(chance.paretovariate(1.0)) - 1, heads - 1)]
        if chance.random() < HOT_SHARE:
            tokens = HEAD_TOKENS + max(1, min(20_000, int(chance.lognormvariate(log(400), 0.8))))
        else:
            head = head[:0]
            tokens = max(1, min(60_000, int(chance.lognormvariate(log(4_000), 1.0))))
        held = (tokens + output_tokens - 1) // ENGINE_BLOCK_TOKENS
        own = hashes_of(scope_root("own", seed, number), np.arange(held - len(head), dtype=np.uint64))
        blocks = np.concatenate([head, own]).tobytes()
        prompt_bytes = tokens // ENGINE_BLOCK_TOKENS * HASH_BYTES
        made.append(
            Session(at_s, (SimRequest(blocks[:prompt_bytes], tokens, output_tokens, blocks[prompt_bytes:]),))
        )
    return Workload("hot prefixes", tuple(made))


def figures(
    workload: Workload, engine: str, utilisation: float, seed: int, horizon_s: float, speed: float = 1.0
) -> Figures:
    """Simulate with one horizon; 0: no copies ahead of the queue."""
    profile = PROFILES[engine]
    config = SimulationConfig(
        engine=profile,
        utilisation=utilisation,
        seed=seed,
        speed=speed,
        rules={"default_model": profile.prefill.model(), "copy_horizon_s": horizon_s},
        queue=shipped_queue(),
    )
    found = simulate(workload, config).summary()
    hit, mean_s, p90_s = (found[name] for name in ("hit_ratio", "ttft_mean_s", "ttft_p90_s"))
    assert isinstance(hit, float)
    assert isinstance(mean_s, float)
    assert isinstance(p90_s, float)
    return hit, mean_s, p90_s


def cells(seeds: Sequence[int], traces: bool) -> Iterator[tuple[str, Workload, str, float, int]]:
    """Yield name, traffic, engine, utilisation and seed of each cell."""
    for heads in HEADS:
        for utilisation in UTILISATIONS:
            for seed in seeds:
                yield f"{heads} hot", traffic(seed, heads), "dense-70b", utilisation, seed
    for name in ("agentic-64", "conversation") if traces else ():
        for seed in seeds:
            yield name, TRAFFIC[name].load(TRACES, seed), "mimo-v2.5-pro", 0.8, seed


def main(arguments: Sequence[str]) -> None:
    """Print a line for each cell; numbers among the arguments are seeds."""
    seeds = tuple(int(one) for one in arguments if one.isdigit()) or SEEDS
    sys.stdout.write("traffic, load, seed | without: hit, mean and P90 TTFT | with | P90 ratio\n")
    for name, workload, engine, utilisation, seed in cells(seeds, "--traces" in arguments):
        without, copied = (figures(workload, engine, utilisation, seed, each) for each in (0.0, HORIZON_S))
        told = " | ".join(
            f"{hit:6.1%} {mean_s:6.2f} s {p90_s:6.2f} s" for hit, mean_s, p90_s in (without, copied)
        )
        sys.stdout.write(f"{name:12} {utilisation} {seed} | {told} | {copied[2] / without[2]:.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
