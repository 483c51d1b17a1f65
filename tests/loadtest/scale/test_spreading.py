"""Tests of `loadtest.scale.spreading`."""

import math
from statistics import median

import pytest

from loadtest.scale.spreading import LOG_S, VECTORS_PER_S, Spreading, Way, vectors


def late_s(way: Way, replicas: int) -> list[float]:
    spreading = Spreading(way, replicas)
    return [spreading.seen_s(at % replicas, at * 0.0137) - at * 0.0137 for at in range(2000)]


def test_a_vector_waits_half_a_tick_and_at_most_one() -> None:
    seconds = late_s("direct", 50)

    assert median(seconds) == pytest.approx(0.5 / VECTORS_PER_S, abs=0.003)
    assert 0.0 < min(seconds) <= max(seconds) < 1 / VECTORS_PER_S + 0.01


def test_groups_take_three_ticks_instead_of_one() -> None:
    assert median(late_s("groups", 1000)) == pytest.approx(1.5 / VECTORS_PER_S, abs=0.01)


def test_the_log_does_not_wait_for_ticks() -> None:
    assert median(late_s("log", 50)) == pytest.approx(LOG_S, rel=0.1)
    assert late_s("none", 50)[0] == math.inf


def test_direct_vectors_grow_with_the_square_and_groups_do_not() -> None:
    """A hundred times 99 vectors, 20 times a second."""
    direct = vectors("direct", 100, 1000, 100.0)
    groups = vectors("groups", 1000, 10_000, 100.0)

    assert direct.all_messages == 100 * 99 * 20
    assert direct.applied == [(99 * 20, 15)]
    assert groups.all_messages < 150 * 1000
    assert groups.messages < direct.messages
