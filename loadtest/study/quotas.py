"""Two tenants in caches too small for both, with and without a quota: ``python -m loadtest.study.quotas``.

    agents   24 sessions whose prompts grow turn by turn, with pauses in which their blocks must stay
    bulk     1,500 prompts that share nothing and never come back

Least recently used, bulk's blocks push out the agents'. The engines are slowed until a worker is busy for
`UTILISATION` of the run, drain included: caches are scarce here, and compute is not. The quota is bulk's.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.generated import AgenticShape, Lengths, generate_agentic
from loadtest.simulator.identity import HASH_BYTES, hashes_of, scope_root
from loadtest.simulator.records import Outcome, Records
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.study.shipped import shipped_queue

AGENTS, BULK = "agents", "bulk"

AGENTS_SHAPE = AgenticShape(
    task=Lengths(8_000, 0.6, 40_000),
    turns=Lengths(20, 0.5, 60),
    pause_s=Lengths(15, 0.8, 120),
    agents_ratio=0.0,
)
SESSIONS, PROMPTS = 24, 1_500
SPAN_S = 600.0
BULK_TOKENS, BULK_OUTPUT_TOKENS = 12_000, 50

KV_TOKENS = 150_000
"""KV space of a worker, a ninth of the profile's: eight hold half of both tenants' need."""

UTILISATION = 0.12
SEEDS = (1, 2, 3)
SHARES = (1.0, 0.5, 0.25, 0.1)


@dataclass(frozen=True, slots=True)
class Served:
    """Results of one tenant."""

    hit_ratio: float
    ttft_mean_s: float
    ttft_p90_s: float


def traffic(seed: int) -> Workload:
    """Sessions of both tenants in order of their starts."""
    chance = random.Random(f"{seed}/quotas")
    agents = generate_agentic(users=1, sessions=SESSIONS, seed=seed, shape=AGENTS_SHAPE)
    made = [
        Session(chance.uniform(0.0, 0.6 * SPAN_S), session.requests, f"normal/{AGENTS}")
        for session in agents.sessions
    ]
    for number in range(PROMPTS):
        tokens = int(BULK_TOKENS * chance.lognormvariate(0.0, 0.5))
        held = (tokens + BULK_OUTPUT_TOKENS - 1) // ENGINE_BLOCK_TOKENS
        hashes = hashes_of(scope_root("quotas", seed, number), np.arange(held, dtype=np.uint64)).tobytes()
        prompt_bytes = tokens // ENGINE_BLOCK_TOKENS * HASH_BYTES
        request = SimRequest(hashes[:prompt_bytes], tokens, BULK_OUTPUT_TOKENS, hashes[prompt_bytes:])
        made.append(Session(chance.uniform(0.0, SPAN_S), (request,), f"normal/{BULK}"))
    made.sort(key=lambda session: session.start_s or 0.0)
    return Workload("two tenants", tuple(made))


def served(workload: Workload, share: float, seed: int) -> dict[str, Served]:
    """Simulate with a share of KV space for bulk; 1: no quota."""
    engine = PROFILES["dense-70b"]
    engine = replace(engine, rules=replace(engine.rules, full_tokens=KV_TOKENS))
    shares = {BULK: share}
    rules = {
        "default_model": engine.prefill.model(),
        "cache_share_of": lambda tenant: shares.get(tenant, 1.0) if share < 1.0 else None,
    }
    config = SimulationConfig(
        engine=engine, utilisation=UTILISATION, seed=seed, rules=rules, queue=shipped_queue()
    )
    records = simulate(workload, config).records
    bulk = (records.output_tokens == BULK_OUTPUT_TOKENS) & (records.ideal_tokens == 0)
    return {AGENTS: _served(records, ~bulk), BULK: _served(records, bulk)}


def _served(records: Records, rows: np.ndarray) -> Served:
    rows = rows & (records.outcome == Outcome.COMPLETED)
    ttft_s = records.ttft_s[rows]
    return Served(
        float(records.reused_tokens[rows].sum() / records.prompt_tokens[rows].sum()),
        float(ttft_s.mean()),
        float(np.percentile(ttft_s, 90)),
    )


def main(seeds: Sequence[int] = SEEDS) -> None:
    """Print a line for each seed and share."""
    sys.stdout.write("seed share | agents: hit, mean and P90 TTFT | bulk: mean and P90 TTFT\n")
    for seed in seeds:
        workload = traffic(seed)
        for share in SHARES:
            found = served(workload, share, seed)
            agents, bulk = found[AGENTS], found[BULK]
            sys.stdout.write(
                f"{seed:4} {share:5} | {agents.hit_ratio:6.1%} {agents.ttft_mean_s:6.2f} s"
                f" {agents.ttft_p90_s:6.2f} s | {bulk.ttft_mean_s:6.2f} s {bulk.ttft_p90_s:6.2f} s\n"
            )


if __name__ == "__main__":
    main()
