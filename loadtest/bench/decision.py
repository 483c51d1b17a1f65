"""CPU of one decision and its fold, and of the shared queue.

    python -m loadtest.bench.decision [--workers 4 64 1000] [--pairs]
    python -m loadtest.bench.decision --queue

The default policy places short prompts, 16 in flight at a time. *cold* prompts are one block of their own;
*shared* ones begin with one of 32 prefixes of four blocks. CPU per request, median of runs on new fleets:

* *decide*: view of the candidates and choice; a run that decides and folds, less one that only folds;
* *fold*: placed, first token and finished applied; *fold short*: placed, and finished with its first token.

With ``--pairs`` half of the workers prefill and half decode: *fold* is five operations, *fold short* four.

With ``--queue`` requests of two replicas wait, every third for one worker, the others for any of their lane.
CPU per operation or question, median of rounds after which the queue has its size again:

* *put*, *foreign*: one more waits here, or at another replica; *again*: a waiting one gets another key;
* *placed*: its ticket ends and its flow is charged;
* *best*, *own*, *any*: next request on a worker, of this replica, on whichever worker;
* *ahead*: whether a request goes before a newcomer;
* *work*, *worst*: work ahead of a key, request to displace; each after one change.
"""

import argparse
import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from statistics import median

import numpy as np

from loadtest.bench.costs import mean_us
from policies import (
    FULL_ATTENTION,
    UNKNOWN_KV,
    Admission,
    AdmissionRules,
    Chosen,
    DecodeFit,
    Finished,
    FirstToken,
    FleetState,
    Op,
    Pairing,
    Partners,
    Placed,
    RequestView,
    Waiting,
    WorkerPut,
    make_policy,
    place,
)
from policies.disaggregation import DecodeSelector
from radix import chain_bytes, root_hash

REQUESTS = 4000
REPEATS = 7
INFLIGHT = 16
PREFIXES = 32
START_US = 1_000_000_000
STEP_US = 250
"""Log time between two requests."""

UNOBSERVED = DecodeFit()

PROMPT_TOKENS = {False: 300.0, True: 1250.0}

QUEUE_WORKERS = 1_000
LANE = "large|0-64K"
OWN, OTHER = "one", "two"
ROUNDS = 25
OPERATIONS_MAX = 200
QUEUES = ((100, 1), (100, 20), (1_000, 1), (1_000, 200), (10_000, 1), (10_000, 20), (10_000, 200))
COLUMNS = ("put", "foreign", "again", "placed", "best", "own", "any", "ahead", "work", "worst")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.decision",
        description="Cost of one decision and its fold, and of the queue.",
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 64, 1000])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--pairs", action="store_true", help="half of the workers prefill, half decode")
    parser.add_argument("--queue", action="store_true", help="the shared queue instead")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the queue")
    arguments = parser.parse_args()
    gc.disable()
    if arguments.queue:
        print("waiting flows", *(f"{name:>7}" for name in COLUMNS), " µs CPU")
        for waiting, flows in QUEUES:
            figures = queue_us(waiting, flows, arguments.rounds)
            print(f"{waiting:>7} {flows:>5}", *(f"{figures[name]:>7.1f}" for name in COLUMNS))
        return
    print("workers  prompts   decide     fold  fold short  µs CPU")
    for workers in arguments.workers:
        for shared in (False, True):
            runs = [
                costs_us(workers, arguments.requests, shared=shared, pairs=arguments.pairs)
                for _ in range(arguments.repeats)
            ]
            decide_us, fold_us, short_us = (median(figures) for figures in zip(*runs, strict=True))
            prompts = "shared" if shared else "cold"
            print(f"{workers:>7} {prompts:>8} {decide_us:>8.1f} {fold_us:>8.1f} {short_us:>11.1f}")


def costs_us(workers: int, requests: int, *, shared: bool, pairs: bool = False) -> tuple[float, float, float]:
    """CPU of deciding, of folding all operations and of folding fewer, for each request, in microseconds."""
    paths = _prompts(requests, shared=shared)
    fleet = fleet_of(workers, pairs=pairs)
    began_ns = time.process_time_ns()
    ops = decided(fleet, paths, PROMPT_TOKENS[shared], pairing_of(workers) if pairs else None)
    both_ns = time.process_time_ns() - began_ns
    fold_us, short_us = (
        _folded_us(fleet_of(workers, pairs=pairs), some) / requests for some in (ops, shortened(ops))
    )
    return both_ns / 1e3 / requests - fold_us, fold_us, short_us


def fleet_of(workers: int, *, pairs: bool = False) -> FleetState:
    """A fleet of idle workers with room for everything; with pairs the first half prefills."""
    fleet = FleetState()
    for number in range(workers):
        role = "plain"
        if pairs:
            role = "prefill" if number < workers // 2 else "decode"
        fleet.apply(WorkerPut(f"w{number}:1", 1, "bench", f"http://w{number}:1", role))
    return fleet


def pairing_of(workers: int) -> Pairing:
    """Workers that may begin, and end, a request in such a fleet."""
    prefill = workers // 2
    partners = Partners("sglang", np.arange(prefill, workers))
    return Pairing(np.arange(prefill), np.zeros(prefill, dtype=np.intp), (partners,))


def decided(
    fleet: FleetState, paths: list[bytes], prompt_tokens: float, pairing: Pairing | None = None
) -> list[Op]:
    """Place every prompt and fold what happens to it: all operations, in order."""
    policy = make_policy("expected_cost")
    slots = np.arange(len(fleet.workers())) if pairing is None else pairing.slots
    decode_selector = DecodeSelector(fleet, Admission(AdmissionRules(), fleet), lambda _: UNOBSERVED)
    ops: list[Op] = []
    prefilling: deque[str] = deque()
    decoding: deque[str] = deque()
    for number, path in enumerate(paths):
        now_us = START_US + number * STEP_US
        request_id = f"r{number:x}"
        candidates = fleet.candidates(slots, (path,), FULL_ATTENTION, prompt_tokens, 256.0, now_us)
        key = int.from_bytes(path[-8:], "little")
        view = RequestView(key, key, prompt_tokens, 300.0, number)
        decode_view = None
        if pairing is not None:
            decode_view = decode_selector.decode_view(pairing, view, UNKNOWN_KV, candidates)
            candidates = fleet.among(candidates, slots, ships=decode_view.ships())
        chosen = place(view, candidates, policy)
        assert isinstance(chosen, Chosen)
        happened: list[Op] = [
            Placed(
                request_id,
                now_us,
                fleet.at_slot(chosen.slot).worker_id,
                "bench",
                round(chosen.service_s * 1e6),
                chosen.uncached_tokens,
                round(prompt_tokens) + 300,
                (path,),
                ends=False,
            )
        ]
        if decode_view is not None:
            partner = decode_view.partner(chosen)
            assert partner is not None
            tokens, worker_id = round(prompt_tokens) + 300, fleet.at_slot(partner.slot).worker_id
            happened.append(Placed(f"d{number:x}", now_us, worker_id, "bench", 0, 0, tokens))
        prefilling.append(request_id)
        if len(prefilling) > INFLIGHT // 2:
            decoding.append(prefilling.popleft())
            if pairing is None:
                happened.append(FirstToken(decoding[-1], now_us + 1))
            else:
                happened.append(Finished(decoding[-1], now_us + 1, now_us + 1))
                decoding[-1] = "d" + decoding[-1][1:]
                happened.append(FirstToken(decoding[-1], now_us + 1))
        if len(decoding) > INFLIGHT // 2:
            happened.append(Finished(decoding.popleft(), now_us + 2))
        for op in happened:
            fleet.apply(op)
        ops += happened
    return ops


def shortened(ops: list[Op]) -> list[Op]:
    """The same requests, whose ends tell of their first tokens."""
    first_us = {op.request_id: op.at_us for op in ops if isinstance(op, FirstToken)}
    return [
        Finished(op.request_id, op.at_us, first_us.get(op.request_id, op.prefilled_us))
        if isinstance(op, Finished)
        else op
        for op in ops
        if not isinstance(op, FirstToken)
    ]


def _folded_us(fleet: FleetState, ops: Sequence[Op]) -> float:
    return mean_us(lambda number: fleet.apply(ops[number]), len(ops)) * len(ops)


def _prompts(requests: int, *, shared: bool) -> list[bytes]:
    prefixes = [chain_bytes(bytes(4), root_hash(number), 1) if shared else b"" for number in range(PREFIXES)]
    own = chain_bytes(bytes(requests), 1, 1)
    return [prefixes[number % PREFIXES] + own[8 * number : 8 * number + 8] for number in range(requests)]


def queue_us(waiting: int, flows: int, rounds: int) -> dict[str, float]:
    """The figures for one queue, by name."""
    queue = Queue(waiting, flows)
    operations = min(OPERATIONS_MAX, max(waiting // 10, 1))
    taken: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for _ in range(rounds):
        for name, us in queue.round_us(operations).items():
            taken[name].append(us)
    return {name: median(figures) for name, figures in taken.items()}


class Queue:
    """Fleet for which some requests wait."""

    def __init__(self, waiting: int, flows: int) -> None:
        self.fleet = FleetState()
        self._flows = [f"{('high', 'normal', 'low')[number % 3]}/{number}" for number in range(flows)]
        self._random = Random(waiting + flows)
        self._numbers = count()
        self._now_us = START_US
        for number in range(QUEUE_WORKERS):
            self.fleet.apply(WorkerPut(f"w{number}:1", 1, "bench", f"http://w{number}:1"))
        # The first query starts an index that is kept up to date from then on.
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
            f"w{random.randrange(QUEUE_WORKERS)}:1" if random.randrange(3) == 0 else "",
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
        slots = [self._random.randrange(QUEUE_WORKERS) for _ in range(operations)]
        keys_us = [now_us + self._random.randrange(2_000_000) for _ in range(operations)]
        flow = self._flows[0]
        lanes = (LANE,)
        figures |= {
            "best": mean_us(lambda n: tickets.best(slots[n], lanes, now_us), operations),
            "own": mean_us(lambda n: tickets.best(slots[n], lanes, now_us, replica=OWN), operations),
            "any": mean_us(lambda _: tickets.best_of_lanes(lanes, now_us), operations),
            "ahead": mean_us(
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

            figures[name] = max(0.0, mean_us(change_and_ask, operations) - figures["put"])
        figures["placed"] = self._applied_us(self._goes(slots * 4))
        return figures

    def _goes(self, slots: list[int]) -> list[Placed]:
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
        return _folded_us(self.fleet, ops) / len(ops)


if __name__ == "__main__":
    main()
