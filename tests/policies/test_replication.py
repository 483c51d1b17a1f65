"""Replicas that place, forget, fall behind, die and come back agree with each other and with a naive fold.

The machine draws events; `fakes.simulated_replicas` is the protocol and `fakes.naive_fold` the meaning.
After every step a replica that has read again all that it once knew must agree with its own naive fold in
everything a decision can see. At the end all read everything: then all agree, and when all requests have
ended nothing is reserved.

To run it for long: ``python -m pytest tests/policies/test_replication.py --hypothesis-profile=deep
--timeout=0``.
"""

from fakes.decisions import (
    CLASSES,
    LANE,
    PROMPTS,
    WAITING_FLOW,
    WORKERS,
    differences,
    path,
)
from fakes.naive_fold import NaiveFold
from fakes.simulated_replicas import SimulatedLog, SimulatedReplica
from fakes.words import word
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies import (
    CircuitSet,
    EndGone,
    Finished,
    FirstToken,
    FleetState,
    Forget,
    Insert,
    Left,
    Op,
    Placed,
    Trim,
    Waiting,
    WorkerGone,
    WorkerPut,
)
from policies.state.ops import REGISTERS
from radix.invariants import check

SECOND = 1_000_000
START_US = 1_000 * SECOND
TTL_US = 3 * SECOND
NAMES = ("one", "two", "three")

MEMORY_US = 28 * SECOND
"""All events are within the memory of ended requests (`FleetRules.memory_s`)."""

counts = st.integers(1, 5) | st.just(1_000)


def reservations(fleet: FleetState) -> list[tuple[float, ...]]:
    """The sums of the requests in flight, by slot: as kept, and computed again."""
    loads = fleet.loads
    columns = (loads.prefill_us, loads.prefill_tokens, loads.inflight_requests, loads.inflight_tokens)
    return [tuple(float(column[slot]) for column in columns) for slot in range(len(loads.prefill_us))]


class Replication(RuleBasedStateMachine):
    """Three replicas, two workers, a few prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.log = SimulatedLog()
        self.now_us = START_US
        self.lives = 0
        self.requests = 0
        self.alive: dict[str, SimulatedReplica] = {}
        self.beats_us: dict[str, int] = {}
        self.touched: set[str] = set()

    @initialize()
    def start_all(self) -> None:
        for name in NAMES:
            self._start(name)
            self.alive[name].flush()

    # Actors.

    def _start(self, name: str) -> None:
        self.now_us += 1_000  # later than the last word of its former life
        replica = SimulatedReplica(name, self.lives, self.log, self.now_us)
        self.lives += 1
        self.alive[name] = replica
        self.beats_us[name] = self.now_us
        replica.publish(Left(name, replica.moment(self.now_us)))
        for worker in WORKERS:
            replica.publish(WorkerPut(worker, 1, "static", f"http://{worker}"))
        self.touched.add(name)

    def _awake(self) -> list[SimulatedReplica]:
        return [replica for replica in self.alive.values() if not replica.asleep]

    def _one(self, number: int) -> SimulatedReplica:
        awake = self._awake()
        replica = awake[number % len(awake)]
        self.touched.add(replica.name)
        return replica

    # Requests.

    @rule(
        number=st.integers(0, 2),
        worker=st.sampled_from(WORKERS),
        prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=2),
        ends=st.booleans(),
        service=st.integers(1, 3),
        flush=st.booleans(),
    )
    def place(
        self, number: int, worker: str, prompts: list[str], ends: bool, service: int, flush: bool
    ) -> None:
        replica = self._one(number)
        if replica.fleet.worker(worker) is None:
            return
        # One that waits here, if any does.
        request_id = min(replica.waiting, default=None) or self._new_id()
        replica.waiting.pop(request_id, None)
        replica.publish(
            Placed(
                request_id,
                replica.moment(self.now_us),
                worker,
                replica.name,
                service * 400_000,
                service * 300,
                service * 500,
                tuple(map(path, prompts)),
                ends,
                WAITING_FLOW,
            )
        )
        replica.prefilled[request_id] = False
        if flush:
            replica.flush()

    def _new_id(self) -> str:
        """Ids that do not sort by time: the head is the oldest, by any id."""
        self.requests += 1
        return f"{self.requests * 7 % 10}-{self.requests}"

    @rule(
        number=st.integers(0, 2),
        again=st.booleans(),
        key=st.integers(1, 4),
        worker=st.sampled_from(("", *WORKERS)),
        flush=st.booleans(),
    )
    def wait(self, number: int, again: bool, key: int, worker: str, flush: bool) -> None:
        """No worker has room for a request, or one that waits gets another key."""
        replica = self._one(number)
        request_id = (min(replica.waiting, default=None) if again else None) or self._new_id()
        at_us = replica.moment(self.now_us)
        op = Waiting(
            *(request_id, at_us, replica.name, self.now_us, self.now_us + key * SECOND),
            *(LANE, worker, WAITING_FLOW, key * 400_000, key * 300, key * 500),
        )
        replica.waiting[request_id] = op
        replica.publish(op)
        if flush:
            replica.flush()

    @rule(number=st.integers(0, 2))
    def withdraw(self, number: int) -> None:
        """A client leaves while its request waits."""
        replica = self._one(number)
        if replica.waiting:
            request_id = max(replica.waiting)
            del replica.waiting[request_id]
            replica.publish(Finished(request_id, replica.moment(self.now_us)))

    @rule(number=st.integers(0, 2))
    def renew(self, number: int) -> None:
        """A replica that was given up wrongly says of its requests that they go on."""
        self._one(number).renew()

    @rule(which=st.integers(0, 9), last=st.booleans(), answered=st.booleans(), flush=st.booleans())
    def go_on(self, which: int, last: bool, answered: bool, flush: bool) -> None:
        """A request has its first token, or ends: after it, with it, or without."""
        live = [(replica, request_id) for replica in self._awake() for request_id in replica.prefilled]
        if not live:
            return
        replica, request_id = live[which % len(live)]
        self.touched.add(replica.name)
        at_us = replica.moment(self.now_us)
        if last or replica.prefilled[request_id]:
            first_said = replica.prefilled.pop(request_id)
            replica.publish(Finished(request_id, at_us, at_us - 1 if answered and not first_said else 0))
        else:
            replica.prefilled[request_id] = True
            replica.publish(FirstToken(request_id, at_us))
        if flush:
            replica.flush()

    # Corrections and lessons.

    @rule(
        number=st.integers(0, 2),
        kind=st.sampled_from((Insert, Trim, Forget, EndGone)),
        worker=st.sampled_from(WORKERS),
        prompt=st.sampled_from(PROMPTS),
        ago_us=st.sampled_from((-1, 0, SECOND)),
    )
    def correct(self, number: int, kind: type, worker: str, prompt: str, ago_us: int) -> None:
        """Publish that a worker holds a prompt, or no longer holds it."""
        if kind is Insert:
            op: Op = Insert(worker, path(prompt), self.now_us, ago_us < 0)
        elif kind is Trim:
            op = Trim(worker, path(prompt), self.now_us - ago_us)
        elif kind is EndGone:
            op = EndGone(worker, path(prompt), self.now_us - ago_us)
        else:
            op = Forget(worker, self.now_us - ago_us)
        self._one(number).publish(op)

    @rule(
        number=st.integers(0, 2),
        kind=st.sampled_from((WorkerPut, WorkerPut, WorkerGone, CircuitSet, *REGISTERS)),
        subject=st.integers(0, 1),
        value=st.integers(1, 4),
    )
    def say(self, number: int, kind: type, subject: int, value: int) -> None:
        """Write a register."""
        replica = self._one(number)
        at_us, worker = replica.moment(self.now_us), WORKERS[subject]
        if kind is WorkerPut:
            slow, labels = value % 2 == 0, {"worker_class": CLASSES[value % 2]}
            op: Op = WorkerPut(worker, at_us, replica.name, f"http://{worker}", draining=slow, labels=labels)
        elif kind is WorkerGone:
            op = WorkerGone(worker, at_us, replica.name)
        else:
            op = word(kind, subject, at_us, replica.name, value)
        replica.publish(op)

    # The log.

    @rule(number=st.integers(0, 2), flush=st.sampled_from((True, True, True, False)), count=counts)
    def share(self, number: int, flush: bool, count: int) -> None:
        """Write to the log and read from it."""
        replica = self._one(number)
        if flush:
            replica.flush()
        replica.read(count)

    @rule()
    def everybody_reads(self) -> None:
        for replica in self._awake():
            replica.read_all()
            self.touched.add(replica.name)

    @rule(number=st.integers(0, 2), count=st.integers(0, 5))
    def repeat(self, number: int, count: int) -> None:
        """An acknowledgement is lost, so that an entry comes twice; some entries are read twice."""
        replica = self._one(number)
        replica.flush(acknowledged=False)
        replica.rewind(count)

    @rule(number=st.integers(0, 2), count=st.integers(1, 3))
    def overflow(self, number: int, count: int) -> None:
        self._one(number).overflow(count)

    @rule(number=st.integers(0, 2), steps=st.integers(0, 9))
    def begin_snapshot(self, number: int, steps: int) -> None:
        replica = self._one(number)
        replica.begin_snapshot()
        replica.step_snapshot(steps)

    @rule(number=st.integers(0, 2), steps=st.integers(1, 20))
    def step(self, number: int, steps: int) -> None:
        """Go on with the snapshot that is being written, and with the one that is being merged."""
        replica = self._one(number)
        replica.step_snapshot(steps)
        replica.step_merge(steps)

    @rule(number=st.integers(0, 2), margin=st.integers(0, 3))
    def finish_snapshot(self, number: int, margin: int) -> None:
        """Write the snapshot that was begun, or else a new one."""
        replica = self._one(number)
        replica.begin_snapshot()
        replica.finish_snapshot(margin)

    # Time, life and death.

    @rule(tenths=st.sampled_from((1, 4, 10, 40)))
    def pass_time(self, tenths: int) -> None:
        if self.now_us + tenths * SECOND // 10 <= START_US + MEMORY_US:
            self.now_us += tenths * SECOND // 10
            for replica in self._awake():
                self.beats_us[replica.name] = self.now_us

    @rule(number=st.integers(0, 2))
    def collect(self, number: int) -> None:
        self._one(number).fleet.collect(self.now_us)

    @rule(number=st.integers(0, 2))
    def judge(self, number: int) -> None:
        """Publish that each replica with an expired heartbeat left."""
        replica = self._one(number)
        for name, beat_us in self.beats_us.items():
            if self.now_us - beat_us > TTL_US:
                replica.publish(Left(name, beat_us + TTL_US))

    @precondition(lambda self: len(self._awake()) > 1)
    @rule(number=st.integers(0, 2))
    def sleep(self, number: int) -> None:
        self._one(number).asleep = True

    @precondition(lambda self: len(self._awake()) > 1)
    @rule(number=st.integers(0, 2))
    def kill(self, number: int) -> None:
        del self.alive[self._one(number).name]

    @precondition(lambda self: len(self._awake()) < len(NAMES))
    @rule()
    def recover(self) -> None:
        """Sleeping replicas wake up, dead ones start again."""
        for name in NAMES:
            if name not in self.alive:
                self._start(name)
            elif self.alive[name].asleep:
                self.touched.add(name)
            self.alive[name].asleep = False
            self.beats_us[name] = self.now_us

    # Invariants.

    @invariant()
    def each_agrees_with_its_naive_fold(self) -> None:
        for replica in self.alive.values():
            if replica.name not in self.touched:
                continue
            check(replica.fleet.tree)
            assert min(min(row) for row in reservations(replica.fleet)) >= 0
            if replica.settles:
                assert differences(replica.fleet, replica.naive, self.now_us) == {}
        self.touched.clear()

    def teardown(self) -> None:
        """Everybody wakes up, everything is flushed and read, and every request ends."""
        if not self.alive:
            return
        replicas = list(self.alive.values())
        for replica in replicas:
            replica.asleep = False
            self.beats_us[replica.name] = self.now_us
        self.now_us += TTL_US + SECOND
        for name in self.beats_us.keys() - self.alive.keys():
            replicas[0].publish(Left(name, self.beats_us[name] + TTL_US))
        self._settle(replicas)
        self._all_agree(replicas)
        for replica in replicas:
            for request_id in (*replica.prefilled, *replica.waiting):
                replica.publish(Finished(request_id, replica.moment(self.now_us)))
        self._settle(replicas)
        self._all_agree(replicas)
        for replica in replicas:
            assert replica.fleet.loads.requests == {}
            assert list(replica.fleet.tickets) == []
            assert set(reservations(replica.fleet)) == {(0.0, 0.0, 0.0, 0.0)}

    def _settle(self, replicas: list[SimulatedReplica]) -> None:
        for replica in replicas:
            replica.flush()
            replica.read_all()
            if replica.dropped:
                replica.snapshot = None
                replica.begin_snapshot()
                replica.finish_snapshot(0)
        end = -1
        while end != replicas[0].log.end:  # questions about prompts, and their answers
            end = replicas[0].log.end
            for replica in replicas:
                replica.read_all()

    def _all_agree(self, replicas: list[SimulatedReplica]) -> None:
        everything = NaiveFold()
        for replica in replicas:
            assert replica.settles, replica.name
            everything.merge(replica.naive)
        dumps = []
        for replica in replicas:
            check(replica.fleet.tree)
            everything.own = replica.name
            assert differences(replica.fleet, everything, self.now_us) == {}
            slots = [worker.slot for worker in replica.fleet.workers()]
            dump = replica.fleet.tree.dump(slots)
            # The latest time seen only says how long tombstones are kept; a renewal need not touch the tree.
            dumps.append((dump.pages, dump.marks.floor, dump.marks.workers))
        assert all(dump == dumps[0] for dump in dumps)


TestReplication = Replication.TestCase
TestReplication.settings = settings(stateful_step_count=50)
