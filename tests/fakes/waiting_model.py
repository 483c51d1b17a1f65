"""Replicas that hold requests back over a slow log: the rule of the shared queue as a model.

Each replica has its own fold and hears of the others' operations ``delay_us`` later. A worker prefills its
requests in the order of dispatch, one at a time; it *has room* while fewer than `ROOM` are on it.

    arrives ──> the worker that would be done first, if it has room and it is the request's turn there: no
                request with a better key waits for it
            ──> else waits: for that worker, if no other would be better even when idle, or if the request has
                just declined another's room; else for any
    relieved ─> the best request that waits for it, or the best of all if it is idle and none waits for it:
                if that is this replica's, it decides afresh, and declines if another worker would be done
                first; if another's, the room is left to it for the grace time, then to the next one

Beside the folds, the model knows which requests really wait, and where, and records them at every dispatch.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from policies import Finished, FleetRules, FleetState, Left, Op, Placed, Ticket, Waiting, WorkerPut

LANE = "|"
ROOM = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One request.

    Attributes:
        name: Its id, and that of its ticket.
        arrived_us: Log time of its arrival.
        replica: Replica at which it arrives.
        service_us: Prefill time on each worker.
        flow: Its flow.
    """

    name: str
    arrived_us: int
    replica: int
    service_us: tuple[int, ...]
    flow: str = "normal/"

    def key_us(self, k: float) -> int:
        return self.arrived_us + round(k * min(self.service_us))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request was sent to a worker.

    Attributes:
        at_us: Time of the dispatch.
        job: The request.
        worker: The worker.
        others: Requests that waited for the worker then, and the time of their tickets.
    """

    at_us: int
    job: Job
    worker: int
    others: dict[str, int]


class Replica:
    """One gateway."""

    def __init__(self, number: int, rules: FleetRules) -> None:
        self.number = number
        self.name = f"replica{number}"
        self.fleet = FleetState(rules)
        self.jobs: dict[str, Job] = {}
        self.left_to: dict[int, dict[str, tuple[str, int]]] = {}
        self.alive = True


class WaitingModel:
    """A world with some replicas and workers."""

    def __init__(
        self,
        jobs: list[Job],
        *,
        replicas: int = 1,
        workers: int = 1,
        delay_us: int = 0,
        k: float = 1.0,
        rules: FleetRules | None = None,
    ) -> None:
        self.k, self.delay_us = k, delay_us
        self.grace_us = 4 * delay_us
        self.now_us = 0
        self.jobs = {job.name: job for job in jobs}
        self.replicas = [Replica(number, rules or FleetRules()) for number in range(replicas)]
        self.queues: list[list[Job]] = [[] for _ in range(workers)]
        self.waiting: dict[str, Waiting] = {}
        self.dispatches: list[Dispatch] = []
        self._ends_us = [0] * workers
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        for replica in self.replicas:
            for worker in range(workers):
                replica.fleet.apply(WorkerPut(worker_id(worker), 1, "static", f"http://{worker_id(worker)}"))
        for job in jobs:
            self.at(job.arrived_us, lambda job=job: self._arrive(job))

    # Running.

    def at(self, at_us: int, do: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_us, self._sequence, do))

    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Until nothing happens any more; checks after every moment."""
        while self._events:
            self.now_us, _, do = heapq.heappop(self._events)
            do()
            while self._events and self._events[0][0] == self.now_us:
                heapq.heappop(self._events)[2]()
            self._look()
            check()

    def idle(self) -> list[int]:
        """Workers with nothing to prefill."""
        return [number for number, queue in enumerate(self.queues) if not queue]

    def held_us(self, slot: int) -> int:
        """Time from now until a worker has done all its requests."""
        return sum(job.service_us[slot] for job in self.queues[slot][1:]) + max(
            self._ends_us[slot] - self.now_us, 0
        )

    def kill(self, number: int, noticed_us: int) -> None:
        """Stop a replica with all that it holds; the others notice some time later."""
        victim = self.replicas[number]
        victim.alive = False
        for name in [name for name, op in self.waiting.items() if op.replica == victim.name]:
            del self.waiting[name]
        for worker, queue in enumerate(self.queues):
            under_way = queue[:1]
            queue[:] = [job for job in queue if job.replica != number]
            if under_way != queue[:1]:
                self._start(worker)
        survivor = next(replica for replica in self.replicas if replica.alive)
        left = Left(victim.name, self.now_us)
        self.at(self.now_us + noticed_us, lambda: self._publish(survivor, left))

    # Events.

    def _arrive(self, job: Job) -> None:
        replica = self.replicas[job.replica]
        if replica.alive:
            replica.jobs[job.name] = job
            self._decide(replica, job, -1)

    def _publish(self, replica: Replica, op: Op) -> None:
        """Apply here and now, and elsewhere after the delay."""
        if isinstance(op, Waiting):
            self.waiting[op.request_id] = op
        elif isinstance(op, Placed):
            self.waiting.pop(op.request_id, None)
        replica.fleet.apply(op)
        for other in self.replicas:
            if other is not replica and self.delay_us:
                self.at(self.now_us + self.delay_us, lambda other=other: other.fleet.apply(op))
            elif other is not replica:
                other.fleet.apply(op)

    def _look(self) -> None:
        """Let every replica look at the workers that may have room, until none finds anything to do."""
        done = -1
        while done != self._sequence:
            done = self._sequence
            for replica in self.replicas:
                if replica.alive:
                    slots = replica.fleet.relieved | replica.left_to.keys()
                    replica.fleet.relieved.clear()
                    for slot in sorted(slots):
                        self._serve(replica, slot)

    def _serve(self, replica: Replica, slot: int) -> None:
        tickets = replica.fleet.tickets
        left_to = replica.left_to.pop(slot, {})
        declined = set[str]()
        for _ in range(2 * len(self.jobs)):
            if not self._below(replica, slot, ROOM):
                return
            best_of: Callable[..., Ticket | None] = partial(tickets.best, slot)
            if best_of((LANE,), self.now_us, skip=declined) is None and self._below(replica, slot, 1):
                best_of = tickets.best_of_lanes
            best, passed = best_of((LANE,), self.now_us, skip=declined), set[str]()
            while best is not None and best.replica != replica.name:
                known = left_to.get(best.replica)
                if known is None or known[0] != best.request_id:
                    known = left_to[best.replica] = (best.request_id, self.now_us)
                    self.at(self.now_us + self.grace_us + 1, lambda: None)
                if self.now_us - known[1] <= self.grace_us:
                    replica.left_to[slot] = left_to
                    return
                passed.add(best.replica)
                firsts = [
                    best_of((LANE,), self.now_us, replica=r, skip=declined)
                    for r in tickets.replicas() - passed
                ]
                best = min((ticket for ticket in firsts if ticket is not None), default=None)
            if best is None:
                return
            if not self._decide(replica, replica.jobs[best.request_id], slot):
                declined.add(best.request_id)

    def _decide(self, replica: Replica, job: Job, turn: int) -> bool:
        """Dispatch it or publish its ticket; return whether anything of this was new."""
        fleet, tickets = replica.fleet, replica.fleet.tickets
        slots = range(len(self.queues))
        done_us = [round(fleet.loads.backlog_at_s(s, self.now_us) * 1e6) + job.service_us[s] for s in slots]
        chosen = min(slots, key=lambda slot: (done_us[slot], slot))
        others = [us for slot, us in enumerate(job.service_us) if slot != chosen]
        key_us = job.key_us(self.k)
        waits = job.name in self.waiting
        flow = None if waits else job.flow

        def its_turn(slot: int) -> bool:
            return turn == slot or not tickets.ahead_of(slot, (LANE,), key_us, self.now_us, flow=flow)

        if its_turn(chosen) and self._below(replica, chosen, ROOM):
            self._dispatch(replica, job, chosen)
            return True
        said = self.waiting.get(job.name)
        declined = turn not in (-1, chosen) or (said is not None and said.worker == worker_id(chosen))
        prefers = declined or (others and done_us[chosen] < min(others))
        worker = worker_id(chosen) if prefers else ""
        op = Waiting(
            *(job.name, self.now_us, replica.name, job.arrived_us, key_us, LANE, worker, job.flow),
            *(min(job.service_us), 1, 1),
        )
        if said is None or said.worker != worker:
            self._publish(replica, op)
            # The room was left to another request, which may now go elsewhere.
            replica.fleet.relieved.update(slot for slot in slots if self._below(replica, slot, ROOM))
            return True
        return False

    def _dispatch(self, replica: Replica, job: Job, worker: int) -> None:
        others = {
            name: op.at_us
            for name, op in self.waiting.items()
            if op.worker in ("", worker_id(worker)) and name != job.name
        }
        queue = self.queues[worker]
        self.dispatches.append(Dispatch(self.now_us, job, worker, others))
        op = Placed(
            *(job.name, self.now_us, worker_id(worker), replica.name, job.service_us[worker], 1, 1),
            paths=(b"",),
            flow=job.flow if replica.fleet.tickets.count else "",
        )
        self._publish(replica, op)
        queue.append(job)
        if len(queue) == 1:
            self._start(worker)

    def _start(self, worker: int) -> None:
        """Prefill the first of the queue."""
        queue = self.queues[worker]
        if queue:
            job = queue[0]
            self._ends_us[worker] = self.now_us + job.service_us[worker]
            self.at(self.now_us + job.service_us[worker], lambda: self._done(worker, job))

    def _done(self, worker: int, job: Job) -> None:
        queue = self.queues[worker]
        if job not in queue[:1]:
            return
        queue.pop(0)
        self._publish(self.replicas[job.replica], Finished(job.name, self.now_us, self.now_us))
        self._start(worker)

    @staticmethod
    def _below(replica: Replica, slot: int, requests: int) -> bool:
        return replica.fleet.loads.inflight_requests[slot] < requests


def worker_id(worker: int) -> str:
    return f"w{worker}:1"
