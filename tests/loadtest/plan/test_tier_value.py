"""Value of lifetime and room, on traffic whose reuse is known."""

from dataclasses import replace

import pytest
from fakes.workloads import conversations, request

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES
from loadtest.plan.tier_value import ENOUGH, tier_value
from loadtest.simulator.bounds import hit_ratio, infinite_hit_tokens
from loadtest.simulator.workload import Session, Workload

ENGINE = replace(PROFILES["dense-70b"], rules=CacheRules(full_tokens=20_000))


def test_a_block_outlives_pauses_that_are_shorter_than_its_lifetime() -> None:
    """The same prompt comes after 20 s, then after 200 s; of 640 tokens 576 can be reused."""
    comes = [request(bytes(999), 640, 1) for _ in range(3)]
    sessions = [Session(at_s, (one,)) for at_s, one in zip((0.0, 20.0, 220.0), comes, strict=True)]

    value = tier_value(Workload("three", tuple(sessions)), ENGINE, 1, 2 * 576 / 1920)

    found = dict(zip(value.ttl.points, value.ttl.hit_ratios, strict=True))
    assert found == {10: 0.0, 30: 0.3, 60: 0.3, 120: 0.3, 300: 0.6}


def test_more_room_is_never_worth_less_and_a_pool_is_worth_more_than_as_much_of_each_workers_own() -> None:
    comes = conversations(sessions=60, turns=6, users=12)
    requests = comes.in_order()
    infinite = hit_ratio(requests, infinite_hit_tokens(requests))

    value = tier_value(comes, ENGINE, 3, infinite)

    for line in (value.ttl, value.own, value.pool):
        assert list(line.hit_ratios) == sorted(line.hit_ratios)
        assert line.hit_ratios[-1] <= infinite + 1e-9
    own = dict(zip(value.own.points, value.own.hit_ratios, strict=True))
    assert own[value.device_gib] == value.device_hit_ratio
    assert value.pool.hit_ratios[-1] >= ENOUGH * infinite
    for gib, ratio in zip(value.pool.points, value.pool.hit_ratios, strict=True):
        assert ratio >= max(value.device_hit_ratio, own[gib] - 0.01)


def test_nothing_comes() -> None:
    value = tier_value(Workload("none", ()), ENGINE, 1, 0.0)

    assert value.device_hit_ratio == 0.0
    assert value.ttl.hit_ratios == pytest.approx([0.0])
