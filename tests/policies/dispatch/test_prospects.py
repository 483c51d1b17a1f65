"""Outlook of a request that may have to wait, worker by worker and as columns."""

import numpy as np
import pytest

from policies import FULL_ATTENTION, FleetState, Placed, QueueView, Waiting, WorkerPut, make_policy
from policies.dispatch.turns import Prospect, prospect
from policies.scoring import Price

PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 65))
"""64 blocks, 16,384 tokens: 1.16 s of work at an empty context."""

COLD_S = 0.02 + 16_384 / 15_000 * (1 + 8192 / 140_000)

NOW_US = 1_000_000

EXPECTED_COST = make_policy("expected_cost").price


def fleet(workers: int) -> FleetState:
    state = FleetState()
    for number in range(workers):
        state.apply(WorkerPut(f"w{number}", 1, "r", f"http://w{number}"))
    return state


def decode_view(
    state: FleetState, workers: int, slot: int, price: Price | None = None, queue: QueueView | None = None
) -> Prospect:
    slots = np.arange(workers)
    candidates = state.candidates(slots, (PATH,), FULL_ATTENTION, 16_384.0, 256.0, NOW_US, queue=queue)
    assert bool(candidates.slow.few) == (workers <= 16)
    return prospect(candidates, 16_384.0, slot, price)


@pytest.mark.parametrize("workers", [2, 16, 17, 100])
@pytest.mark.parametrize("price", [None, EXPECTED_COST])
def test_where_nobody_has_anything_an_idle_worker_costs_no_less_than_another(
    workers: int, price: Price | None
) -> None:
    assert decode_view(fleet(workers), workers, 1, price) == Prospect(pytest.approx(COLD_S), False)


@pytest.mark.parametrize("workers", [2, 17])
def test_the_work_is_that_of_the_chosen_worker(workers: int) -> None:
    state = fleet(workers)
    state.apply(Placed("a", 1, "w1", "r", 0, 0, 0, (PATH,)))
    assert decode_view(state, workers, 0).chosen_s == pytest.approx(COLD_S)
    assert decode_view(state, workers, 1).chosen_s == pytest.approx(0.02)


@pytest.mark.parametrize("workers", [2, 17])
@pytest.mark.parametrize(("backlog_us", "affine"), [(1_100_000, True), (1_200_000, False)])
def test_affine_is_who_would_wait_rather_than_go_to_an_idle_one(
    workers: int, backlog_us: int, affine: bool
) -> None:
    """With 0.02 s of work behind 1.1 s it is done before 1.16 s of work on an idle worker."""
    state = fleet(workers)
    state.apply(Placed("a", NOW_US, "w1", "r", backlog_us, 0, 0, (PATH,)))
    assert decode_view(state, workers, 1).affine is affine
    assert not decode_view(state, workers, 0).affine


@pytest.mark.parametrize("workers", [2, 17])
def test_the_price_that_chose_the_worker_decides_not_the_time_alone(workers: int) -> None:
    """0.02 s of work behind 1.2 s is later than an idle worker's 1.16 s, but delays others by less."""
    state = fleet(workers)
    for number in range(160):
        state.apply(Placed(f"a{number}", NOW_US, "w1", "r", 7_500, 0, 0, (PATH,)))
    assert not decode_view(state, workers, 1).affine
    assert decode_view(state, workers, 1, EXPECTED_COST).affine


@pytest.mark.parametrize("workers", [2, 17])
@pytest.mark.parametrize(("waiting_us", "affine"), [(200_000, True), (600_000, False)])
def test_tickets_that_go_first_count_on_the_chosen_worker_and_not_where_it_would_be_idle(
    workers: int, waiting_us: int, affine: bool
) -> None:
    """0.02 s of work behind 0.6 s of backlog and these tickets, or 1.16 s of work on an idle worker."""
    state = fleet(workers)
    state.apply(Placed("a", NOW_US, "w1", "r", 600_000, 0, 0, (PATH,)))
    for slot in range(workers):
        ticket = Waiting(f"t{slot}", 1, "r", 1, 2, "m|", f"w{slot}", "normal/", waiting_us, 1, 1)
        state.apply(ticket)
    queue = QueueView(state.tickets, "m|", workers, NOW_US, 4.0, 0.5)
    assert decode_view(state, workers, 1, None, queue).affine is affine


def test_a_single_worker_is_better_than_nobody_but_than_no_worker_that_may_come() -> None:
    assert decode_view(fleet(1), 1, 0) == Prospect(pytest.approx(COLD_S), False)
