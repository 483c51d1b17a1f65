"""KV stacks that can be built."""

from random import Random

import pytest

from loadtest.engine.kv.l3 import BlockSizes, L3Settings, build_pool
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.stack import block_sizes, build_stack, has_lower_tiers
from loadtest.engine.kv.tiers import HiCacheSettings

DENSE = CacheRules(full_tokens=6400)
SLIDING = CacheRules(
    full_tokens=6400, attention="sliding_window", window_tokens=128, swa_tokens=1280, chunk_tokens=512
)


def test_sizes_follow_from_the_bytes_of_a_token() -> None:
    assert block_sizes(DENSE, 100, 20) == BlockSizes(64, 6400)
    assert block_sizes(SLIDING, 100, 20) == BlockSizes(64, 6400, 1280, 2)
    linear = CacheRules(full_tokens=6400, attention="linear", state_slots=4)
    assert block_sizes(linear, 100, 0, 5000) == BlockSizes(64, 6400, 5000, 1)


def test_a_stack_without_a_host_tier_is_the_device_alone() -> None:
    stack = build_stack(DENSE, sizes=block_sizes(DENSE, 100))
    lease = stack.cache.open(b"", 1, 1, 0.0)

    assert stack.tiers is None
    assert lease.ready_s == 0.0


def test_two_stacks_with_one_pool_share_what_they_compute() -> None:
    sizes = block_sizes(SLIDING, 100, 20)
    pool = build_pool(L3Settings(), sizes)
    prompt = Random(1).randbytes(8 * 40)
    for matched in (0, 40 * 64):
        stack = build_stack(SLIDING, sizes=sizes, settings=HiCacheSettings(), client=L3Client(pool))
        lease = stack.cache.open(prompt, 40 * 64 + 1, 1, 0.0)
        assert stack.cache.admit(lease, lease.ready_s)
        stack.cache.computed(lease, 40 * 64 + 1, 1.0)
        stack.cache.close(lease, prompt, 40 * 64 + 1, 1.0)
        assert lease.pool_tokens == matched


def test_what_has_no_lower_tiers_is_refused() -> None:
    vllm = CacheRules(
        full_tokens=6400, attention="sliding_window", window_tokens=128, swa_tokens=1280, match_rule="vllm"
    )
    assert not has_lower_tiers(vllm)
    with pytest.raises(ValueError, match="no host tier"):
        build_stack(vllm, sizes=block_sizes(vllm, 100, 20), settings=HiCacheSettings())
    assert has_lower_tiers(DENSE)


def test_a_shared_pool_needs_a_host_tier() -> None:
    sizes = block_sizes(DENSE, 100)
    client = L3Client(build_pool(L3Settings(), sizes))
    with pytest.raises(ValueError, match="host tier"):
        build_stack(DENSE, sizes=sizes, client=client)
