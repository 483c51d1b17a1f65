"""Changes of one worker by any number of replicas at once: none is lost, and all replicas agree."""

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import FleetRules, FleetState, LengthBuckets, Op, Worker, WorkerGone, WorkerPut, encode_op
from radix import LABELS_MAX
from router.fleet.changes import Change
from router.fleet.discovered import DISCOVERED_LABEL, NOTE_LABEL, Note, note_of, note_text

WORKER = "a:80"
NOTED = {
    DISCOVERED_LABEL: "kubernetes:llm/a",
    NOTE_LABEL: note_text(Note("uid", 7, "scope", drained="not_ready")),
}


class Log:
    """Operations reach the replicas in one order, and each replica when a test lets it read."""

    def __init__(self, replicas: int, labels: dict[str, str] | None = None) -> None:
        self.now_us = 10
        self.replicas = [Replica(self, f"r{number}") for number in range(replicas)]
        self.say(WorkerPut(WORKER, 1, "static", "http://a", labels={"old": "1", **(labels or {})}))
        self.deliver()

    def say(self, op: Op) -> None:
        for replica in self.replicas:
            replica.unread.append(op)

    def deliver(self, rounds: int = 20) -> None:
        """Let all replicas read all operations, and those that follow from them."""
        for _ in range(rounds):
            if not any(replica.unread for replica in self.replicas):
                return
            for replica in self.replicas:
                replica.read(len(replica.unread))
        raise AssertionError("they never agree")


class Replica:
    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name
        self.unread: deque[Op] = deque()
        self.fleet = FleetState(FleetRules(buckets=LengthBuckets()))
        self.said: list[WorkerPut] = []

    def _publish(self, put: WorkerPut) -> None:
        encode_op(put)
        self.said.append(put)
        self.fleet.apply(put)
        self.log.say(put)

    @property
    def worker(self) -> Worker:
        (worker,) = self.fleet.workers()
        return worker

    def change(self, change: Change) -> None:
        self.log.now_us += 1
        self._publish(change.of(self.worker, self.log.now_us, self.name))

    def read(self, count: int) -> None:
        for _ in range(count):
            self.fleet.apply(self.unread.popleft())


def test_a_change_keeps_the_rest() -> None:
    log = Log(1)
    one = log.replicas[0]
    one.change(Change(role="decode", capacity_tokens=5))
    one.change(Change(draining=True, leaving=True))

    worker = one.worker
    assert (worker.role, worker.capacity_tokens, worker.draining, worker.leaving) == ("decode", 5, True, True)
    assert worker.labels == {"old": "1"}
    one.change(Change(draining=False))
    assert (one.worker.leaving, one.worker.drain_us) == (False, 0)


@pytest.mark.parametrize("later", [0, 1])
def test_two_changes_at_once_both_hold(later: int) -> None:
    log = Log(2)
    said = [Change(draining=True, labels={"zone": "b"}), Change(role="decode", capacity_tokens=9)]
    for number in (1 - later, later):
        log.replicas[number].change(said[number])
    log.deliver()

    for replica in log.replicas:
        worker = replica.worker
        assert (worker.draining, worker.role, worker.capacity_tokens) == (True, "decode", 9)
        assert worker.labels == {"zone": "b"}


def test_all_that_a_replica_said_is_repeated() -> None:
    log = Log(2)
    one, two = log.replicas
    one.change(Change(draining=True))
    one.change(Change(labels={"zone": "b", "old": "2"}))
    two.change(Change(labels={"old": "1", "rack": "7"}))
    log.deliver()

    assert [replica.worker.draining for replica in log.replicas] == [True, True]
    assert one.worker.labels == two.worker.labels == {"zone": "b", "old": "2", "rack": "7"}


def test_a_label_that_was_left_out_and_changed_elsewhere_at_once_stays() -> None:
    """An operator may set labels of a worker while its pod changes its site."""
    log = Log(2)
    one, two = log.replicas
    one.change(Change(labels={"zone": "b"}))
    two.change(Change(labels={"old": "2"}))
    log.deliver()

    assert one.worker.labels == two.worker.labels == {"zone": "b", "old": "2"}


def test_what_somebody_changed_knowingly_stays() -> None:
    log = Log(2)
    one, two = log.replicas
    one.change(Change(draining=True))
    log.deliver()
    two.change(Change(draining=False))
    log.deliver()

    assert [replica.worker.draining for replica in log.replicas] == [False, False]
    assert (len(one.said), len(two.said)) == (1, 1)


def test_an_entry_that_depends_on_none_replaces_all() -> None:
    log = Log(1)
    one = log.replicas[0]
    one.change(Change(draining=True))
    log.say(WorkerPut(WORKER, log.now_us + 5, "other", "http://a", labels={"new": "1"}))
    log.deliver()

    assert (one.worker.draining, one.worker.labels) == (False, {"new": "1"})


def test_what_was_said_of_a_worker_before_it_was_added_again_is_over() -> None:
    log = Log(2)
    one, two = log.replicas
    one.change(Change(draining=True))
    log.say(WorkerPut(WORKER, log.now_us + 5, "two", "http://a"))
    log.now_us += 10
    two.read(len(two.unread))
    two.change(Change(role="decode"))
    log.deliver()

    assert (one.worker.draining, one.worker.role) == (False, "decode")


def test_a_clock_that_is_behind_changes_things_nevertheless() -> None:
    log = Log(1)
    one = log.replicas[0]
    log.say(WorkerPut(WORKER, 1000, "fast", "http://a"))
    log.deliver()
    one.change(Change(draining=True))

    assert (one.worker.draining, one.worker.version[0]) == (True, 1001)


def test_a_drain_that_is_taken_over_stays_so_when_it_is_repeated() -> None:
    log = Log(2, NOTED)
    one, two = log.replicas
    one.change(Change(draining=True))
    two.change(Change(capacity_tokens=9))
    log.deliver()

    note = note_of(two.worker.labels)
    assert note is not None
    assert (note.drained, two.worker.labels[DISCOVERED_LABEL]) == ("", "kubernetes:llm/a")


CHANGES = [
    Change(draining=True),
    Change(capacity_tokens=7),
    Change(role="decode"),
    Change(labels={"old": "1", "zone": "b"}),
]


@given(
    st.permutations(range(len(CHANGES))),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=30),
    st.integers(2, 4),
)
def test_changes_of_different_things_are_never_lost(
    order: list[int], reads: list[tuple[int, int]], replicas: int
) -> None:
    """Replicas may read any operations meanwhile."""
    log = Log(replicas)
    steps = iter(reads)
    for number in order:
        log.replicas[number % replicas].change(CHANGES[number])
        for reader, count in steps:
            replica = log.replicas[reader % replicas]
            replica.read(min(count, len(replica.unread)))
            if reader == 0:
                break
    log.deliver()

    for replica in log.replicas:
        worker = replica.worker
        assert (worker.draining, worker.capacity_tokens, worker.role) == (True, 7, "decode")
        assert worker.labels == {"old": "1", "zone": "b"}


@pytest.mark.parametrize("writers", [2, 3, 8])
def test_no_label_is_lost_whatever_the_number_of_writers(writers: int) -> None:
    """Each adds labels to those that it sees, at random moments. With 8 writers 10.8 % of runs lost one."""
    for seed in range(100):
        random, log, wanted = Random(seed), Log(writers), {"old": "1"}
        for number, replica in enumerate(log.replicas):
            for _ in range(random.choice([1, 1, 2])):
                name = f"l{number}-{random.randrange(100)}"
                replica.change(Change(labels={**replica.worker.labels, name: "1"}))
                wanted[name] = "1"
                for _ in range(random.randrange(4)):
                    reader = random.choice(log.replicas)
                    reader.read(min(random.randrange(1, 4), len(reader.unread)))
        log.deliver()
        assert [replica.worker.labels for replica in log.replicas] == [wanted] * writers


def test_a_label_that_was_taken_away_stays_away_beside_changes_of_others() -> None:
    log = Log(3)
    one, two, three = log.replicas
    one.change(Change(labels={}))
    two.change(Change(labels={"old": "1", "zone": "b"}))
    three.change(Change(labels={"old": "1", "rack": "7"}))
    log.deliver()
    assert [replica.worker.labels for replica in log.replicas] == [{"zone": "b", "rack": "7"}] * 3


def test_a_worker_that_was_removed_is_not_brought_back_by_a_change_that_did_not_know() -> None:
    """Whichever comes first."""
    log = Log(2)
    one, two = log.replicas
    log.say(WorkerGone(WORKER, log.now_us + 1, "another"))
    log.now_us += 10
    two.change(Change(labels={"zone": "b"}))
    log.deliver()
    assert one.fleet.workers() == two.fleet.workers() == []
    log.say(WorkerPut(WORKER, log.now_us + 5, "another", "http://a"))
    log.deliver()
    assert [replica.worker.labels for replica in log.replicas] == [{}, {}]


def test_whoever_undrains_ends_a_wish_to_remove_that_is_older() -> None:
    log = Log(2)
    one, two = log.replicas
    one.change(Change(draining=True, leaving=True))
    log.deliver()
    two.change(Change(labels={"zone": "b"}))
    assert two.worker.leaving
    one.change(Change(draining=False))
    log.deliver()
    assert [(each.worker.draining, each.worker.leaving, each.worker.labels) for each in log.replicas] == [
        (False, False, {"zone": "b"})
    ] * 2


def test_more_labels_than_a_worker_may_have_leave_the_older_ones_everywhere() -> None:
    """40 labels by one replica and 40 others by another."""
    log = Log(2)
    for replica in log.replicas:
        labels = {f"{replica.name}-{number}": "" for number in range(40)}
        replica.change(Change(labels={**replica.worker.labels, **labels}))
    log.deliver()

    one, two = (replica.worker.labels for replica in log.replicas)
    assert one == two
    assert len(one) == LABELS_MAX
    assert one["old"] == "1"
    encode_op(log.replicas[0].worker.changed(99, "r0", role="decode"))
