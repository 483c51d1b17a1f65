"""Replicas that place requests by their own knowledge, in virtual time.

    arrive ──> ask an owner ──> its match ──> place ──> tell the owners ──> first token ──> next turn
       └── the replica is an owner: no message ──^ └──> tell the others the load

Three kinds of knowledge are compared, with the same requests:

    log       every replica folds everything, as today: one tree, known to all after the log's lag
    shards    each part of the tree has a few owners (`loadtest.scale.shards`); others ask
    alone     every replica knows what it placed itself, and nothing of loads that others cause

A replica takes the least predicted time to first token: backlog as it knows it, plus prefill of what is not
matched. With ``sampled`` it looks at workers that hold more of the prompt than a head that all share, and at
so many others, drawn: if it looked at all, the replicas that decide within one staleness would all take the
same worker. Workers prefill one prompt after the other and keep what fits, least recently used first
(`PrefixTree` with a bound). A prediction that was wrong trims the shard's tree.

*Evictions.* An owner sees a part of what a worker holds, so it cannot know when the worker is full. Replicas
tell with the loads how many new blocks they caused at each worker. A block counts as evicted when as many
came since its last use as the worker holds.

*Death.* The busiest replica dies. For `TTL_S` the others find out one by one, each when an answer does not
come within `TIMEOUT_S`. Then all know, and the next replica in rank becomes an owner and copies the shard
from a living one (the time of copying is not counted). Loads that the dead one reserved count until then.
Its requests are not lost here: later turns go to other replicas.
"""

import heapq
import math
import random
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadtest.scale.shards import Shards, Split
from loadtest.scale.spreading import LOG_S, Spreading, Way
from loadtest.scale.traffic import Conversation, Starts
from loadtest.simulator.identity import Hashes, hashes_of
from radix import BLOCK_TOKENS, HASH_BYTES, PrefixTree, shared_start

PREFILL_TOKENS_PER_S = 15_000.0
PREFILL_S = 0.02
TTL_S = 3.0
TIMEOUT_S = 0.02
FALLBACK_S = 30.0
"""Time after a split in which its parts ask their former shard for prompts that they do not know."""

HOT_WINDOW_S = 5.0
HOT_MIN = 10
STALE_TRIES = 3
MESSAGE_BYTES = 64
"""Bytes of an ask, answer or tell without blocks or holders: ids, times, an anchor; assumed."""

HOLDER_BYTES = 4
DIRECT_MAX = 128
"""Greatest number of replicas that send their loads to each other; more do so in groups."""

Knowledge = Literal["log", "shards", "alone"]
Blocks = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One run: the replicas' knowledge and number, and the duration.

    Attributes:
        owners: Owners of each shard.
        warm_s: Requests that arrive before are not counted.
        dies_s: Death of the busiest replica; None for none.
        sampled: Workers considered beside those that hold the prompt; 0 for all.
    """

    knowledge: Knowledge
    replicas: int
    owners: int = 2
    sampled: int = 0
    workers: int = 64
    capacity_blocks: int = 8000
    warm_s: float = 20.0
    until_s: float = 60.0
    dies_s: float | None = None
    seed: int = 1

    @property
    def way(self) -> Way:
        """Way of spreading loads."""
        ways: dict[Knowledge, Way] = {"log": "log", "alone": "none", "shards": "direct"}
        return "groups" if self.knowledge == "shards" and self.replicas > DIRECT_MAX else ways[self.knowledge]


@dataclass(slots=True)
class Outcome:
    """Counts of a run after its warm-up; ``placed`` has seconds, cached and all blocks of each request."""

    placed: list[tuple[float, int, int]] = field(default_factory=list)
    asks: int = 0
    tells: int = 0
    timeouts: int = 0
    size_bytes: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tree_late_s: list[float] = field(default_factory=list)
    loads_late_s: list[float] = field(default_factory=list)
    handled: Counter[int] = field(default_factory=Counter)

    def hit_ratio(self, from_s: float = 0.0) -> float:
        """Share of prompt blocks that their worker had, of requests placed since."""
        blocks = sum(blocks for at_s, _, blocks in self.placed if at_s >= from_s)
        return sum(cached for at_s, cached, _ in self.placed if at_s >= from_s) / max(blocks, 1)


@dataclass(slots=True)
class _Request:
    conversation: Conversation
    turn: int
    replica: int
    at_s: float
    path: bytes
    shards: list[int] = field(default_factory=list)
    asked: int | None = None


class Simulation:
    """One run. `run` may be called once."""

    def __init__(self, setup: Setup, starts: Starts) -> None:
        self._setup, self._starts = setup, starts
        self._chance = random.Random(f"{setup.seed}/replicas")
        self._spreading = Spreading(setup.way, setup.replicas, setup.seed)
        self._shards = Shards(setup.replicas, min(setup.owners, setup.replicas))
        self._worker_ids: Hashes = np.arange(setup.workers, dtype=np.uint64)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._now_s = 0.0
        self._held = self._bounded()
        self._trees: dict[int, PrefixTree] = {}
        self._free_s = np.zeros(setup.workers)
        self._seen = np.zeros(setup.workers)
        self._unseen: list[dict[int, float]] = [defaultdict(float) for _ in range(setup.replicas)]
        self._new_blocks: list[list[float]] = [[0.0] for _ in range(setup.workers)]
        self._new_at_s: list[list[float]] = [[0.0] for _ in range(setup.workers)]
        self._heads: dict[int, NDArray[np.float64]] = {}
        self._window: Counter[int] = Counter()
        self._latest: dict[int, bytes] = {}
        self._living = list(range(setup.replicas))
        self._victim: int | None = None
        self._suspected: set[int] = set()
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Play until the end and return the counts."""
        setup = self._setup
        self._start(None)
        self._at(setup.warm_s, self._count_anew)
        if setup.knowledge == "shards":
            self._at(HOT_WINDOW_S, self._split_hot)
        if setup.dies_s is not None:
            self._at(setup.dies_s, self._die)
        while self._events and self._events[0][0] < setup.until_s:
            self._now_s, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
        return self.outcome

    def _at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at_s, self._numbers, action, arguments))

    def _bounded(self) -> PrefixTree:
        tree = PrefixTree(block_tokens=BLOCK_TOKENS)
        for worker in range(self._setup.workers):
            tree.set_capacity(worker, self._setup.capacity_blocks)
        return tree

    def _known(self, key: int) -> PrefixTree:
        if key not in self._trees:
            self._trees[key] = PrefixTree() if self._setup.knowledge == "shards" else self._bounded()
        return self._trees[key]

    def _start(self, conversation: Conversation | None) -> None:
        """Start a conversation and see to the next one."""
        at_s, following = next(self._starts, (math.inf, None))
        if following is not None:
            self._at(at_s, self._start, following)
        if conversation is not None:
            self._arrive(conversation, 0)

    def _arrive(self, conversation: Conversation, turn: int) -> None:
        path = conversation.path[: conversation.turns[turn].blocks * HASH_BYTES]
        replica = self._chance.choice(self._living)
        request = _Request(conversation, turn, replica, self._now_s, path)
        if self._setup.knowledge != "shards":
            request.shards = [replica if self._setup.knowledge == "alone" else 0]
            self._decide(request, self._matched(request.shards[0], path))
            return
        request.shards = self._shards.shards_of(path)
        self._window[request.shards[-1]] += 1
        self._latest[request.shards[-1]] = path
        self._ask(request, request.shards[-1], self._with_heads(request))

    def _ask(self, request: _Request, shard: int, known: Blocks) -> None:
        """Ask an owner of a shard, or look at once where the replica is one."""
        owners, waited_s = self._shards.owners_of(shard), 0.0
        owner = request.replica if request.replica in owners else self._chance.choice(owners)
        if owner == self._victim:
            if request.replica not in self._suspected:
                self._suspected.add(request.replica)
                self.outcome.timeouts += 1
                waited_s = TIMEOUT_S
            others = [other for other in owners if other != owner]
            if not others:
                self._at(self._now_s + waited_s, self._decide, request, known)
                return
            owner = self._chance.choice(others)
        self.outcome.handled[owner] += 1
        if owner == request.replica:
            self._at(self._now_s + waited_s, self._answer, request, shard, known, 0.0)
            return
        request.asked = owner
        self.outcome.asks += 1
        self.outcome.size_bytes += MESSAGE_BYTES + len(request.path)
        there_s = self._now_s + waited_s + self._spreading.latency_s()
        self._at(there_s, self._answer, request, shard, known, self._spreading.latency_s())

    def _answer(self, request: _Request, shard: int, known: Blocks, back_s: float) -> None:
        matched = np.maximum(self._matched(shard, request.path), known)
        holders = int((matched > known).sum())
        if back_s:
            self.outcome.size_bytes += MESSAGE_BYTES + HOLDER_BYTES * holders
        parents = request.shards[: request.shards.index(shard)]
        if not holders and parents:
            split = self._shards.splits[parents[-1]]
            if self._now_s - split.at_s < FALLBACK_S:
                self._at(self._now_s + back_s, self._ask, request, parents[-1], known)
                return
        self._at(self._now_s + back_s, self._decide, request, matched)

    def _matched(self, shard: int, path: bytes) -> Blocks:
        column: Blocks = np.zeros(self._setup.workers, dtype=np.int64)
        matched = self._known(shard).match(path).matched
        column[: len(matched)] = matched
        return column

    def _with_heads(self, request: _Request) -> Blocks:
        """Match with split heads on the prompt's way: all replicas know their holders."""
        column: Blocks = np.zeros(self._setup.workers, dtype=np.int64)
        for shard in request.shards[:-1]:
            used_s = self._heads[shard]
            live = [used_s[worker] >= self._oldest_s(worker) for worker in range(self._setup.workers)]
            column[np.array(live) & (used_s > 0)] = self._shards.splits[shard].depth
        return column

    def _oldest_s(self, worker: int) -> float:
        """Last use before which a worker's blocks count as evicted."""
        counts = self._new_blocks[worker]
        beyond = counts[-1] - self._setup.capacity_blocks
        return 0.0 if beyond <= 0 else self._new_at_s[worker][bisect_left(counts, beyond)]

    def _decide(self, request: _Request, matched: Blocks) -> None:
        path, blocks = request.path, len(request.path) // HASH_BYTES
        backlog_s = self._seen.copy()
        for worker, change_s in self._unseen[request.replica].items():
            backlog_s[worker] += change_s
        rank = hashes_of(int.from_bytes(path[-HASH_BYTES:], "little"), self._worker_ids) * 2.0**-64
        backlog_s = np.maximum(backlog_s, 0.0) + 1e-4 * rank
        if 0 < self._setup.sampled < len(rank):
            heads = self._with_heads(request) if len(request.shards) > 1 else 0
            drawn = rank <= np.sort(rank)[self._setup.sampled - 1]
            backlog_s[~drawn & (matched <= heads)] = math.inf
        for _ in range(STALE_TRIES):
            worker = int((backlog_s + (blocks - matched) * (BLOCK_TOKENS / PREFILL_TOKENS_PER_S)).argmin())
            if self._setup.knowledge != "shards" or not self._is_stale(request, worker, int(matched[worker])):
                break
            matched[worker] = 0
        self._place(request, worker, int(matched[worker]))

    def _is_stale(self, request: _Request, worker: int, matched: int) -> bool:
        """True if the worker has evicted the end of a match, by its last use."""
        for shard in reversed(request.shards):
            split = self._shards.splits.get(shard)
            if split is not None and matched <= split.depth and self._heads[shard][worker] > 0:
                return False
            used_us = self._known(shard).used_us(worker, request.path, matched) if matched else 0
            if used_us:
                return used_us / 1e6 < self._oldest_s(worker)
        return False

    def _place(self, request: _Request, worker: int, predicted: int) -> None:
        path, blocks, at_us = request.path, len(request.path) // HASH_BYTES, round(self._now_s * 1e6)
        cached = self._held.match(path).matched_at(worker) if worker < self._held.slots else 0
        self._held.insert(worker, path, at_us, end=False)
        tokens = (blocks - cached) * BLOCK_TOKENS
        ended_s = max(self._now_s, self._free_s[worker]) + PREFILL_S + tokens / PREFILL_TOKENS_PER_S
        self._free_s[worker] = ended_s
        reserved_s = PREFILL_S + (blocks - predicted) * BLOCK_TOKENS / PREFILL_TOKENS_PER_S
        self._new_blocks[worker].append(self._new_blocks[worker][-1] + blocks - cached)
        self._new_at_s[worker].append(self._now_s)
        self._change(request.replica, worker, reserved_s, request.shards[:-1])
        self._tell(request, worker, predicted, cached)
        self._at(ended_s, self._first_token, request, worker, reserved_s)
        self.outcome.placed.append((self._now_s, cached, blocks))
        self.outcome.ttft_s.append(ended_s - request.at_s)

    def _first_token(self, request: _Request, worker: int, reserved_s: float) -> None:
        self._change(request.replica, worker, -reserved_s, [])
        turn = request.conversation.turns[request.turn]
        if request.turn + 1 < len(request.conversation.turns):
            next_s = self._now_s + turn.decode_s + turn.pause_s
            self._at(next_s, self._arrive, request.conversation, request.turn + 1)

    def _change(self, replica: int, worker: int, change_s: float, heads: list[int]) -> None:
        seen_s = self._spreading.seen_s(replica, self._now_s)
        self._unseen[replica][worker] += change_s
        if replica == self._victim:
            assert self._setup.dies_s is not None
            seen_s = max(seen_s, self._setup.dies_s + TTL_S)
        if seen_s < math.inf:
            self.outcome.loads_late_s.append(seen_s - self._now_s)
            self._at(seen_s, self._see, replica, worker, change_s, heads, self._now_s)

    def _see(self, replica: int, worker: int, change_s: float, heads: list[int], made_s: float) -> None:
        self._seen[worker] += change_s
        self._unseen[replica][worker] -= change_s
        if abs(self._unseen[replica][worker]) < 1e-9:
            del self._unseen[replica][worker]
        for shard in heads:
            self._heads[shard][worker] = max(self._heads[shard][worker], made_s)

    def _tell(self, request: _Request, worker: int, predicted: int, cached: int) -> None:
        """Tell those who keep the tree; of a match that was not there, also what is gone."""
        shard, at_us = request.shards[-1], round(self._now_s * 1e6)
        late_s = 0.0
        if self._setup.knowledge == "log":
            late_s = self._spreading.seen_s(request.replica, self._now_s) - self._now_s
        elif self._setup.knowledge == "shards":
            for owner in self._shards.owners_of(shard):
                self.outcome.handled[owner] += 1
                if owner == request.replica:
                    continue
                late_s = self._spreading.latency_s()
                new = 0 if owner == request.asked else len(request.path) - predicted * HASH_BYTES
                self.outcome.tells += 1
                self.outcome.size_bytes += MESSAGE_BYTES + new
        self.outcome.tree_late_s.append(late_s)
        gone = cached + 1 if cached < predicted else 0
        self._at(self._now_s + late_s, self._learn, shard, worker, request.path, at_us, gone)

    def _learn(self, shard: int, worker: int, path: bytes, at_us: int, gone: int) -> None:
        if self._setup.knowledge == "shards" and self._shards.owners_of(shard) == (self._victim,):
            return
        if gone:
            self._known(shard).trim(worker, path[: gone * HASH_BYTES], at_us)
        self._known(shard).insert(worker, path, at_us, end=False)

    def _count_anew(self) -> None:
        self.outcome = Outcome()

    def _split_hot(self) -> None:
        """Split shards that bring more requests than a replica's mean; at most one split a shard."""
        hot = max(HOT_MIN, self._window.total() / self._setup.replicas)
        for shard, requests in self._window.items():
            if requests <= hot or shard in self._shards.splits:
                continue
            path, tree = self._latest[shard], self._known(shard)
            start = shared_start(tree, int.from_bytes(path[:HASH_BYTES], "little"))
            parents = self._shards.shards_of(path)[:-1]
            above = max((self._shards.splits[parent].depth for parent in parents), default=0)
            if start is None or start.branches < 2 or not above < start.blocks < len(path) // HASH_BYTES:
                continue
            used_s = self._heads[shard] = np.zeros(self._setup.workers)
            for worker in range(tree.slots):
                used_s[worker] = tree.used_us(worker, path, start.blocks) / 1e6
            self._shards.splits[shard] = Split(start.blocks, self._now_s + LOG_S)
        self._window.clear()
        self._at(self._now_s + HOT_WINDOW_S, self._split_hot)

    def _die(self) -> None:
        """Kill the replica that handled most, and with it the shards that it alone owned."""
        victim = self._victim = max(self._living, key=lambda replica: self.outcome.handled[replica])
        self._living.remove(victim)
        for shard in [shard for shard in self._trees if self._shards.owners_of(shard) == (victim,)]:
            del self._trees[shard]
        self._at(self._now_s + TTL_S, self._bury, victim)

    def _bury(self, victim: int) -> None:
        self._shards.bury(victim)
        self._victim = None
