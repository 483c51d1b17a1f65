"""How a worker's cache is known bounds it, and ends with the worker."""

from itertools import permutations

from policies import FleetRules, FleetState, Insert, Op, Tracked, WorkerGone, WorkerPut
from policies.state.evidence import Evidence

WORKER = "a:1"
ADDED = WorkerPut(WORKER, 1, "static", "http://a:1", capacity_tokens=2 * 256)
LONG = b"".join(block.to_bytes(8, "little") for block in range(1, 6))


def word(at_us: int, *, exact: bool = True) -> Tracked:
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
    for op in (word(1), word(3), word(2, exact=False)):
        evidence.take(op, 3)
    evidence.drop(WORKER, 3, 2)
    assert evidence.exact == {3}
    evidence.drop(WORKER, 3, 3)
    assert evidence.exact == set()


def test_what_a_tracked_worker_holds_has_no_bound_of_its_own_until_history_describes_it_again() -> None:
    """Its engine says what it evicts; a capacity of two blocks would forget three of these five."""
    fleet = fleet_after(ADDED, Insert(WORKER, LONG, 5))
    assert held_blocks(fleet) == 2
    fleet.apply(word(6))
    fleet.apply(Insert(WORKER, LONG, 7))
    assert held_blocks(fleet) == 5
    fleet.apply(word(8, exact=False))
    assert held_blocks(fleet) == 2


def test_a_word_does_not_outlive_its_worker_in_any_order() -> None:
    gone, again = WorkerGone(WORKER, 4, "one"), WorkerPut(WORKER, 5, "one", "http://a:1", capacity_tokens=512)
    for order in permutations([ADDED, word(3), gone, again]):
        fleet = fleet_after(*order, Insert(WORKER, LONG, 9))
        assert not fleet.tracks(WORKER)
        assert fleet.evidence.get(WORKER) is None
        assert held_blocks(fleet) == 2


def test_a_newcomer_learns_from_the_snapshot_who_is_tracked() -> None:
    newcomer = FleetState(FleetRules())
    newcomer.restore(fleet_after(ADDED, word(3)).snapshot())
    assert newcomer.tracks(WORKER)
    newcomer.apply(Insert(WORKER, LONG, 9))
    assert held_blocks(newcomer) == 5
