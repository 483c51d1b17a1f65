"""A prefix in more demand than one worker can serve is computed on others, too; it is never copied."""

import numpy as np
import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.identity import hashes_of, scope_root
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload

SHARED_BLOCKS, OWN_BLOCKS = 125, 32
OUTPUT_TOKENS = 16
WORKERS = 4


def hot(requests: int, rate_per_s: float) -> Workload:
    """All prompts share their first 8,000 tokens and have 2,048 of their own; arrivals are Poisson."""
    chance = np.random.default_rng(1)
    root = scope_root("hot", 1)
    shared = hashes_of(root, np.arange(SHARED_BLOCKS, dtype=np.uint64)).tobytes()
    sessions, first = [], SHARED_BLOCKS
    for start_s in np.cumsum(chance.exponential(1.0 / rate_per_s, size=requests)).tolist():
        own = hashes_of(root, np.arange(first, first + OWN_BLOCKS + 1, dtype=np.uint64)).tobytes()
        first += OWN_BLOCKS + 1
        asked = shared + own[: OWN_BLOCKS * 8]
        tokens = (SHARED_BLOCKS + OWN_BLOCKS) * ENGINE_BLOCK_TOKENS
        sessions.append(Session(start_s, (SimRequest(asked, tokens, OUTPUT_TOKENS, own[OWN_BLOCKS * 8 :]),)))
    return Workload("hot prefix", tuple(sessions))


@pytest.mark.parametrize(("load", "workers"), [(0.1, 1), (3.0, WORKERS)])
def test_a_hot_prefix_is_computed_again_where_that_is_sooner_than_to_wait(load: float, workers: int) -> None:
    """Load: requests per second, as a share of the capacity of one worker that has the prefix."""
    engine = PROFILES["dense-70b"]
    shared_tokens, own_tokens = SHARED_BLOCKS * ENGINE_BLOCK_TOKENS, OWN_BLOCKS * ENGINE_BLOCK_TOKENS
    one_s = engine.prefill.prompt_s(own_tokens, shared_tokens)
    result = simulate(hot(200, load / one_s), SimulationConfig(engine=engine, workers=WORKERS))
    worker, began_late = result.records.worker, result.records.started_s - result.records.arrival_s
    share = np.bincount(worker[100:], minlength=WORKERS) / len(worker[100:])
    if workers == 1:
        assert share.max() > 0.8
    else:
        assert share.max() < 0.5
        assert np.count_nonzero(share > 0.1) == workers
        assert np.median(began_late[100:]) < 2.0 * one_s
    computed = (result.records.prompt_tokens - result.records.reused_tokens).sum()
    # The shared part is computed at most once on each worker.
    assert computed <= (200 * own_tokens + WORKERS * shared_tokens) * 1.1
