"""Flows that may go, by their service while others waited."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Fairness, class_of
from policies.state.fairness import BUCKETS, SNAPSHOT_FLOWS_MAX, equal_weights

SECOND = 1_000_000
START = 1_000 * SECOND
WINDOW_S = 64.0
BUCKET = round(WINDOW_S / BUCKETS) * SECOND
WEIGHTS = {"high": 8.0, "low": 1.0, "high/a": 1.0, "high/b": 1.0, "low/a": 1.0, "low/b": 3.0}

Served = list[tuple[str, int, int]]


def fairness_after(served: Served, quantum_s: float = 0.0) -> Fairness:
    fairness = Fairness(WEIGHTS.__getitem__, quantum_s, WINDOW_S)
    for flow, at_us, service_us in served:
        fairness.charge(flow, at_us, service_us)
    return fairness


def may_go(fairness: Fairness, *flows: str, now_us: int = START) -> set[str]:
    classes: dict[str, list[str]] = {}
    for flow in flows:
        classes.setdefault(class_of(flow), []).append(flow)
    return {flow for allowed in fairness.may_go(classes, now_us).values() for flow in allowed}


def test_the_class_of_a_flow_is_what_comes_before_the_tenant() -> None:
    assert [class_of(flow) for flow in ("high/a/b", "high/", "high")] == ["high"] * 3


def test_whoever_was_served_least_for_its_weight_may_go() -> None:
    """The low class was served 1 s at weight 1, the high one 7 s at weight 8; then 9 s."""
    fairness = fairness_after([("low/a", START, SECOND), ("high/a", START, 7 * SECOND)])
    assert may_go(fairness, "low/a", "high/a") == {"high/a"}
    fairness.charge("high/a", START, 2 * SECOND)
    assert may_go(fairness, "low/a", "high/a") == {"low/a"}


def test_only_those_compete_that_wait() -> None:
    """A room is never held for a flow without a request that waits for it."""
    fairness = fairness_after([("low/a", START, 50 * SECOND)])
    assert may_go(fairness, "low/a") == {"low/a"}
    assert may_go(fairness) == set()


def test_tenants_share_what_their_class_gets() -> None:
    """Two tenants of the high class do not make it twice as heavy; the low class shares 1 to 3."""
    fairness = fairness_after([("high/a", START, 8 * SECOND), ("low/a", START, SECOND)])
    assert may_go(fairness, "high/a", "high/b", "low/a") == {"high/b", "low/a"}
    fairness.charge("high/b", START, SECOND)
    assert may_go(fairness, "high/a", "high/b", "low/a") == {"low/a"}
    fairness.charge("low/b", START, 2 * SECOND)
    assert may_go(fairness, "low/a", "low/b") == {"low/b"}
    fairness.charge("low/b", START, 2 * SECOND)
    assert may_go(fairness, "low/a", "low/b") == {"low/a"}


def test_within_a_quantum_the_order_is_free() -> None:
    """1/64 of the window: of 64 s that two equal flows were served, each unit of weight may lead by 0.5 s."""
    even = [("low/a", START, 32 * SECOND), ("high/a", START, 32 * SECOND)]
    equal = Fairness(equal_weights, 1.0, WINDOW_S)
    for flow, at_us, service_us in even:
        equal.charge(flow, at_us, service_us)
    equal.charge("low/a", START, SECOND // 2)
    assert may_go(equal, "low/a", "high/a") == {"low/a", "high/a"}
    equal.charge("low/a", START, SECOND // 10)
    assert may_go(equal, "low/a", "high/a") == {"high/a"}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_neither_the_scale_of_weights_nor_the_size_of_the_fleet_matters(scale: float) -> None:
    fairness = Fairness(lambda name: scale * WEIGHTS[name], 8.0, WINDOW_S)
    fairness.charge("low/a", START, round(980_000 * scale))
    fairness.charge("high/a", START, round(7_000_000 * scale))
    assert may_go(fairness, "low/a", "high/a") == {"low/a", "high/a"}
    fairness.charge("low/a", START, round(20_000 * scale))
    assert may_go(fairness, "low/a", "high/a") == {"high/a"}


def test_service_is_forgotten_when_it_leaves_the_window() -> None:
    fairness = fairness_after([("low/a", START, SECOND), ("low/b", START + BUCKET, 2 * SECOND)])
    last_us = START // BUCKET * BUCKET + BUCKETS * BUCKET
    assert fairness.service_us("low", last_us - 1) == 3 * SECOND
    assert fairness.service_us("low", last_us) == 2 * SECOND
    assert fairness.service_us("low/a", last_us) == 0
    fairness.charge("low/a", START, SECOND)
    assert fairness.service_us("low", last_us) == 2 * SECOND
    assert fairness.service_us("low", last_us + BUCKET) == 0


served = st.lists(
    st.tuples(
        st.sampled_from(sorted(flow for flow in WEIGHTS if "/" in flow)),
        st.integers(0, 30).map(lambda bucket: START + bucket * BUCKET),
        st.integers(1, 5 * SECOND),
    ),
    max_size=30,
)


@given(served, st.randoms(use_true_random=False))
def test_any_order_means_the_same(charges: Served, random: Random) -> None:
    shuffled = list(charges)
    random.shuffle(shuffled)
    now_us = START + 30 * BUCKET
    one, two = fairness_after(charges), fairness_after(shuffled)
    for name in WEIGHTS:
        assert one.service_us(name, now_us) == two.service_us(name, now_us)
    assert one.dump() == two.dump()


@given(served, served, served)
def test_a_merged_dump_brings_what_was_missed_and_counts_nothing_twice(
    before: Served, missed: Served, more: Served
) -> None:
    """A reader of the beginning gets the rest from a snapshot, and then the log goes on for both."""
    writer, reader = fairness_after(before + missed), fairness_after(before)
    reader.merge(writer.dump())
    reader.merge(writer.dump())
    for fairness in (writer, reader):
        for charge in more:
            fairness.charge(*charge)
    now_us = START + 30 * BUCKET
    for name in WEIGHTS:
        assert reader.service_us(name, now_us) == writer.service_us(name, now_us)


def test_a_dump_names_those_that_were_served_most() -> None:
    fairness = Fairness()
    for number in range(SNAPSHOT_FLOWS_MAX + 1):
        fairness.charge(f"low/{number}", START, SECOND + number)
    ((_, charged),) = fairness.dump()
    assert len(charged) == SNAPSHOT_FLOWS_MAX
    assert "low/0" not in charged


def test_a_weight_that_changes_counts_from_the_next_bucket_on() -> None:
    weights = {"low": 1.0, "low/a": 1.0, "low/b": 1.0}
    fairness = Fairness(weights.__getitem__, 0.0, WINDOW_S)
    for flow in ("low/a", "low/b"):
        fairness.charge(flow, START, SECOND)
    assert may_go(fairness, "low/a", "low/b") == {"low/a", "low/b"}
    weights["low/b"] = 2.0
    assert fairness.weight_of("low/b") == 1.0
    assert may_go(fairness, "low/a", "low/b", now_us=START + BUCKET) == {"low/b"}
