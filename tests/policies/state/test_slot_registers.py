"""Circuits, sources of cache contents and reports are kept by slot, and end with their worker."""

from itertools import permutations
from math import inf

from policies import (
    Circuit,
    CircuitSet,
    FleetRules,
    FleetState,
    Insert,
    Op,
    Reported,
    Tracked,
    WorkerGone,
    WorkerPut,
)
from policies.state.slot_registers import NEVER_US, Circuits, Evidence, Reports

WORKER = "a:1"
ADDED = WorkerPut(WORKER, 1, "static", "http://a:1", capacity_tokens=2 * 256)
LONG = b"".join(block.to_bytes(8, "little") for block in range(1, 6))


def circuit(at_us: int, state: Circuit = Circuit.OPEN) -> CircuitSet:
    return CircuitSet("a:1", at_us, "one", state, at_us + 60)


def test_only_circuits_that_are_not_closed_are_tripped() -> None:
    circuits = Circuits()
    for at_us, state in enumerate((Circuit.OPEN, Circuit.HALF_OPEN, Circuit.OPEN)):
        assert circuits.take(circuit(at_us, state), 7)
        assert circuits.tripped == {7: circuit(at_us, state)}
    assert circuits.take(circuit(9, Circuit.CLOSED), 7)
    assert not circuits.take(circuit(8), 7)
    assert circuits.tripped == {}


def test_an_ejected_worker_that_is_removed_is_no_longer_tripped() -> None:
    circuits = Circuits()
    circuits.take(circuit(5), 7)
    circuits.drop("a:1", 7, 4)
    assert circuits.tripped == {7: circuit(5)}
    circuits.drop("a:1", 7, 5)
    assert circuits.tripped == {}


def tracked(at_us: int, *, exact: bool = True) -> Tracked:
    return Tracked(WORKER, at_us, "one", exact)


def fleet_after(*ops: Op) -> FleetState:
    fleet = FleetState(FleetRules())
    for op in ops:
        fleet.apply(op)
    return fleet


def held_blocks(fleet: FleetState) -> int:
    worker = fleet.worker(WORKER)
    assert worker is not None
    return fleet.tree.held_blocks(worker.slot)


def test_a_worker_is_exact_by_the_newest_word_until_it_is_removed() -> None:
    evidence = Evidence()
    for op in (tracked(1), tracked(3), tracked(2, exact=False)):
        evidence.take(op, 3)
    evidence.drop(WORKER, 3, 2)
    assert evidence.exact == {3}
    evidence.drop(WORKER, 3, 3)
    assert evidence.exact == set()


def test_what_a_tracked_worker_holds_has_no_bound_of_its_own_until_history_describes_it_again() -> None:
    """Its engine reports its evictions; a capacity of two blocks would forget three of these five."""
    fleet = fleet_after(ADDED, Insert(WORKER, LONG, 5))
    assert held_blocks(fleet) == 2
    fleet.apply(tracked(6))
    fleet.apply(Insert(WORKER, LONG, 7))
    assert held_blocks(fleet) == 5
    fleet.apply(tracked(8, exact=False))
    assert held_blocks(fleet) == 2


def test_a_word_does_not_outlive_its_worker_in_any_order() -> None:
    gone, again = WorkerGone(WORKER, 4, "one"), WorkerPut(WORKER, 5, "one", "http://a:1", capacity_tokens=512)
    for order in permutations([ADDED, tracked(3), gone, again]):
        fleet = fleet_after(*order, Insert(WORKER, LONG, 9))
        assert not fleet.tracks(WORKER)
        assert fleet.evidence.get(WORKER) is None
        assert held_blocks(fleet) == 2


def test_a_newcomer_learns_from_the_snapshot_who_is_tracked() -> None:
    newcomer = FleetState(FleetRules())
    newcomer.restore(fleet_after(ADDED, tracked(3)).snapshot())
    assert newcomer.tracks(WORKER)
    newcomer.apply(Insert(WORKER, LONG, 9))
    assert held_blocks(newcomer) == 5


def report(at_us: int, *, running: int = 3, worker: str = "a:1") -> Reported:
    return Reported(worker, at_us, "one", running, 1, 5_000, 64, 2, 4_000)


def test_what_is_reported_is_kept_as_a_difference_to_what_was_in_flight() -> None:
    """3 run and 1 waits there, of which 2 are ours; its requests hold 1,000 tokens more than we gave it."""
    reports = Reports()
    reports.take(report(5), 1)
    assert reports.at_us.tolist() == [NEVER_US, 5.0, *[NEVER_US] * 6]
    assert (reports.foreign_requests[1], reports.extra_tokens[1], reports.running_max[1]) == (
        2.0,
        1_000.0,
        64.0,
    )


def test_what_an_engine_does_not_say_limits_nothing() -> None:
    reports = Reports()
    reports.take(Reported("a:1", 5, "one", inflight_requests=7, inflight_tokens=900), 0)
    assert (reports.foreign_requests[0], reports.extra_tokens[0], reports.running_max[0]) == (0.0, -inf, inf)


def test_the_reports_of_a_removed_worker_are_dropped_unless_they_are_newer() -> None:
    reports = Reports()
    reports.take(report(5), 0)
    reports.drop("a:1", 0, 4)
    assert reports.get("a:1") == report(5)
    reports.drop("a:1", 0, 5)
    assert reports.get("a:1") is None
    assert (reports.at_us[0], reports.foreign_requests[0]) == (NEVER_US, 0.0)
    assert (reports.extra_tokens[0], reports.running_max[0]) == (-inf, inf)


def test_room_for_more_slots_keeps_what_is_there() -> None:
    reports = Reports()
    reports.take(report(5), 7)
    reports.ensure(100)
    reports.take(report(6, worker="b:1"), 100)
    assert reports.at_us[[7, 8, 100]].tolist() == [5.0, NEVER_US, 6.0]
    assert reports.running_max[[7, 8, 100]].tolist() == [64.0, inf, 64.0]
    assert reports.extra_tokens[[7, 8]].tolist() == [1_000.0, -inf]


def test_only_another_bound_of_requests_is_a_change() -> None:
    reports = Reports()
    reports.take(report(5), 0)
    assert reports.running_max_revision == 1
    reports.take(report(6, running=60), 0)
    assert reports.running_max_revision == 1
    reports.take(Reported("a:1", 7, "one"), 0)
    assert reports.running_max_revision == 2
