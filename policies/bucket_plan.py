"""Automatic length buckets: where to cut, and how many workers each bucket gets.

From what came lately by length (`policies.length_histogram`) the mean time to first token of a division is
predicted, and the division is changed one step at a time towards a better one:

    bucket with n workers, work w_i and context m_i in row i (worker-seconds per second, tokens)

    drag      D = 1 + (sum(w)/n)·(E[(1 + max(m, m')/c0)/(1 + m/c0)] - 1)
    load      rho = sum(w)·D/n
    wait      (1 + C²)/2 · rho^(sqrt(2(n + 1)) - 1)/(n·(1 - rho)) · s·D
    overload  what exceeds `LOAD_MAX` waits in proportion to it
    cost      sum of arrivals·(wait + s·D) / arrivals, over all buckets

The expectation is over two prompts of the bucket beside each other, drawn by their work: both pay for the
longer. s is the mean prefill and C² its variation; the wait is that of an M/G/n queue (Sakasegawa, Ann. Inst.
Statist. Math. 29, 1977, with the factor of Allen and Cunneen).

A change is one bound moved by a quarter, half or whole octave, or one worker (a twentieth of them, if there
are many) given to the next bucket. Requests spill between buckets at run time (`policies.buckets`), so a
division need not be exact; but each change costs caches and a drain, so it must be worth it (hysteresis):

    no change within `BucketRules.dwell_s` of the last
    none that is not predicted to save `BucketRules.gain_ratio_min` of the cost; twice that to undo a late one
    none on fewer than `BucketRules.requests_min` requests

Two things wait for nothing: a new worker gets a bucket, and a bucket that has lost its last worker gets one.
The first plan goes as many steps as it likes, since nobody drains for it. Whoever moves is the one that holds
the least cache among those of its bucket.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, sqrt
from types import MappingProxyType

import numpy as np

from policies.buckets import ANY_BUCKET, LengthBuckets
from policies.costs import Floats, ServiceModel
from policies.length_histogram import ROW_TOKENS_MAX, ROWS
from policies.ops import BucketPlan
from radix import AMOUNT_MAX

LOAD_MAX = 0.95
"""Load up to which the formula of the wait is believed."""

OVERLOAD_WAIT_S = 60.0
"""Wait per unit of load beyond that: a queue that grows for a minute; by then others take what spills."""

SHARE_MOVED = 0.05
"""Of the workers, how many change their bucket at a time; at least one."""

STEPS_FIRST_MAX = 200
"""Changes of the first plan; each takes about a millisecond to find."""


@dataclass(frozen=True, slots=True)
class BucketRules:
    """Hysteresis.

    Attributes:
        gain_ratio_min: Share of the predicted mean time to first token that a change must save.
        dwell_s: Least time between two changes.
        reversal_s: A change that undoes one of this time must save twice as much.
        requests_min: Requests in the window below which nothing is changed.
    """

    gain_ratio_min: float = 0.1
    dwell_s: float = 120.0
    reversal_s: float = 3600.0
    requests_min: int = 200


@dataclass(frozen=True, slots=True)
class BucketMember:
    """A worker that may be given a bucket.

    Attributes:
        worker_id: Who.
        bucket: Number of its bucket; `ANY_BUCKET` if it is new.
        pinned: Whether a label says so.
        held_tokens: What it is believed to hold: lost to its bucket when it moves.
    """

    worker_id: str
    bucket: int
    pinned: bool = False
    held_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class BucketDivision:
    """Buckets and how many workers each has.

    Attributes:
        tokens_max: Upper bounds.
        workers: How many belong to each.
    """

    tokens_max: tuple[int, ...]
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BucketVerdict:
    """What was found, whether something is changed or not.

    Attributes:
        reason: In a sentence.
        plan: What to say in the log; None: nothing changes.
        cost_s: Predicted mean time to first token as it is.
        best: The best change; None if there is none.
        best_cost_s: Its cost.
        needed_ratio: Share of the cost that it must save.
        wait_s: How long nothing may change yet.
    """

    reason: str
    plan: BucketPlan | None = None
    cost_s: float = 0.0
    best: BucketDivision | None = None
    best_cost_s: float = 0.0
    needed_ratio: float = 0.0
    wait_s: float = 0.0

    @property
    def gain_ratio(self) -> float:
        """Share of the cost that the best change would save."""
        return 1.0 - self.best_cost_s / self.cost_s if self.best is not None and self.cost_s else 0.0


@dataclass(slots=True)
class LengthDemand:
    """What came lately, ready to be divided.

    Args:
        requests: Per row of the histogram.
        service_s: Predicted prefill, per row.
        window_s: Over how long.
        prices: Of the workers; c0 says how much contexts drag each other.
    """

    requests: Floats
    service_s: Floats
    window_s: float
    prices: ServiceModel
    _pairs: Floats = field(init=False)
    _bucket_costs: dict[tuple[int, int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Price every pair of rows."""
        tokens = np.array(ROW_TOKENS_MAX, dtype=np.float64)
        each = 1.0 + tokens / self.prices.c0_tokens
        drag = np.maximum(each[:, None], each[None, :]) / each[:, None]
        self._pairs = drag * np.outer(self.service_s, self.service_s)

    @property
    def total(self) -> float:
        """Requests in all."""
        return float(self.requests.sum())

    def rows(self) -> Iterator[tuple[int, int, float]]:
        """Rows of the histogram in which anything came: upper bound, requests, predicted seconds."""
        table = zip(ROW_TOKENS_MAX, self.requests.tolist(), self.service_s.tolist(), strict=True)
        for tokens_max, requests, service_s in table:
            if requests:
                yield tokens_max, int(requests), service_s

    @property
    def load(self) -> float:
        """Predicted worker-seconds per second of all."""
        return float(self.service_s.sum()) / self.window_s

    def within(self, tokens_max: Sequence[int], number: int) -> tuple[int, float]:
        """Requests of one of the buckets with these bounds, and their load (as `load`)."""
        low, high = _rows(tokens_max)[number]
        return int(self.requests[low:high].sum()), float(self.service_s[low:high].sum()) / self.window_s

    def cost_s(self, division: BucketDivision) -> float:
        """Predicted mean time to first token, seconds; 0 if nothing came."""
        costs = [
            self._bucket_cost(low, high, workers)
            for (low, high), workers in zip(_rows(division.tokens_max), division.workers, strict=True)
        ]
        return sum(costs) / self.total if self.total else 0.0

    def _bucket_cost(self, low: int, high: int, workers: int) -> float:
        """Seconds to the first token of all requests of some rows together."""
        key = low, high, workers
        known = self._bucket_costs.get(key)
        if known is None:
            known = self._bucket_costs[key] = self._priced(low, high, workers)
        return known

    def _priced(self, low: int, high: int, workers: int) -> float:
        requests, service_s = self.requests[low:high], self.service_s[low:high]
        count, work_s = float(requests.sum()), float(service_s.sum())
        if not count or not work_s:
            return 0.0
        if not workers:
            return inf
        drag = float(self._pairs[low:high, low:high].sum()) / work_s**2
        dragged = 1.0 + min(work_s / self.window_s / workers, 1.0) * (drag - 1.0)
        load = work_s * dragged / self.window_s / workers
        mean_s = work_s * dragged / count
        squares = float((service_s**2 / np.maximum(requests, 1.0)).sum()) * dragged**2 / count
        variation = max(squares / mean_s**2 - 1.0, 0.0)
        believed = min(load, LOAD_MAX)
        wait_s = (1.0 + variation) / 2 * mean_s / (workers * (1.0 - believed))
        wait_s *= believed ** (sqrt(2.0 * (workers + 1)) - 1.0)
        return float(count * (wait_s + mean_s + max(load - LOAD_MAX, 0.0) * OVERLOAD_WAIT_S))


def plan_buckets(
    demand: LengthDemand,
    buckets: LengthBuckets,
    members: Sequence[BucketMember],
    history: Sequence[BucketPlan],
    *,
    replica: str,
    now_us: int,
    absent: Mapping[str, int] = MappingProxyType({}),
    rules: BucketRules = BucketRules(),
) -> BucketVerdict:
    """Say what should change now, if anything.

    Args:
        demand: What came lately.
        buckets: Bounds now.
        members: The workers that are there and well.
        history: The newest plans, the newest last.
        replica: Who asks.
        now_us: Log time.
        absent: Buckets of workers that exist and are not well: they keep them, for when they return.
        rules: Hysteresis.
    """
    count = len(buckets)
    if len(members) < count:
        return BucketVerdict(f"{len(members)} workers cannot be divided into {count} buckets")
    said = _Saying(members, absent, replica, now_us)
    counts = Counter(member.bucket for member in members)
    now = BucketDivision(buckets.tokens_max, tuple(counts[number] for number in range(count)))
    if demand.total < rules.requests_min:
        # Nobody belongs anywhere before something is known, so that nothing is worse than without buckets.
        return BucketVerdict(f"{demand.total:.0f} requests in the window are too few to judge by")
    if not history:
        found = _first(demand, now, members)
        return said.verdict(found, "the first division", demand.cost_s(found), 0.0)
    cost_s = demand.cost_s(now)
    if counts[ANY_BUCKET] or not all(now.workers):
        found = _filled(demand, now, counts[ANY_BUCKET])
        reason = "new workers" if counts[ANY_BUCKET] else "a bucket without workers"
        return said.verdict(found, reason, demand.cost_s(found), cost_s if all(now.workers) else 0.0)
    floors = Counter(member.bucket for member in members if member.pinned)
    best = min(_changes(now, floors), key=demand.cost_s, default=None)
    if best is None:
        return BucketVerdict("nothing can be changed", cost_s=cost_s)
    best_cost_s = demand.cost_s(best)
    needed = rules.gain_ratio_min * (1 + _undoes(now, best, history, now_us, rules))
    wait_s = max(0.0, rules.dwell_s - (now_us - history[-1].at_us) / 1e6)
    if best_cost_s > (1.0 - needed) * cost_s or wait_s:
        reason = (
            f"the last change is {rules.dwell_s - wait_s:.0f} s old" if wait_s else "no change saves enough"
        )
        return BucketVerdict(reason, None, cost_s, best, best_cost_s, needed, wait_s)
    return said.verdict(best, _words(now, best), best_cost_s, cost_s, needed)


@dataclass(frozen=True, slots=True)
class _Saying:
    """Puts a division into an operation."""

    members: Sequence[BucketMember]
    absent: Mapping[str, int]
    replica: str
    now_us: int

    def verdict(
        self, found: BucketDivision, why: str, cost_s: float, before_s: float, needed: float = 0.0
    ) -> BucketVerdict:
        """The verdict that changes to a division."""
        assigned = _assigned(found, self.members)
        was = {member.worker_id: member.bucket for member in self.members}
        moved = {
            worker: (was[worker], number)
            for worker, number in assigned.items()
            if was[worker] not in (number, ANY_BUCKET)
        }
        loads = f"{cost_s:.2f} s to the first token"
        reason = f"{why}: {loads} instead of {before_s:.2f}" if before_s else f"{why}: {loads}"
        workers = {**self.absent, **assigned}
        costs_s = min(cost_s, AMOUNT_MAX), min(before_s, AMOUNT_MAX)
        op = BucketPlan(self.now_us, self.replica, found.tokens_max, workers, moved, reason, *costs_s)
        return BucketVerdict(reason, op, before_s, found, cost_s, needed)


def _first(demand: LengthDemand, now: BucketDivision, members: Sequence[BucketMember]) -> BucketDivision:
    """Divide everybody from scratch, beginning with the bounds of the settings."""
    pinned = Counter(member.bucket for member in members if member.pinned)
    start = BucketDivision(now.tokens_max, tuple(pinned[number] for number in range(len(now.workers))))
    found = _filled(demand, start, len(members) - sum(start.workers))
    for _ in range(STEPS_FIRST_MAX):
        best = min(_changes(found, pinned), key=demand.cost_s, default=found)
        if demand.cost_s(best) >= demand.cost_s(found):
            break
        found = best
    return found


def _filled(demand: LengthDemand, division: BucketDivision, more: int) -> BucketDivision:
    """Give so many workers more to where they save most, beginning with buckets that have none."""
    workers = list(division.workers)
    for _ in range(workers.count(0)):
        empty = workers.index(0)
        if more:
            more -= 1
        else:
            workers[max(range(len(workers)), key=workers.__getitem__)] -= 1
        workers[empty] = 1
    step = max(1, more // 100)
    while more:
        given = min(step, more)
        options = [
            BucketDivision(
                division.tokens_max, (*workers[:number], workers[number] + given, *workers[number + 1 :])
            )
            for number in range(len(workers))
        ]
        workers = list(min(options, key=demand.cost_s).workers)
        more -= given
    return BucketDivision(division.tokens_max, tuple(workers))


def _changes(now: BucketDivision, floors: Mapping[int, int]) -> Iterator[BucketDivision]:
    """All divisions one step away; no bucket has fewer workers than its labels say, nor none."""
    edges = [0, *_ends(now.tokens_max)]
    for number in range(1, len(edges) - 1):
        for step in (-4, -2, -1, 1, 2, 4):
            row = edges[number] + step
            if edges[number - 1] < row < edges[number + 1]:
                bounds = list(now.tokens_max)
                bounds[number - 1] = ROW_TOKENS_MAX[row - 1]
                yield BucketDivision(tuple(bounds), now.workers)
    given = max(1, round(SHARE_MOVED * sum(now.workers)))
    for number in range(len(now.workers) - 1):
        for giver, taker in ((number, number + 1), (number + 1, number)):
            if now.workers[giver] - given >= max(1, floors.get(giver, 0)):
                workers = list(now.workers)
                workers[giver] -= given
                workers[taker] += given
                yield BucketDivision(now.tokens_max, tuple(workers))


def _ends(tokens_max: Sequence[int]) -> list[int]:
    """How many rows of the histogram end within each bound."""
    ends: list[int] = np.searchsorted(ROW_TOKENS_MAX, tokens_max, side="right").tolist()
    return ends


def _rows(tokens_max: Sequence[int]) -> list[tuple[int, int]]:
    """Rows of the histogram from and to (exclusive) of each bucket; the last one has what is longer, too."""
    return list(pairwise((0, *_ends(tokens_max)[:-1], ROWS)))


def _assigned(found: BucketDivision, members: Sequence[BucketMember]) -> dict[str, int]:
    """Give every worker a bucket, so that as few as possible change theirs."""
    wanted = list(found.workers)
    assigned: dict[str, int] = {}
    # Labels first, then those that are already there: who holds the most stays.
    staying = sorted(members, key=lambda one: (not one.pinned, -one.held_tokens, one.worker_id))
    for one in staying:
        if one.bucket != ANY_BUCKET and wanted[one.bucket] > 0:
            assigned[one.worker_id] = one.bucket
            wanted[one.bucket] -= 1
    for one in staying:
        if one.worker_id not in assigned:
            left = [number for number, count in enumerate(wanted) if count > 0]
            number = min(left, key=lambda number: abs(number - one.bucket))
            assigned[one.worker_id] = number
            wanted[number] -= 1
    return assigned


def _undoes(
    now: BucketDivision, best: BucketDivision, history: Sequence[BucketPlan], now_us: int, rules: BucketRules
) -> bool:
    """Whether a change is the reverse of one that was made lately."""
    flows = _flows(now.workers, best.workers)
    for before, after in pairwise(history):
        if now_us - after.at_us > rules.reversal_s * 1e6:
            continue
        for number, (old, new) in enumerate(zip(before.tokens_max, after.tokens_max, strict=False)):
            if (new - old) * (best.tokens_max[number] - now.tokens_max[number]) < 0:
                return True
        if any((taker, giver) in flows for giver, taker in after.moved.values()):
            return True
    return False


def _flows(before: Sequence[int], after: Sequence[int]) -> set[tuple[int, int]]:
    """From which bucket to which workers go, where one gives and one takes."""
    givers = [number for number, (old, new) in enumerate(zip(before, after, strict=True)) if new < old]
    takers = [number for number, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
    return {(giver, taker) for giver in givers for taker in takers}


def _words(now: BucketDivision, best: BucketDivision) -> str:
    """A change in words."""
    for old, new in zip(now.tokens_max, best.tokens_max, strict=True):
        if old != new:
            return f"bound {old} moved to {new} tokens"
    names = LengthBuckets(now.tokens_max).names
    ((giver, taker),) = _flows(now.workers, best.workers)
    return f"{now.workers[giver] - best.workers[giver]} from {names[giver]} to {names[taker]}"
