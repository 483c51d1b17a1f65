"""What the shared queue costs: ``python -m loadtest.bench.waiting``.

Requests of two replicas wait for the workers of a large fleet, every third for one worker, the others for
any of their lane. Microseconds of CPU for each operation or question, at some numbers of waiting requests and
of flows:

* *put*: one more waits, and *foreign*, the same at another replica;
* *again*: one that waits gets another key;
* *placed*: it goes, so that the ticket ends and its flow is charged;
* *best*: who is next on a worker, and *own*, who of this replica;
* *any*: who is next, whichever worker it waits for;
* *ahead*: whether somebody goes before a newcomer;
* *work*: how much work is ahead of a key, and *worst*, whom to displace; each after one change.

Each figure is a median over rounds of some operations. After a round the queue has its size again.
"""

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from statistics import median

from policies import FleetState, Op, Placed, Waiting, WorkerPut

WORKERS = 1_000
LANE = "large|0-64K"
START_US = 1_000_000_000
OWN, OTHER = "one", "two"
ROUNDS = 25
OPERATIONS_MAX = 200
QUEUES = ((100, 1), (100, 20), (1_000, 1), (1_000, 200), (10_000, 1), (10_000, 20), (10_000, 200))
COLUMNS = ("put", "foreign", "again", "placed", "best", "own", "any", "ahead", "work", "worst")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.waiting", description="Cost of the shared queue."
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    gc.disable()
    print("waiting flows", *(f"{name:>7}" for name in COLUMNS), " µs CPU")
    for waiting, flows in QUEUES:
        figures = costs_us(waiting, flows, arguments.rounds)
        print(f"{waiting:>7} {flows:>5}", *(f"{figures[name]:>7.1f}" for name in COLUMNS))


def costs_us(waiting: int, flows: int, rounds: int) -> dict[str, float]:
    """The figures for one queue, by name."""
    queue = Queue(waiting, flows)
    operations = min(OPERATIONS_MAX, max(waiting // 10, 1))
    taken: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for _ in range(rounds):
        for name, us in queue.round_us(operations).items():
            taken[name].append(us)
    return {name: median(figures) for name, figures in taken.items()}


class Queue:
    """A fleet for which some requests wait.

    Attributes:
        fleet: Its state.
    """

    def __init__(self, waiting: int, flows: int) -> None:
        self.fleet = FleetState()
        self._flows = [f"{('high', 'normal', 'low')[number % 3]}/{number}" for number in range(flows)]
        self._random = Random(waiting + flows)
        self._numbers = count()
        self._now_us = START_US
        for number in range(WORKERS):
            self.fleet.apply(WorkerPut(f"w{number}:1", 1, "bench", f"http://w{number}:1"))
        # What is asked for once is kept up to date from then on.
        self.fleet.tickets.worst(OWN, self._flows[0], 1_000_000)
        for number in range(waiting):
            self.fleet.apply(self.waits(OWN if number % 2 else OTHER))

    def waits(self, replica: str, request_id: str | None = None) -> Waiting:
        """A request that waits, or waits otherwise than before."""
        random = self._random
        self._now_us += 500
        service_us = round(random.lognormvariate(12, 1))
        return Waiting(
            request_id or f"{next(self._numbers):08}",
            self._now_us,
            replica,
            self._now_us,
            self._now_us + 2 * service_us,
            LANE,
            f"w{random.randrange(WORKERS)}:1" if random.randrange(3) == 0 else "",
            random.choice(self._flows),
            service_us,
            service_us // 25,
            service_us // 20,
        )

    def round_us(self, operations: int) -> dict[str, float]:
        """Put some, ask some, and let as many go; microseconds for each."""
        fleet, tickets = self.fleet, self.fleet.tickets
        own = [self.waits(OWN) for _ in range(operations)]
        figures = {
            "put": self._applied_us(own),
            "foreign": self._applied_us([self.waits(OTHER) for _ in range(operations)]),
            "again": self._applied_us([self.waits(OWN, op.request_id) for op in own]),
        }
        now_us = self._now_us
        slots = [self._random.randrange(WORKERS) for _ in range(operations)]
        keys_us = [now_us + self._random.randrange(2_000_000) for _ in range(operations)]
        flow = self._flows[0]
        lanes = (LANE,)
        figures |= {
            "best": _each_us(lambda n: tickets.best(slots[n], lanes, now_us), operations),
            "own": _each_us(lambda n: tickets.best(slots[n], lanes, now_us, replica=OWN), operations),
            "any": _each_us(lambda _: tickets.best_of_lanes(lanes, now_us), operations),
            "ahead": _each_us(
                lambda n: tickets.ahead_of(slots[n], lanes, keys_us[n], now_us, flow=flow), operations
            ),
        }
        changed: dict[str, Callable[[int], object]] = {
            "work": lambda n: tickets.ahead_service_us(LANE, keys_us[n]),
            "worst": lambda _: tickets.worst(OWN, flow, 1_000_000),
        }
        for name, ask in changed.items():
            ops = [self.waits(OWN) for _ in range(operations)]

            def change_and_ask(
                number: int, ops: list[Waiting] = ops, ask: Callable[[int], object] = ask
            ) -> None:
                fleet.apply(ops[number])
                ask(number)

            figures[name] = max(0.0, _each_us(change_and_ask, operations) - figures["put"])
        figures["placed"] = self._applied_us(self._goes(slots * 4))
        return figures

    def _goes(self, slots: list[int]) -> list[Placed]:
        """Some of those that wait go to these workers."""
        self._now_us += 500
        gone = self._random.sample([*self.fleet.tickets], len(slots))
        return [
            Placed(
                ticket.request_id,
                self._now_us,
                f"w{slot}:1",
                ticket.replica,
                ticket.service_us,
                ticket.uncached_tokens,
                ticket.context_tokens,
                (b"",),
                flow=ticket.flow,
            )
            for ticket, slot in zip(gone, slots, strict=True)
        ]

    def _applied_us(self, ops: Sequence[Op]) -> float:
        return _each_us(lambda number: self.fleet.apply(ops[number]), len(ops))


def _each_us(do: Callable[[int], object], operations: int) -> float:
    """CPU of one of some operations, in microseconds."""
    began_ns = time.process_time_ns()
    for number in range(operations):
        do(number)
    return (time.process_time_ns() - began_ns) / operations / 1e3


if __name__ == "__main__":
    main()
