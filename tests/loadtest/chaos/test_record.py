"""A record sums up its acts."""

from collections import Counter

from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.record import ActSeen, Broken, Record, Struck
from loadtest.chaos.schedule import Act, Strike


def struck(kind: str, began_s: float = 10.0, ended_s: float = 20.0) -> Struck:
    return Struck(Strike(3.0, kind, "r1", ended_s - began_s), "host", Blame.NOBODY, began_s, ended_s)


def act(kind: str) -> ActSeen:
    return ActSeen(Act(1, (struck(kind).strike,)), 0.0, [struck(kind)])


def test_a_fault_is_felt_until_its_grace_is_over() -> None:
    seen = struck("disk full")
    assert seen.overlaps(5.0, 10.0, 0.0)
    assert seen.overlaps(12.0, 13.0, 0.0)
    assert not seen.overlaps(5.0, 9.9, 5.0)
    assert not seen.overlaps(20.5, 30.0, 0.0)
    assert seen.overlaps(20.5, 30.0, 1.0)


def test_a_record_sums_up_faults_promises_and_the_worst_recovery() -> None:
    first, second = act("worker killed"), act("disk full")
    first.recovery_s, second.broken = 2.5, [Broken("x", "y", 1.0)]
    record = Record(1, cabled=True, clients=2, acts=[first, second], broken=[Broken("z", "")])
    assert record.worst_recovery_s == 2.5
    assert [each.promise for each in record.all_broken] == ["x", "z"]
    assert record.faults == Counter({"worker killed": 1, "disk full": 1})
    second.recovery_s = None
    assert record.worst_recovery_s is None
    assert Record(1, cabled=True, clients=2).worst_recovery_s == 0.0
