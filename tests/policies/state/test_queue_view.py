"""The queue as one request sees it, against sums over all tickets."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Finished, FleetState, QueueView, Waiting, WorkerPut

WORKERS = 3
LANES = ("m|", "other|")
ARRIVED_US = 1_000_000
K = 2.0

waits = st.tuples(
    st.integers(-1, WORKERS - 1), st.sampled_from(LANES), st.integers(-8, 40), st.integers(1, 4)
)
"""Worker, lane, key in 50 ms behind the arrival, and work in 100 ms: small numbers, with exact sums."""


def fleet_of(drawn: list[tuple[int, str, int, int]]) -> FleetState:
    fleet = FleetState()
    for slot in range(WORKERS):
        fleet.apply(WorkerPut(f"w{slot}", 1, "r", f"http://w{slot}"))
    for number, (slot, lane, key, work) in enumerate(drawn):
        worker = f"w{slot}" if slot >= 0 else ""
        fleet.apply(
            Waiting(
                *(f"t{number}", 1, "r", 1, ARRIVED_US + 50_000 * key, lane, worker, "normal/"),
                *(100_000 * work, 1, 1),
            )
        )
    return fleet


def view_of(fleet: FleetState, own: str = "") -> QueueView:
    return QueueView(fleet.tickets, LANES[0], WORKERS, ARRIVED_US, K, 0.5, fleet.tickets.get(own))


def naive(fleet: FleetState, own: str, slot: int, work_s: float) -> tuple[float, float]:
    """A ticket for the worker counts in full, one for any of the lane in part, one's own not at all."""
    key_us = ARRIVED_US + int(K * work_s * 1e6)
    ahead_s = behind = 0.0
    for ticket in fleet.tickets:
        if ticket.request_id == own or (ticket.slot < 0 and ticket.lane != LANES[0]):
            continue
        share = float(ticket.slot == slot) if ticket.slot >= 0 else 1 / WORKERS
        ahead_s += share * ticket.service_us / 1e6 * (ticket.key_us < key_us)
        behind += share * (ticket.key_us > key_us)
    return ahead_s, behind


@given(st.lists(waits, max_size=15), st.data())
def test_few_and_columns_agree_with_sums_over_all_tickets_but_ones_own(
    drawn: list[tuple[int, str, int, int]], data: st.DataObject
) -> None:
    fleet = fleet_of(drawn)
    own = data.draw(st.sampled_from(["", *(f"t{number}" for number in range(len(drawn)))]))
    works_s = data.draw(st.lists(st.sampled_from((0.0, 0.1, 0.4, 0.7)), min_size=WORKERS, max_size=WORKERS))
    view = view_of(fleet, own)
    ahead_s, behind = view.columns(np.arange(WORKERS), np.array(works_s))
    for slot, work_s in enumerate(works_s):
        expected = naive(fleet, own, slot, work_s)
        assert view.at(slot, work_s) == pytest.approx(expected)
        assert (ahead_s[slot], behind[slot]) == pytest.approx(expected)


def test_some_workers_are_asked_about_by_their_slots() -> None:
    view = view_of(fleet_of([(2, LANES[0], -1, 3), (0, LANES[0], 40, 1)]))
    ahead_s, behind = view.columns(np.array([0, 2]), np.array([0.1, 0.1]))
    assert (ahead_s.tolist(), behind.tolist()) == ([0.0, 0.3], [1.0, 0.0])


def test_without_tickets_nothing_is_ahead_or_behind() -> None:
    view = msgspec.structs.replace(view_of(fleet_of([])), tickets=None)
    assert view.at(1, 0.3) == (0.0, 0.0)
    ahead_s, behind = view.columns(np.arange(WORKERS), np.full(WORKERS, 0.3))
    assert ahead_s.tolist() == behind.tolist() == [0.0] * WORKERS


def test_who_no_longer_waits_does_not_count() -> None:
    fleet = fleet_of([(1, LANES[0], -1, 3), (-1, LANES[0], -1, 3)])
    assert view_of(fleet).at(1, 0.1) == pytest.approx((0.4, 0.0))
    for name in ("t0", "t1"):
        fleet.apply(Finished(name, 2))
    assert view_of(fleet).at(1, 0.1) == (0.0, 0.0)


def test_a_key_beyond_all_times_is_the_last() -> None:
    view = view_of(fleet_of([(1, LANES[0], 40, 3)]))
    assert view.at(1, 1e12) == (0.3, 0.0)
    assert view.columns(np.array([1]), np.array([1e12]))[0].tolist() == [0.3]
