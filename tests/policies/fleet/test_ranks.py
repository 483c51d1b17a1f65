"""Ranks as places: derived from their worker, in any order of operations."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import FleetRules, FleetState, Placed, Tracked, WorkerGone, WorkerPut, rank_id, rank_of
from policies.fleet.departures import departures
from policies.state.ops import CapacityLearned, Op, Started
from radix import AttentionProfile, Forget, Insert
from radix.bounds import WORKERS_MAX

FULL = AttentionProfile("full")
PATH = bytes(range(32))
WORKER = "a:80"


def put(at_us: int = 1, ranks: int = 2, **more: object) -> WorkerPut:
    return WorkerPut(WORKER, at_us, "r", "http://a:80", capacity_tokens=100_000, ranks=ranks, **more)  # type: ignore[arg-type]


def parted(ranks: int = 2) -> FleetState:
    fleet = FleetState()
    fleet.apply(put(ranks=ranks))
    return fleet


def place_ids(fleet: FleetState) -> list[str]:
    return [place.worker_id for worker in fleet.workers() for place in fleet.places(worker)]


def held(fleet: FleetState) -> dict[str, int]:
    places = [place for worker in fleet.workers() for place in fleet.places(worker)]
    return {place.worker_id: fleet.tree.held_blocks(place.slot) for place in places}


@given(st.text(st.characters(codec="ascii"), max_size=30), st.integers(0, 4095))
def test_an_id_of_a_rank_names_its_worker_and_its_rank(worker_id: str, rank: int) -> None:
    if worker_id:
        assert rank_of(rank_id(worker_id, rank)) == (worker_id, rank)


@pytest.mark.parametrize("worker_id", ["a:80", "a:80/p@", "a:80/@x", "@0", "a@-1", "a@4096", "a@1.5", "a@²"])
def test_other_ids_name_a_whole_worker(worker_id: str) -> None:
    assert rank_of(worker_id) == (worker_id, -1)


def test_no_worker_may_have_the_id_of_a_rank() -> None:
    fleet = FleetState()
    for op in (WorkerPut("a:80/p@0", 1, "r", "http://a:80/p@0"), WorkerGone("a:80@0", 5, "r")):
        with pytest.raises(ValueError, match="names a rank"):
            fleet.apply(op)
    assert fleet.workers() == []


def test_a_worker_with_ranks_is_listed_once_and_its_ranks_share_its_capacity() -> None:
    fleet = parted(4)
    (worker,) = fleet.workers()
    assert worker.worker_id == WORKER
    assert place_ids(fleet) == [f"{WORKER}@{rank}" for rank in range(4)]
    assert {place.capacity_tokens for place in fleet.places(worker)} == {25_000}
    assert {fleet.at_slot(place.slot).rank for place in fleet.places(worker)} == {0, 1, 2, 3}


@pytest.mark.parametrize("ranks", [0, 1])
def test_a_worker_without_ranks_is_its_own_place(ranks: int) -> None:
    fleet = parted(ranks)
    assert place_ids(fleet) == [WORKER]


def test_an_assumed_capacity_is_divided_too() -> None:
    fleet = FleetState(FleetRules(capacity_tokens=800))
    fleet.apply(WorkerPut(WORKER, 1, "r", "http://a:80", ranks=4))
    (worker,) = fleet.workers()
    assert {fleet.cache_tokens(place) for place in fleet.places(worker)} == {200}


def test_a_rank_holds_what_it_was_given_and_a_flush_of_the_worker_empties_all() -> None:
    fleet = parted()
    fleet.apply(Insert("a:80@1", PATH, 10))
    assert held(fleet) == {"a:80@0": 0, "a:80@1": 4}
    fleet.apply(Forget(WORKER, 20))
    assert held(fleet) == {"a:80@0": 0, "a:80@1": 0}


def test_a_drained_worker_leaves_when_all_of_its_ranks_are_idle() -> None:
    fleet = parted()
    (worker,) = fleet.workers()
    fleet.apply(Placed("q", 10, "a:80@1", "r", 1000, 10, 20, (PATH,)))
    fleet.apply(worker.changed(20, "r", draining=True, drain_us=20, leaving=True))
    (worker,) = fleet.workers()
    assert all(place.draining for place in fleet.places(worker))
    assert departures(fleet, "r", ["r"], 10_000_000) == ()
    fleet.loads.retain((), "other")
    assert [gone.worker for gone in departures(fleet, "r", ["r"], 10_000_000)] == [WORKER]


def test_ranks_come_and_go_with_the_workers_entry() -> None:
    fleet = parted(4)
    fleet.apply(Insert("a:80@3", PATH, 10))
    (worker,) = fleet.workers()
    fleet.apply(worker.changed(20, "r", ranks=2))
    assert place_ids(fleet) == ["a:80@0", "a:80@1"]
    fleet.apply(Started(WORKER, 30, "r", 1, cold=True))
    (worker,) = fleet.workers()
    fleet.apply(worker.changed(40, "r", ranks=4))
    assert held(fleet) == dict.fromkeys([f"{WORKER}@{rank}" for rank in range(4)], 0)
    fleet.apply(WorkerGone(WORKER, 50, "r"))
    assert fleet.workers() == []
    fleet.collect(10**9)
    assert fleet.worker("a:80@0") is None


ENTRY = put()
OPS: list[Op] = [
    ENTRY,
    Insert("a:80@1", PATH, 10),
    Forget(WORKER, 12),
    Insert("a:80@0", PATH, 15),
    Tracked("a:80@0", 16, "r", exact=True),
    CapacityLearned("a:80@1", 17, "r", 300),
    WorkerGone(WORKER, 20, "r"),
]


def seen(fleet: FleetState) -> object:
    known = {each: fleet.worker(each) for each in (WORKER, "a:80@0", "a:80@1")}
    return (
        fleet.digests(),
        {
            key: worker and (worker.url, worker.rank, fleet.cache_tokens(worker))
            for key, worker in known.items()
        },
        held(fleet),
        sorted(fleet.at_slot(slot).worker_id for slot in fleet.evidence.exact),
    )


@pytest.mark.parametrize("ops", [OPS[:-1], OPS])
def test_any_order_of_operations_makes_the_same_ranks(ops: list[Op]) -> None:
    states = []
    for order in list(permutations(ops))[:: 7 if len(ops) > 6 else 1]:
        fleet = FleetState()
        for op in (*order, *order):
            fleet.apply(op)
        last = {tag: values[-1] for tag, values in fleet.digests().items()}
        states.append((last, seen(fleet)[1:]))  # type: ignore[index]
    assert all(state == states[0] for state in states)


def test_a_newcomer_finds_the_ranks_in_a_snapshot() -> None:
    fleet, late = parted(), FleetState()
    fleet.apply(Insert("a:80@1", PATH, 10))
    fleet.apply(Placed("q", 10, "a:80@0", "r", 1000, 10, 20, (PATH,)))
    late.restore(fleet.snapshot())
    assert held(late) == held(fleet)
    slots = [place.slot for place in late.places(late.workers()[0])]
    assert late.loads.inflight_requests[slots].tolist() == [1.0, 0.0]


def test_ranks_count_among_the_workers_that_there_may_be() -> None:
    fleet = FleetState()
    for number in range(WORKERS_MAX // 513):
        fleet.apply(WorkerPut(f"w:{number}", 1, "r", f"http://w:{number}", ranks=512))
    with pytest.raises(ValueError, match="workers and ranks"):
        fleet.apply(WorkerPut("x:1", 1, "r", "http://x:1", ranks=512))
    fleet.apply(WorkerPut("y:1", 1, "r", "http://y:1"))
    assert fleet.worker("y:1") is not None


def test_work_of_the_other_rank_delays_as_far_as_both_have_work() -> None:
    """R = min(V of the other, V + s): the ranks of an engine step together."""
    fleet = FleetState()
    fleet.apply(put())
    for name in ("b:80", "c:80"):
        fleet.apply(WorkerPut(name, 1, "r", f"http://{name}"))
    places = [place for worker in fleet.workers() for place in fleet.places(worker)]
    fleet.apply(Placed("q", 10, "a:80@0", "r", 3_000_000, 10, 20, (PATH,)))
    view = fleet.candidates(
        np.array([place.slot for place in places], dtype=np.intp), (), FULL, 15_000.0, 256.0, 10
    )
    alone = [timing.service_s for timing in view.timings(15_000.0, view.slow.few)]
    ready = [timing.ready_s for timing in view.timings(15_000.0, view.slow.few)]
    assert ready == pytest.approx([3.0, min(3.0, alone[1]), 0.0, 0.0])
    assert view.times(15_000.0).ready_s.tolist() == pytest.approx(ready)
