"""Sizes of memory become the settings of tiers."""

from dataclasses import replace

import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.memory import Memory, can_hold_more, device_tokens

PRO, KIMI = PROFILES["mimo-v2.5-pro"], PROFILES["kimi-linear-1t"]


def test_without_memory_below_the_device_there_are_no_tiers() -> None:
    assert Memory().host(PRO) is None
    assert Memory().pool() is None
    assert Memory().capacity_tokens(PRO, 3) == 3 * device_tokens(PRO)


def test_host_memory_of_a_worker_is_divided_between_its_ranks_in_whole_blocks() -> None:
    host = Memory(host_tokens=20_000_001).host(PRO)

    assert host is not None
    assert PRO.dp_ranks == 2
    assert host.host_tokens == 10_000_000
    assert host.host_ratio == pytest.approx(10_000_000 / PRO.rules.full_tokens)


def test_the_larger_of_device_and_host_counts_since_one_is_a_copy_of_the_other() -> None:
    assert Memory(host_tokens=20_000_000).capacity_tokens(PRO, 3) == 60_000_000
    assert Memory(host_tokens=1_000_000).capacity_tokens(PRO, 3) == 3 * device_tokens(PRO)


def test_a_pool_is_there_once_and_brings_host_memory_with_it() -> None:
    memory = Memory(pool_tokens=80_000_000)
    pool, host = memory.pool(), memory.host(PRO)

    assert pool is not None
    assert pool.nodes * pool.memory_tokens == 80_000_000
    assert host is not None
    assert memory.capacity_tokens(PRO, 2) == 2 * 2 * int(2.0 * PRO.rules.full_tokens) + 80_000_000


def test_vllms_windows_have_no_lower_tiers() -> None:
    assert can_hold_more(PRO)
    assert can_hold_more(KIMI)
    assert not can_hold_more(replace(PRO, rules=replace(PRO.rules, match_rule="vllm")))
