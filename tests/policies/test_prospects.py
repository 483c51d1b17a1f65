"""What a request that may have to wait finds, worker by worker and as columns."""

from math import inf

import numpy as np
import pytest

from policies import FULL_ATTENTION, FleetState, Placed, WorkerPut, prospect

PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 65))
"""64 blocks, 16,384 tokens: 1.16 s of work at an empty context."""

COLD_S = 0.02 + 16_384 / 15_000 * (1 + 8192 / 140_000)


def fleet(workers: int) -> FleetState:
    state = FleetState()
    for number in range(workers):
        state.apply(WorkerPut(f"w{number}", 1, "r", f"http://w{number}"))
    return state


def look(state: FleetState, workers: int, slot: int, offered: int = -1) -> tuple[float, float, float, bool]:
    candidates = state.candidates(np.arange(workers), (PATH,), FULL_ATTENTION, 16_384.0, 256.0, 1_000_000)
    assert bool(candidates.few) == (workers <= 16)
    found = prospect(candidates, 16_384.0, slot, offered)
    return found.least_s, found.chosen_s, found.offered_s, found.affine


@pytest.mark.parametrize("workers", [2, 16, 17, 100])
def test_where_nobody_has_anything_work_is_the_same_everywhere(workers: int) -> None:
    state = fleet(workers)
    assert look(state, workers, 0) == (pytest.approx(COLD_S), pytest.approx(COLD_S), inf, False)
    assert look(state, workers, 1, 0) == (*(pytest.approx(COLD_S),) * 3, False)


@pytest.mark.parametrize("workers", [2, 17])
def test_the_least_work_is_where_most_is_cached(workers: int) -> None:
    state = fleet(workers)
    state.apply(Placed("a", 1, "w1", "r", 0, 0, 0, (PATH,)))
    least_s, chosen_s, offered_s, _ = look(state, workers, 0, 1)
    assert (least_s, chosen_s, offered_s) == (pytest.approx(0.02), pytest.approx(COLD_S), least_s)


@pytest.mark.parametrize("workers", [2, 17])
@pytest.mark.parametrize(("backlog_us", "affine"), [(1_100_000, True), (1_200_000, False)])
def test_affine_is_who_would_wait_rather_than_go_to_an_idle_one(
    workers: int, backlog_us: int, affine: bool
) -> None:
    """With 0.02 s of work behind 1.1 s it is done before 1.16 s of work on an idle worker."""
    state = fleet(workers)
    state.apply(Placed("a", 1_000_000, "w1", "r", backlog_us, 0, 0, (PATH,)))
    assert look(state, workers, 1)[3] is affine
    assert not look(state, workers, 0)[3]


def test_a_single_worker_is_better_than_nobody_but_than_no_worker_that_may_come() -> None:
    assert look(fleet(1), 1, 0, 0) == (*(pytest.approx(COLD_S),) * 3, False)


@pytest.mark.parametrize("workers", [2, 17])
def test_a_worker_that_may_not_take_it_offers_nothing(workers: int) -> None:
    assert look(fleet(workers + 1), workers, 0, workers)[2] == inf
