"""Spreading of loads to the other replicas: times, number of messages and bytes.

    log       all through one stream: a delay that does not depend on the number of replicas
    direct    each replica sends the loads that it causes to every other, `VECTORS_PER_S` times a second
    groups    to its group's aggregator, which adds them up, tells the other aggregators and its members:

        member --tick--> aggregator --tick--> aggregators --tick--> members        groups of sqrt(replicas)

A vector holds the workers whose loads changed since the last one, in absolute figures: the next one mends a
lost one. A group has two aggregators; the second hears everything and sends nothing while the first lives.
"""

import math
import random
from typing import Literal, NamedTuple

VECTORS_PER_S = 20.0
HEAD_BYTES = 24
WORKER_BYTES = 22
"""A slot of two bytes and five figures of four: prefill time, prefills, tokens, in flight, first in line."""

CHANGES_PER_REQUEST = 3
LATENCY_S = 0.0003
LATENCY_SIGMA = 0.6
"""One way between two replicas: lognormal, median 0.3 ms and P99 1.2 ms; assumed, one datacentre."""

LOG_S = 0.006
LOG_SIGMA = 0.5
"""Lag of the log: its median as measured (`router.shared.reader`), P99 19 ms assumed."""

Way = Literal["log", "direct", "groups", "none"]


class Spreading:
    """Times at which others see a change of one replica's loads."""

    def __init__(self, way: Way, replicas: int, seed: int = 1) -> None:
        self.way = way
        self._chance = random.Random(seed)
        self._replicas = replicas
        self._phases = [self._chance.random() / VECTORS_PER_S for _ in range(replicas)]
        self._group = math.ceil(math.sqrt(replicas))

    def seen_s(self, replica: int, made_s: float) -> float:
        """Time at which the others know of a change that a replica made; infinite if never."""
        if self.way == "none":
            return math.inf
        if self.way == "log":
            return made_s + LOG_S * self._chance.lognormvariate(0.0, LOG_SIGMA)
        at_s = self._tick_s(replica, made_s) + self.latency_s()
        if self.way == "groups":
            at_s = self._tick_s(replica // self._group * self._group, at_s) + self.latency_s()
            other = self._chance.randrange(self._replicas) // self._group * self._group
            at_s = self._tick_s(other, at_s) + self.latency_s()
        return at_s

    def latency_s(self) -> float:
        """Draw a way between two replicas, seconds."""
        return LATENCY_S * self._chance.lognormvariate(0.0, LATENCY_SIGMA)

    def _tick_s(self, replica: int, from_s: float) -> float:
        phase_s = self._phases[replica]
        return phase_s + math.ceil((from_s - phase_s) * VECTORS_PER_S) / VECTORS_PER_S


class Vectors(NamedTuple):
    """Vectors per second: of the busiest replica, received and sent, and of all replicas.

    ``applied`` has those that the busiest one receives and adds up, with the workers in each.
    """

    messages: float
    size_bytes: float
    all_messages: float
    applied: list[tuple[float, int]]


def vectors(way: Way, replicas: int, workers: int, requests_per_s: float) -> Vectors:
    """Work out the vectors of replicas with ``requests_per_s`` each, when every tick has news."""
    one = min(workers, round(CHANGES_PER_REQUEST * requests_per_s / VECTORS_PER_S))
    if way == "direct":
        heard = (replicas - 1) * VECTORS_PER_S
        return Vectors(2 * heard, 2 * heard * _size(one), replicas * heard, [(heard, one)])
    assert way == "groups"
    group = math.ceil(math.sqrt(replicas))
    groups = math.ceil(replicas / group)
    some, every = min(workers, one * group), min(workers, one * replicas)
    members, others = (group - 1) * VECTORS_PER_S, (groups - 1) * VECTORS_PER_S
    # Both aggregators of a group hear its members and the other groups; one of them speaks.
    size_bytes = members * (_size(one) + _size(every)) + 3 * others * _size(some)
    all_messages = groups * (3 * members + 2 * others)
    return Vectors(2 * members + 3 * others, size_bytes, all_messages, [(members, one), (others, some)])


def _size(workers: int) -> int:
    return HEAD_BYTES + WORKER_BYTES * workers
