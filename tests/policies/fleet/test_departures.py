"""A worker that is to leave goes when nothing is left of it, and one replica says so."""

from policies import Finished, FleetState, Placed, Waiting, WorkerGone, WorkerPut, departures
from policies.fleet.departures import SETTLE_US

REPLICAS = ("one", "two", "three")
NOW_US = 50_000_000


def drains(worker: str, *, drain_us: int = 1, leaving: bool = True) -> WorkerPut:
    return WorkerPut(
        worker, drain_us, "one", f"http://{worker}", draining=True, drain_us=drain_us, leaving=leaving
    )


def gone(fleet: FleetState, now_us: int = NOW_US, replicas: tuple[str, ...] = REPLICAS) -> list[str]:
    """Workers that the replicas let go, all of them together."""
    said = [op for replica in replicas for op in departures(fleet, replica, replicas, now_us)]
    return [op.worker for op in said]


def test_each_goes_by_the_word_of_one_replica() -> None:
    fleet = FleetState()
    for number in range(9):
        fleet.apply(drains(f"w{number}:80"))
    assert sorted(gone(fleet)) == [f"w{number}:80" for number in range(9)]
    assert all(departures(fleet, replica, REPLICAS, NOW_US) for replica in REPLICAS), "they take turns"


def test_another_replica_says_it_when_one_is_gone() -> None:
    fleet = FleetState()
    fleet.apply(drains("a:80"))
    (speaker,) = [each for each in REPLICAS if departures(fleet, each, REPLICAS, NOW_US)]
    assert gone(fleet, replicas=tuple(each for each in REPLICAS if each != speaker)) == ["a:80"]


def test_nobody_goes_who_was_only_drained_or_has_just_begun() -> None:
    fleet = FleetState()
    fleet.apply(drains("a:80", leaving=False))
    fleet.apply(drains("b:80", drain_us=NOW_US - SETTLE_US + 1))
    assert gone(fleet) == []
    assert gone(fleet, NOW_US + 1) == ["b:80"]


def test_what_is_in_flight_or_waits_for_it_keeps_a_worker() -> None:
    fleet = FleetState()
    fleet.apply(drains("a:80"))
    fleet.apply(Placed("r1", NOW_US, "a:80", "two", 1000, 10, 20))
    assert gone(fleet) == []
    fleet.apply(Waiting("r2", NOW_US, "two", NOW_US, NOW_US, "m|", "a:80", "normal/", 1, 1, 1))
    fleet.apply(Finished("r1", NOW_US + 1))
    assert gone(fleet) == []
    fleet.apply(Finished("r2", NOW_US + 2))
    assert gone(fleet) == ["a:80"]


def test_a_change_by_a_clock_that_is_ahead_does_not_keep_a_worker() -> None:
    fleet = FleetState()
    fleet.apply(
        WorkerPut("a:80", NOW_US + 5000, "ahead", "http://a:80", draining=True, drain_us=1, leaving=True)
    )
    for replica in REPLICAS:
        for op in departures(fleet, replica, REPLICAS, NOW_US):
            fleet.apply(op)
    assert fleet.workers() == []


def test_who_is_gone_or_taken_back_is_not_asked_to_leave_again() -> None:
    fleet = FleetState()
    fleet.apply(drains("a:80"))
    fleet.apply(drains("b:80"))
    fleet.apply(WorkerGone("a:80", 2, "one"))
    fleet.apply(WorkerPut("b:80", 2, "one", "http://b:80"))
    assert fleet.leaving() == []


def test_a_snapshot_says_who_is_leaving() -> None:
    writer, reader = FleetState(), FleetState()
    writer.apply(drains("a:80", drain_us=7))
    reader.restore(writer.snapshot())
    (worker,) = reader.leaving()
    assert (worker.worker_id, worker.drain_us) == ("a:80", 7)
