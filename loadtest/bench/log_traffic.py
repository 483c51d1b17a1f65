"""Operations that one replica of a busy fleet writes into the log: seeded, open loop, without an end.

Sessions are born at random (Poisson), take some turns and end. Each turn is

    Placed (the whole conversation so far) --prefill--> FirstToken --decode--> Finished (--> Trim)

and then a pause. The shared state tells the first and the last; load vectors tell the rest. A prompt repeats
the one before and adds a few blocks; sessions of one application share their first blocks. A session stays
with its worker while that exists. Some answers show an eviction, some requests are abandoned: both end in a
`Trim`. Workers are replaced under the addresses of earlier ones. Lengths are in blocks, times in seconds and
drawn: nothing is served.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from policies import Finished, FirstToken, FleetState, Op, Placed, Trim, WorkerGone, WorkerPut
from radix import BLOCK_TOKENS, HASH_BYTES

APPLICATIONS = 16
APPLICATION_BLOCKS = 16
FIRST_BLOCKS = 8
"""Mean blocks that a session's first message adds; a later turn adds `TURN_BLOCKS`."""
TURN_BLOCKS = 3
PREFILL_TOKENS_PER_S = 15_000.0
PREFILL_S = 0.02
DECODE_S = 1.0
THINK_S = 2.0
OUTPUT_TOKENS = 256
TRIMMED_SHARE = 0.02
"""Answers that correct the tree. The demo's workload, with caches that are far too small, has 1 %."""

OPS_PER_TURN = 3 + TRIMMED_SHARE


@dataclass(frozen=True, slots=True)
class TrafficRules:
    """Traffic of one replica.

    Attributes:
        ops_per_s: On average, like ``sessions_per_s``.
        workers: In the fleet at a time.
        replaced_every_s: Time between replacements of a worker.
        capacity_blocks: Cache per worker, blocks.
        leads: True for the replica that adds and replaces the workers.
    """

    replica: str
    seed: int
    ops_per_s: float
    sessions_per_s: float
    workers: int
    replaced_every_s: float
    capacity_blocks: int
    leads: bool

    @property
    def turns(self) -> float:
        """Mean turns of a session."""
        return self.ops_per_s / self.sessions_per_s / OPS_PER_TURN

    def worker_names(self) -> list[str]:
        """Addresses that workers have, one after the other: a quarter more of them than workers."""
        return [f"10.0.{number // 250}.{number % 250}:8000" for number in range(self.workers * 5 // 4)]


@dataclass(slots=True)
class _Session:
    path: bytes
    worker: str


class Traffic:
    """Operations in the order in which they come due, on the workers that ``fleet`` knows."""

    def __init__(self, rules: TrafficRules, fleet: FleetState) -> None:
        assert rules.turns >= 1, "fewer operations than the sessions' first turns alone make"
        self._rules = rules
        self._fleet = fleet
        self._chance = random.Random(f"{rules.seed}/{rules.replica}")
        shared = random.Random(rules.seed)
        self._applications = [shared.randbytes(HASH_BYTES * APPLICATION_BLOCKS) for _ in range(APPLICATIONS)]
        self._due: list[tuple[float, int, Callable[[float, int], list[Op]]]] = []
        self._numbers = 0
        self._replacements = 0

    @property
    def due_s(self) -> float:
        """Time of the next operation."""
        return self._due[0][0]

    def next_ops(self, now_us: int) -> list[Op]:
        """Return the operations of the next event, at log time ``now_us``, and schedule what follows."""
        due_s, _, event = heapq.heappop(self._due)
        return event(due_s, now_us)

    def start(self, now_s: float) -> None:
        """Begin: sessions are born from now on, in the caller's seconds."""
        self._at(now_s + self._chance.expovariate(self._rules.sessions_per_s), self._born)
        if self._rules.leads:
            self._at(now_s + self._rules.replaced_every_s, self._replace)

    def first_ops(self, now_us: int) -> list[Op]:
        """The fleet at the start, if this replica leads."""
        if not self._rules.leads:
            return []
        return [self._put(name, now_us) for name in self._rules.worker_names()[: self._rules.workers]]

    def _at(self, due_s: float, event: Callable[[float, int], list[Op]]) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (due_s, self._numbers, event))

    def _born(self, due_s: float, now_us: int) -> list[Op]:
        self._at(due_s + self._chance.expovariate(self._rules.sessions_per_s), self._born)
        session = _Session(self._chance.choice(self._applications), "")
        return self._turn(session, FIRST_BLOCKS, due_s, now_us)

    def _turn(self, session: _Session, blocks_mean: int, due_s: float, now_us: int) -> list[Op]:
        chance = self._chance
        if self._fleet.worker(session.worker) is None:
            session.worker = chance.choice(self._fleet.workers()).worker_id
        blocks = 1 + int(chance.expovariate(1 / (blocks_mean - 0.5)))
        session.path += chance.randbytes(HASH_BYTES * blocks)
        uncached_tokens = blocks * BLOCK_TOKENS
        service_s = PREFILL_S + uncached_tokens / PREFILL_TOKENS_PER_S
        self._numbers += 1
        request_id = f"{self._rules.replica}-{self._numbers:x}"
        first_s = due_s + service_s * chance.uniform(0.5, 3.0)
        self._at(first_s, partial(self._first_token, session, request_id, now_us))
        return [
            Placed(
                request_id,
                now_us,
                session.worker,
                self._rules.replica,
                round(service_s * 1e6),
                uncached_tokens,
                len(session.path) // HASH_BYTES * BLOCK_TOKENS + OUTPUT_TOKENS,
                (session.path,),
                ends=False,
            )
        ]

    def _first_token(
        self, session: _Session, request_id: str, placed_us: int, due_s: float, now_us: int
    ) -> list[Op]:
        finished_s = due_s + self._chance.expovariate(1 / DECODE_S)
        self._at(finished_s, partial(self._finished, session, request_id, placed_us))
        return [FirstToken(request_id, now_us)]

    def _finished(
        self, session: _Session, request_id: str, placed_us: int, due_s: float, now_us: int
    ) -> list[Op]:
        chance = self._chance
        ops: list[Op] = [Finished(request_id, now_us)]
        if chance.random() < TRIMMED_SHARE:
            # An engine evicts the least recently used blocks: the ends of sessions, not the common prefix.
            held = chance.randint(APPLICATION_BLOCKS + 1, len(session.path) // HASH_BYTES)
            ops.append(Trim(session.worker, session.path[: HASH_BYTES * held], placed_us))
        if chance.random() * self._rules.turns < self._rules.turns - 1:
            think_s = chance.expovariate(1 / THINK_S)
            self._at(due_s + think_s, partial(self._turn, session, TURN_BLOCKS))
        return ops

    def _replace(self, due_s: float, now_us: int) -> list[Op]:
        """Take the oldest worker out and put one in under the address that was free for longest."""
        self._at(due_s + self._rules.replaced_every_s, self._replace)
        names, number = self._rules.worker_names(), self._replacements
        self._replacements += 1
        return [
            WorkerGone(names[number % len(names)], now_us, self._rules.replica),
            self._put(names[(number + self._rules.workers) % len(names)], now_us),
        ]

    def _put(self, name: str, now_us: int) -> WorkerPut:
        capacity_tokens = self._rules.capacity_blocks * BLOCK_TOKENS
        return WorkerPut(name, now_us, self._rules.replica, f"http://{name}", capacity_tokens=capacity_tokens)
