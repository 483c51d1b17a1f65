"""CPU of the steps that grow with the fleet, each beside its budget.

    python -m loadtest.bench.budgets [--sizes 100 1000]

A size is the number of workers and of tenants. Each row is one step of the event loop: the median and the
greatest of `CALLS` calls, in microseconds of CPU. A step that ends something prepares one for each call.

* *look*: a look of the request queue at workers that all have room, while 50 requests wait for a busy one;
* *look, others idle*: the same while all other workers are idle;
* *look, another's turn*: as *look*, while requests of another replica may go to any worker;
* *match*: of a sliding-window model, below a system prompt that every worker has cached and continues;
* *split*: of a run of blocks that every worker has cached;
* *arrival*: whether one of the requests of all tenants goes before a new one;
* *best*: the next of them for a worker, and *best, declined*: the same without 50 that declined;
* *inversion*: a placement while one of them at this replica has a lesser key;
* *displaced*: the request that a new one displaces in a full queue;
* *worker removed*: a worker with 45 ended requests is forgotten, in a fleet with `ENDED` times as many;
* *replica gone*: `Left` of one replica with ten requests in flight and ten transfers, of as many replicas;
* *replica gone, 5,000 in flight*: the same of one that sends load vectors and has requests at all workers;
* *vector*: a load vector of 30 workers of one of 50 replicas, behind ten placements that it absorbs;
* *refit*: a class of all workers gets another price, and a request sees the candidates;
* *relisted*: the same after one worker was put again, with room asked of one.

``--limits`` measures the script that counts limits: CPU of Valkey for each call, with 5 and 119 of its slots
in use and 1, 8 and 50 replicas.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random
from statistics import median

import numpy as np

from policies import (
    FULL_ATTENTION,
    Admission,
    AdmissionRules,
    FirstToken,
    Fitted,
    FleetRules,
    FleetState,
    Lanes,
    Left,
    LinkRules,
    OpLog,
    Placed,
    Queued,
    RequestQueue,
    RoomRules,
    Shipping,
    Waiting,
    WorkerGone,
    WorkerPut,
)
from policies.state.ops import Finished
from radix import HASH_BYTES, AttentionProfile, PrefixTree
from router.shared import EmbeddedValkey
from router.shared.lease_script import SCRIPT, SLOT_US, SLOTS, LeaseCall, command
from router.shared.server import RedisLink

SIZES = (100, 1000)
BUDGET_US = 200
CALLS = 25
SECOND_US = 1_000_000
NOW_US = 1_000_000 * SECOND_US
LANE = "m|"
ENDED = 45
WAITING = 50

Step = Callable[[int], object]
"""One call, by its number below `CALLS`."""


class _Timer:
    def cancel(self) -> None:
        """Nothing is due."""


class _Waiter:
    """A request that prefers to wait for its worker."""

    def __init__(self, op: Waiting) -> None:
        self._op = op

    def decide(self, ticket_id: str, turn: int) -> Queued:
        return Queued(self._op, b"", 0)

    def dispatched(self, decision: object) -> None:
        raise AssertionError("it waits for a busy worker")

    refused = dispatched


def fleet_of(workers: int, links: Mapping[str, LinkRules] | None = None, own: str = "") -> FleetState:
    """Return a fleet of idle workers."""
    fleet = FleetState(FleetRules(links=links or {}), own)
    for number in range(workers):
        fleet.apply(WorkerPut(worker_of(number), 1, "static", f"http://w{number}:1"))
    return fleet


def worker_of(number: int) -> str:
    """Name of a worker."""
    return f"10.0.{number // 250}.{number % 250}:8000"


def slots_of(fleet: FleetState) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """All workers of a fleet."""
    return np.array(sorted(worker.slot for worker in fleet.workers()), dtype=np.intp)


def _placed(name: str, worker: int, at_us: int, replica: str = "other", service_us: int = 100_000) -> Placed:
    return Placed(name, at_us, worker_of(worker), replica, service_us, 1, 1, (b"",), flow="normal/t0")


def _look(size: int, *, busy: bool, foreign: int = 0) -> Step:
    fleet, now_us = fleet_of(size), NOW_US
    admission, slots = Admission(AdmissionRules(), fleet), slots_of(fleet)
    looks: list[Callable[[], None]] = []

    def call_later(_delay_s: float, look: Callable[[], None]) -> _Timer:
        looks.append(look)
        return _Timer()

    queue = RequestQueue(
        log=OpLog("own", fleet.apply, lambda: now_us),
        fleet=fleet,
        admission=admission,
        lanes=Lanes(lambda _lane: slots),
        rules=RoomRules(),
        call_later=call_later,
        grace_s=lambda: 0.05,
        ended=lambda *_: None,
    )
    for number in range(40):
        fleet.apply(_placed(f"b{number}", 0, now_us, service_us=5_000_000))
    for number in range(1, size if busy else 1):
        fleet.apply(_placed(f"p{number}", number, now_us))
    for number in range(foreign):
        fleet.apply(
            Waiting(f"f{number}", now_us, "other", now_us, now_us, LANE, "", "normal/f", 500_000, 1000, 2000)
        )
    for number in range(WAITING):
        op = Waiting(
            f"q{number}",
            now_us,
            "own",
            now_us,
            now_us + number,
            LANE,
            worker_of(0),
            f"normal/t{number}",
            500_000,
            1000,
            2000,
        )
        queue.begin(_Waiter(op), Queued(op, b"", 0))

    def step(_number: int) -> None:
        nonlocal now_us
        now_us += 100
        looks.pop(0)()

    step(0)
    return step


def _match(size: int) -> Step:
    profile, tree, random = AttentionProfile("sliding_window", 128), PrefixTree(), Random(1)
    system = random.randbytes(16 * HASH_BYTES)
    for number in range(size):
        for turn in range(8):
            path = system + random.randbytes(20 * HASH_BYTES)
            tree.insert(number, path, NOW_US + turn, end=True, junction=16)
        tree.end_reach(number, int.from_bytes(system[-HASH_BYTES:], "little"), NOW_US + number, 2)
    asked = system + random.randbytes(20 * HASH_BYTES)
    tree.match(asked, profile)
    return lambda _number: tree.match(asked, profile).safe


def _split(size: int) -> Step:
    tree, random = PrefixTree(), Random(1)
    path = random.randbytes(200 * HASH_BYTES)
    for number in range(size):
        tree.insert(number, path, NOW_US, end=False)
    ends = [path[: HASH_BYTES * (number + 1)] + random.randbytes(HASH_BYTES) for number in range(2 * CALLS)]
    return lambda number: tree.insert(0, ends[number], NOW_US + number, end=False)


def _queue(size: int) -> FleetState:
    """Return a fleet for which two requests of each tenant wait, one of them here."""
    fleet = fleet_of(size)
    fleet.tickets.watched = "own"
    for number in range(2 * size):
        fleet.apply(
            Waiting(
                f"r{number}",
                NOW_US + number,
                "own" if number % 2 else f"other{number % 8}",
                NOW_US,
                NOW_US + 10 * number,
                LANE,
                "",
                f"normal/t{number % size}",
                500_000,
                1000,
                2000,
            )
        )
        if number % 3 == 0:
            fleet.fairness.charge(f"normal/t{number % size}", NOW_US, 100_000 + number)
    fleet.tickets.best(0, (LANE,), NOW_US)
    fleet.tickets.worst("own", "normal/new", 0)
    return fleet


def _arrival(size: int) -> Step:
    tickets = _queue(size).tickets
    return lambda number: tickets.ahead_of(3, (LANE,), NOW_US + number, NOW_US, flow="normal/new")


def _best(size: int, *, declined: int = 0) -> Step:
    tickets = _queue(size).tickets
    skip = {f"r{number}" for number in range(declined)}
    return lambda _number: tickets.best(3, (LANE,), NOW_US, skip=skip)


def _inversion(size: int) -> Step:
    fleet = _queue(size)
    return lambda number: fleet.apply(_placed(f"r{size + 2 * number}", number, NOW_US + SECOND_US))


def _displaced(size: int) -> Step:
    tickets = _queue(size).tickets
    return lambda number: tickets.worst("own", "normal/new", number)


def _worker_removed(size: int) -> Step:
    fleet = fleet_of(size)
    for number in range(ENDED * size):
        fleet.apply(_placed(f"r{number}", number % size, NOW_US + number))
        fleet.apply(Finished(f"r{number}", NOW_US + number + 1, NOW_US + number + 1))
    fleet.collect(NOW_US)

    def step(number: int) -> None:
        fleet.apply(WorkerGone(worker_of(number), NOW_US - 100 * SECOND_US, "own"))
        fleet.collect(NOW_US)

    return step


def _replica_gone(size: int) -> Step:
    fleet = fleet_of(size, {"a>b": LinkRules(gbps=100.0)})
    for number in range(10 * size):
        replica = f"other{number % size}"
        fleet.apply(_placed(f"r{number}", number % size, NOW_US, replica))
        fleet.apply(
            Shipping(f"r{number}", NOW_US, replica, "a>b", 1_000_000, NOW_US, NOW_US + 10_000 + number)
        )
    return lambda number: fleet.apply(Left(f"other{number}", NOW_US))


def _told(owner: FleetState, replica: int, size: int, requests: int) -> FleetState:
    """Place requests of a replica at workers in turn."""
    for number in range(requests):
        at_us = NOW_US + 10 * number + replica % 10
        owner.apply(_placed(f"{replica}-{number}", number % size, at_us, owner.loads.own))
    return owner


def _vector_replica_gone(size: int) -> Step:
    fleet = fleet_of(size)
    for replica in range(CALLS):
        owner = _told(fleet_of(size, own=f"other{replica}"), replica, size, 5000 if replica else size)
        fleet.apply(owner.load_reports.vector(NOW_US + SECOND_US, full=True))
    return lambda number: fleet.apply(Left(f"other{number}", NOW_US + SECOND_US))


def _vector(size: int) -> Step:
    fleet = fleet_of(size)
    for replica in range(50):
        owner = _told(fleet_of(size, own=f"other{replica}"), replica, size, size)
        fleet.apply(owner.load_reports.vector(NOW_US + SECOND_US, full=True))
    vectors = []
    for call in range(CALLS):
        later_us = NOW_US + (call + 2) * SECOND_US
        for number in range(30):
            placed = _placed(f"{call}-{number}", number * 3, later_us, owner.loads.own)
            owner.apply(placed)
            owner.apply(FirstToken(placed.request_id, later_us))
            if number < 10:
                fleet.apply(placed)
        vectors.append(owner.load_reports.vector(later_us, full=False))
    return lambda number: fleet.apply(vectors[number])


def _refit(size: int) -> Step:
    fleet = fleet_of(size)
    slots = slots_of(fleet)

    def step(number: int) -> object:
        fleet.apply(Fitted("default", NOW_US + number, "other", 0.02 + number * 1e-5, 6e-5, 1e5))
        return fleet.candidates(slots, (b"",), FULL_ATTENTION, 1000.0, 256.0, NOW_US)

    step(0)
    return step


def _relisted(size: int) -> Step:
    fleet = fleet_of(size)
    slots, admission = slots_of(fleet), Admission(AdmissionRules(), fleet)

    def step(number: int) -> object:
        fleet.apply(WorkerPut(worker_of(7), 2 + number, "static", "http://w7:1", draining=bool(number % 2)))
        fleet.candidates(slots, (b"",), FULL_ATTENTION, 1000.0, 256.0, NOW_US)
        return admission.has_room(3, NOW_US)

    step(0)
    return step


STEPS: dict[str, Callable[[int], Step]] = {
    "look": lambda size: _look(size, busy=True),
    "look, others idle": lambda size: _look(size, busy=False),
    "look, another's turn": lambda size: _look(size, busy=True, foreign=WAITING),
    "match": _match,
    "split": _split,
    "arrival": _arrival,
    "best": _best,
    "best, declined": lambda size: _best(size, declined=WAITING),
    "inversion": _inversion,
    "displaced": _displaced,
    "worker removed": _worker_removed,
    "replica gone": _replica_gone,
    "replica gone, 5,000 in flight": _vector_replica_gone,
    "vector": _vector,
    "refit": _refit,
    "relisted": _relisted,
}


def spent_us(step: Step) -> tuple[float, float]:
    """Return the median and the greatest CPU of `CALLS` calls, microseconds."""
    spent: list[int] = []
    for number in range(1, CALLS):
        began_ns = time.process_time_ns()
        step(number)
        spent.append(time.process_time_ns() - began_ns)
    return median(spent) / 1e3, max(spent) / 1e3


async def _limits() -> None:
    """Print CPU of Valkey for a call of the script that counts limits."""
    print("| limits call: replicas | slots in use | us | budget |")
    print("|--:|--:|--:|--:|")
    async with EmbeddedValkey() as server:
        link = RedisLink(server.url, 5.0, home="account", name="budgets")
        script = await link.call("SCRIPT", "LOAD", SCRIPT)
        for replicas in (1, 8, 50):
            for slots in (5, SLOTS - 1):
                us = min([await _call_us(link, script, replicas, slots) for _ in range(5)])
                print(f"| {replicas} | {slots} | {us:.0f} | {BUDGET_US} |", flush=True)
        await link.aclose()


async def _call_us(link: RedisLink, script: bytes, replicas: int, slots: int) -> float:
    """Return the mean CPU of a call in which one of some replicas tells one use, microseconds."""
    await link.call("FLUSHALL")
    seconds, more_us = await link.call("TIME")
    slot = (int(seconds) * SECOND_US + int(more_us)) // SLOT_US
    batches = [0] * replicas

    async def call(replica: int, used: int) -> None:
        batches[replica] += 1
        lease = LeaseCall(
            f"gateway-7f9c4d-x{replica:02d}/abcdef12/0",
            batches[replica],
            whole=False,
            ttl_us=3 * SECOND_US,
            limits=(100_000, 10**9, 10**8),
            held=(10, 1000, 5000),
            wants=(20, 2000, 2000),
            uses=tuple((slot - back, 1, 100) for back in range(used)),
            asks=(),
        )
        await link.call(*command(script, "account", lease))

    for replica in range(replicas):
        await call(replica, 1 if replica else slots)
    await link.call("CONFIG", "RESETSTAT")
    for number in range(1500):
        await call(number % replicas, 1)
    stats = (await link.call("INFO", "commandstats")).decode()
    line = next(line for line in stats.splitlines() if line.startswith("cmdstat_evalsha"))
    return float(line.partition("usec_per_call=")[2].partition(",")[0])


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--only", nargs="+", default=list(STEPS))
    parser.add_argument("--limits", action="store_true")
    arguments = parser.parse_args()
    if arguments.limits:
        asyncio.run(_limits())
        return
    print("| step | " + " | ".join(f"{size:,}: us | most" for size in arguments.sizes) + " | budget |")
    print("|---|" + "--:|" * (2 * len(arguments.sizes) + 1))
    for name in arguments.only:
        cells: list[str] = []
        for size in arguments.sizes:
            cells += [f"{us:,.0f}" for us in spent_us(STEPS[name](size))]
        print(f"| {name} | " + " | ".join(cells) + f" | {BUDGET_US} |", flush=True)


if __name__ == "__main__":
    main()
