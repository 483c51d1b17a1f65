from collections import Counter

import numpy as np
import pytest

from policies.state.rendezvous import bounded_costs, rank_costs, turn_key, turn_of, weights

WORKERS = np.arange(10, dtype=np.uint64)


def test_weights_are_the_published_mix_of_key_and_worker() -> None:
    """SplitMix64 seeded with 0 yields 0xE220A8397B1DCDAF first: the mix of its increment."""
    increment = np.array([0x9E37_79B9_7F4A_7C15], dtype=np.uint64)

    assert weights(0, increment).tolist() == [0xE220_A839_7B1D_CDAF]
    assert weights(1, np.zeros(1, dtype=np.uint64)).tolist() == [0xE220_A839_7B1D_CDAF]


def test_the_largest_key_is_accepted() -> None:
    assert len(weights(2**64 - 1, WORKERS)) == 10
    assert 0 <= turn_key(2**64 - 1, 2**40) < 2**64


def test_consecutive_keys_spread_evenly_over_consecutive_workers() -> None:
    """10,000 keys over 10 workers: 1,000 each, give or take 5 standard deviations (30)."""
    wins = Counter(int(weights(key, WORKERS).argmax()) for key in range(10_000))

    assert len(wins) == 10
    assert all(abs(count - 1000) < 150 for count in wins.values())


def test_the_highest_weight_is_the_lowest_cost() -> None:
    costs = rank_costs(3, WORKERS)

    assert costs.argmin() == weights(3, WORKERS).argmax()
    assert ((costs >= 0.0) & (costs < 1.0)).all()


def test_turns_of_one_key_are_different_keys() -> None:
    assert len({turn_key(key, turn) for key in range(50) for turn in range(50)}) == 2500


@pytest.mark.parametrize("inflight", [[0, 0, 0], [1, 1, 1], [5, 0, 0], [7, 7, 6], [1, 2, 3]])
def test_somebody_is_never_full(inflight: list[float]) -> None:
    """The least loaded has at most the mean, so one more is at most the mean rounded up."""
    costs = bounded_costs(1, WORKERS[:3], np.array(inflight, dtype=np.float64), 1.0)

    assert np.isfinite(costs[int(np.argmin(inflight))])


def test_all_agree_on_whose_turn_it_is_and_every_turn_is_somebodys() -> None:
    replicas = tuple(f"replica {number}" for number in range(5))
    for number in range(20):
        turns = [turn_of(f"w{number}:1", replica, replicas) for replica in replicas]
        assert sorted(turns) == [0, 1, 2, 3, 4]
        assert turns == [turn_of(f"w{number}:1", replica, replicas[::-1]) for replica in replicas]
    assert {turn_of(f"w{number}:1", replicas[0], replicas) for number in range(60)} == {0, 1, 2, 3, 4}


def test_who_is_alone_or_not_on_the_list_yet_has_a_turn_all_the_same() -> None:
    assert turn_of("w:1", "one", ()) == 0
    assert turn_of("w:1", "one", ("one",)) == 0
    assert turn_of("w:1", "one", ("two",)) + turn_of("w:1", "two", ("one",)) == 1
