"""A decode worker writes its answers to the pool, and nothing else."""

from random import Random

import pytest

from loadtest.engine.kv.l3 import L3Settings, build_pool
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.stack import block_sizes, build_stack

SIZE = 64
DENSE = CacheRules(full_tokens=100 * SIZE)
SLIDING = CacheRules(
    full_tokens=100 * SIZE, attention="sliding_window", window_tokens=2 * SIZE, swa_tokens=90 * SIZE
)
LINEAR = CacheRules(full_tokens=100 * SIZE, attention="linear", state_slots=4)


@pytest.mark.parametrize("rules", [DENSE, SLIDING, LINEAR])
def test_a_prefill_worker_finds_an_answer_that_a_decode_worker_computed(rules: CacheRules) -> None:
    sizes = block_sizes(rules, 100, 20, 5000)
    pool = build_pool(L3Settings(), sizes)
    client = L3Client(pool)
    sequence = Random(1).randbytes(8 * 40)
    prompt = sequence[: 8 * 20]
    pool.store((1).to_bytes(4, "little"), prompt, 0, 20, ((18, 20),), 0.0)
    cache = build_stack(rules, sizes=sizes, client=client, decodes=True).cache

    lease = cache.open(prompt, 20 * SIZE + 10, 20 * SIZE, 0.0)
    assert cache.admit(lease, 0.0)
    cache.computed(lease, lease.prompt_tokens, 1.0)
    assert client.written_blocks == 0, "the prompt is the prefill worker's to write"
    cache.close(lease, sequence, 40 * SIZE, 2.0)

    assert client.written_blocks == 20
    assert client.find(sequence, 0, 40, 3.0).end_block == 40
    assert client.read_blocks == 0
