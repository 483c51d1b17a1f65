"""The traffic of PrfaaS's case study: independent prompts of lognormal length in an open loop.

    length = exp(N(9.90, 1.00)) tokens, drawn again outside [128, 131072]     mean 27.5K, P90 62.4K
    answer = 1,024 tokens

(PrfaaS, arXiv:2604.15039, 4.1.) Prompts share nothing. Arrivals are not published: *Poisson* is the usual
assumption; *bursts* modulates its rate, by a factor drawn for every minute from a gamma distribution of mean
1, since recorded traffic is overdispersed in minutes and nearly Poisson in seconds (Azure 2024: index of
dispersion 1-3 up to 1 s, 7-20 at 60 s; theory C). A seed draws the same lengths and unit-rate arrivals at
every rate. Agents, who reuse most of what they send, come in a closed loop.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadtest.plan.prfaas.paper import MU, OUTPUT_TOKENS, SIGMA, TOKENS_MAX, TOKENS_MIN
from loadtest.simulator.generated import CODING_AGENTS, generate_agentic
from loadtest.simulator.identity import hashes_of, scope_root
from loadtest.simulator.records import Floats
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload

BURST_S = 60.0
BURST_SHAPE = 15.0
"""Shape of the gamma distribution: at 3 requests/s dispersion is 1 + 180/15 = 13 over a minute."""


def lognormal_workload(requests: int, rate_per_s: float, *, seed: int, bursts: bool = False) -> Workload:
    """Draw ``requests`` > 0 independent ones at a mean rate > 0.

    With ``bursts`` the rate changes every minute.
    """
    assert requests > 0
    assert rate_per_s > 0
    chance = np.random.default_rng((seed, 0x9E37))
    lengths = prompt_lengths(requests, chance)
    times_s = np.cumsum(chance.exponential(size=requests)) / rate_per_s
    if bursts:
        times_s = _bursty(times_s, np.random.default_rng((seed, 0xB0B5)))
    root = scope_root("prfaas", seed)
    first = 0
    sessions = []
    for tokens, start_s in zip(lengths.tolist(), times_s.tolist(), strict=True):
        blocks = -(-(tokens + OUTPUT_TOKENS) // ENGINE_BLOCK_TOKENS)
        hashes = hashes_of(root, np.arange(first, first + blocks, dtype=np.uint64)).tobytes()
        first += blocks
        asked, held = (
            tokens // ENGINE_BLOCK_TOKENS * 8,
            (tokens + OUTPUT_TOKENS - 1) // ENGINE_BLOCK_TOKENS * 8,
        )
        request = SimRequest(hashes[:asked], tokens, OUTPUT_TOKENS, hashes[asked:held])
        sessions.append(Session(start_s, (request,)))
    arrivals = "bursts" if bursts else "Poisson"
    return Workload(
        f"lognormal, {arrivals}", tuple(sessions), notes=f"{rate_per_s:g} requests/s, seed {seed}"
    )


def prompt_lengths(count: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Draw lengths of prompts, tokens."""
    accepted: list[Floats] = []
    missing = count
    while missing > 0:
        drawn = np.exp(MU + SIGMA * chance.standard_normal(missing))
        accepted.append(drawn[(drawn >= TOKENS_MIN) & (drawn <= TOKENS_MAX)])
        missing -= len(accepted[-1])
    return np.concatenate(accepted).astype(np.int64)


def _bursty(times_s: Floats, chance: np.random.Generator) -> Floats:
    """Let time pass faster in some minutes than in others, the same number of arrivals in all."""
    minutes = int(times_s[-1] / BURST_S) + 2
    factors = chance.gamma(BURST_SHAPE, 1.0 / BURST_SHAPE, size=minutes)
    work = np.concatenate(([0.0], np.cumsum(factors))) * BURST_S
    work *= minutes * BURST_S / work[-1]
    bursty: Floats = np.interp(times_s, work, np.arange(minutes + 1) * BURST_S)
    return bursty


def agents_workload(users: int, sessions: int, *, seed: int) -> Workload:
    """Draw ``sessions`` > 0 of coding agents (`loadtest.simulator.generated`) for ``users`` > 0 at a time.

    They are not longer than the other prompts.
    """
    shape = replace(CODING_AGENTS, context_tokens_max=TOKENS_MAX)
    return generate_agentic(users=users, sessions=sessions, seed=seed, shape=shape)
