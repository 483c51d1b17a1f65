"""Every key of ``--pool`` changes the result of a simulation, in the direction that its name says."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from fakes.workloads import conversations

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES
from loadtest.simulator.memory import Memory
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.tier_rules import KEYS, read_tier_rules

ENGINE = replace(PROFILES["dense-70b"], rules=CacheRules(full_tokens=20_000))
COMES = replace(conversations(sessions=24, turns=5, users=8, gap_s=2.0), named_sessions=True)
SLOW = "node_bytes_per_s=100M"
AWAY = "absences=2@10-30 1@10-30"

Figures = dict[str, float]


@cache
def found(
    rules: str,
    *,
    pool_tokens: int = 300_000,
    named: bool = True,
    policy: str = "round_robin",
    decode: int = 0,
) -> Figures:
    """Three workers share their computed blocks because requests come to them in turn."""
    memory = Memory(60_000, pool_tokens, read_tier_rules(rules))
    config = SimulationConfig(
        engine=ENGINE,
        policy=policy,
        workers=3,
        decode_workers=decode,
        host=memory.host(ENGINE),
        l3=memory.pool(),
    )
    return simulate(replace(COMES, named_sessions=named), config).summary()  # type: ignore[return-value]


def less(key: str, one: Figures, other: Figures) -> bool:
    return one[key] < other[key]


CASES: dict[str, Callable[[], bool]] = {
    "kind": lambda: found("kind=pooled")["pool_imbalance"] == 1.0 < found("")["pool_imbalance"],
    "write_policy": lambda: less("hit_pool_ratio", found("write_policy=write_back"), found("")),
    "prefetch_policy": lambda: less(
        "hit_pool_ratio",
        found(f"{SLOW},prefetch_policy=best_effort"),
        found(f"{SLOW},prefetch_policy=wait_complete"),
    ),
    "prefetch_threshold_tokens": lambda: less(
        "prefetches", found("prefetch_threshold_tokens=4000"), found("")
    ),
    "prefetch_timeout_base_s": lambda: less(
        "ttft_mean_s", found(f"{SLOW},prefetch_timeout_base_s=0"), found(SLOW)
    ),
    "prefetch_timeout_per_ki_token_s": lambda: less(
        "ttft_mean_s", found(SLOW), found(f"{SLOW},prefetch_timeout_per_ki_token_s=3")
    ),
    "prefetch_timeout_max_s": lambda: less(
        "ttft_mean_s", found(f"{SLOW},prefetch_timeout_max_s=0.1"), found(SLOW)
    ),
    "prefetch_limit_ratio": lambda: (
        found("prefetch_limit_ratio=0")["prefetches"] == 0 < found("")["prefetches"]
    ),
    "prefetch_batch_blocks": lambda: less(
        "hit_pool_ratio",
        found("node_bytes_per_s=500M"),
        found("node_bytes_per_s=500M,prefetch_batch_blocks=1"),
    ),
    "nodes": lambda: found("nodes=1")["pool_imbalance"] == 1.0,
    "disk_tokens": lambda: less(
        "pool_evicted_bytes",
        found("disk_tokens=300K", pool_tokens=60_000),
        found("", pool_tokens=60_000),
    ),
    "disk_bytes_per_s": lambda: less(
        "ttft_mean_s",
        found("disk_tokens=300K", pool_tokens=60_000),
        found("disk_tokens=300K,disk_bytes_per_s=100M", pool_tokens=60_000),
    ),
    "ttl_s": lambda: less("hit_pool_ratio", found("ttl_s=0.5"), found("")),
    "node_bytes_per_s": lambda: less("ttft_mean_s", found(""), found(SLOW)),
    "latency_s": lambda: less("ttft_mean_s", found(""), found("latency_s=0.5")),
    "sdk_timeout_s": lambda: less(
        "ttft_mean_s", found(f"{AWAY},detection_s=99"), found(f"{AWAY},detection_s=99,sdk_timeout_s=3")
    ),
    "detection_s": lambda: less("hit_pool_ratio", found(f"{AWAY},detection_s=99"), found(AWAY)),
    "group_tokens": lambda: (
        found("", named=False)["pool_imbalance"] != found("group_tokens=64", named=False)["pool_imbalance"]
    ),
    "rank_loss_ratio": lambda: less("hit_pool_ratio", found("rank_loss_ratio=0.01"), found("")),
    "keep_alive": lambda: less(
        "pool_evicted_bytes",
        found("ttl_s=4", policy="expected_cost"),
        found("ttl_s=4,keep_alive=no", policy="expected_cost"),
    ),
    "share_tensor_parallel": lambda: (
        found("tensor_parallel=4 8,share_tensor_parallel=yes")["hit_pool_ratio"]
        == found("")["hit_pool_ratio"]
    ),
    "tensor_parallel": lambda: less("hit_pool_ratio", found("tensor_parallel=4 8"), found("")),
    "decode_writes": lambda: less("hit_ratio", found("decode_writes=no", decode=2), found("", decode=2)),
    "absences": lambda: (
        found(AWAY)["hit_pool_ratio"]
        < found("absences=2@10-30:planned 1@10-30:planned")["hit_pool_ratio"]
        == found("")["hit_pool_ratio"]
    ),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_has_the_effect_that_its_name_says(key: str) -> None:
    assert CASES[key]()


def test_pairs_hit_as_plain_workers_do_when_decode_workers_write_back() -> None:
    plain, pairs = found("")["hit_ratio"], found("", decode=2)["hit_ratio"]

    assert found("decode_writes=no", decode=2)["hit_ratio"] < pairs
    assert pairs == pytest.approx(plain, abs=0.01)
