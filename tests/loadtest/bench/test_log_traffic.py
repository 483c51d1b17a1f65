"""Tests of `loadtest.bench.log_traffic`."""

from collections import Counter

from loadtest.bench.log_traffic import Traffic, TrafficRules
from policies import Finished, FleetState, Op, Placed, WorkerGone

RULES = TrafficRules(
    replica="me",
    seed=1,
    ops_per_s=500.0,
    sessions_per_s=50.0,
    workers=8,
    replaced_every_s=5.0,
    capacity_blocks=500,
    leads=True,
)


def run(seconds: float) -> tuple[list[Op], FleetState]:
    """Apply the traffic of so many seconds, as fast as it goes."""
    fleet = FleetState()
    traffic = Traffic(RULES, fleet)
    ops = traffic.first_ops(0)
    for op in ops:
        fleet.apply(op)
    traffic.start(0.0)
    while traffic.due_s < seconds:
        due_us = round(traffic.due_s * 1e6)
        new = traffic.next_ops(due_us)
        for op in new:
            fleet.apply(op)
        ops += new
    return ops, fleet


def test_it_writes_as_much_as_asked_once_sessions_have_come_and_gone() -> None:
    """A session lasts for some ten seconds, so the second half minute is like any later one."""
    early, _ = run(30)
    later, _ = run(60)
    kinds = Counter(type(op) for op in later[len(early) :])
    assert 0.9 < kinds.total() / 30 / RULES.ops_per_s < 1.1
    assert 0.9 < kinds[Placed] / kinds[Finished] < 1.1
    assert len({type(op) for op in later}) == 6


def test_the_same_seed_writes_the_same() -> None:
    assert run(3)[0] == run(3)[0]


def test_prompts_grow_turn_by_turn_and_share_their_start_with_other_sessions() -> None:
    ops, _ = run(20)
    paths = [op.paths[0] for op in ops if isinstance(op, Placed)]
    known: set[bytes] = set()
    continued = 0
    for path in paths:
        continued += any(path[:length] in known for length in range(136, len(path), 8))
        known.add(path)
    assert 0.4 < continued / len(paths) < 0.9
    assert len({path[:128] for path in paths}) == 16


def test_workers_are_replaced_under_the_addresses_of_earlier_ones() -> None:
    ops, fleet = run(60)
    gone = [op.worker for op in ops if isinstance(op, WorkerGone)]
    assert len(gone) == 11
    assert len(set(gone)) == 10
    assert len(fleet.workers()) == RULES.workers
