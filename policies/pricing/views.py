"""Views for a decision: frozen, of one request and of the workers that may take it.

Workers come as *columns*, one numpy array per property with one row per candidate, so that scoring 1,000
workers costs a dozen vector operations and no Python loop. Columns are gathered on demand. A few workers cost
less one by one (`policies.pricing.timing`).

Views are msgspec structs: a frozen dataclass, made for each request, sets its fields one by one in Python
(0.15 us each, a third of a small placement).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.pricing.plain import PlainRows
from policies.pricing.timing import COLUMNS, NUMBERS, Prices, Timing, assemble
from policies.state.loads import Loads
from policies.state.queue_view import QueueView
from radix import Match

_slot_of = attrgetter("slot")

FEW_MAX = 16
"""Most candidates that are priced one by one; with more, columns are cheaper (``python -m
loadtest.bench.decision --workers 12 16 24``)."""

Slots = NDArray[np.intp]

NO_LOADS: Mapping[int, float] = MappingProxyType({})


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """One request, as policies see it.

    ``key`` is the 64-bit hash of the whole prompt (or session), which breaks ties by rendezvous hashing,
    ``prefix_key`` that of the prompt's start. ``sequence`` counts the requests that this replica placed
    before. ``home`` is the slot of the worker that served the request's session last; -1 for none.
    """

    key: int
    prefix_key: int
    prompt_tokens: float
    output_tokens: float
    sequence: int
    home: int = -1


class _Rows(msgspec.Struct, frozen=True, gc=False):
    def only(self, rows: NDArray[np.intp]) -> Self:
        return type(self)(*[column[rows] for column in msgspec.structs.astuple(self)])

    def at(self, row: int) -> tuple[Any, ...]:
        return tuple([column.item(row) for column in msgspec.structs.astuple(self)])


class Pools(_Rows, frozen=True, gc=False):
    """Caches that candidates share with other workers, one row per candidate (`fleet.cache_pools`).

    ``slots`` are rows of the fleet state, the worker's own without a pool; ``base_s`` passes before a fetch
    brings anything, and fewer than ``tokens_min`` are not fetched: +inf without a pool. ``patience`` is the
    wait of engines for a fetch relative to ``timeout`` (`policies.estimates.fetch_times`): 0, 1 or +inf.
    """

    slots: Slots
    base_s: Floats
    token_s: Floats
    tokens_min: Floats
    patience: Floats


class Spills(_Rows, frozen=True, gc=False):
    """Distance of candidates from the length bucket of the requests, one row each (`policies.state.buckets`).

    ``steps`` is the worker's bucket less the requests', 0 at home and where any length is taken; ``token_s``
    is that of `policies.state.buckets.spill_s`, 0 at home.
    """

    steps: NDArray[np.intp]
    token_s: Floats
    middle_tokens: Floats


class Evictions(_Rows, frozen=True, gc=False):
    """Price of pushing tokens out of the candidates' caches, one row per candidate (`fleet.columns`).

    ``token_s`` is the expected time to compute a pushed out token again, 0 for an unknown cache; before
    that ``free_tokens`` fit.
    """

    token_s: Floats
    free_tokens: Floats


class Beside(_Rows, frozen=True, gc=False):
    """The other data-parallel ranks of the candidates' engines, one row per candidate.

    ``slots`` are rows of the fleet state, as many as the largest engine needs; ``exists`` is 1, or 0 for a
    place in the matrix that no rank takes.
    """

    slots: Slots
    exists: Floats


class Displacing(msgspec.Struct, frozen=True, gc=False):
    """Price of pushing out others' blocks for a tenant beyond its share, by slot (`policies.fleet.quotas`).

    ``ratio`` is relative to computing a pushed out token again; before that ``free_tokens`` fit.
    """

    ratio: Floats
    free_tokens: Floats


class Copying(NamedTuple):
    """Saving of one more copy of the start that a prompt shares with others (`policies.fleet.hot_prefixes`).

    A worker with a shorter match than ``tokens`` would get the copy, and save later requests ``saved_s``.
    """

    tokens: float
    saved_s: float


class SlowColumns(msgspec.Struct, frozen=True, gc=False):
    """Columns of the candidates that do not change with every request; all have the same length n >= 1.

    Attributes:
        slots: Row of the worker in `policies.fleet.fleet.FleetState` (intp).
        index: ``slots``, as a slice if they are contiguous: selects them from a column of all slots.
        worker_hash: 64-bit hash of the worker id (uint64), for rendezvous and consistent hashing.
        a_s: Service model, as are b_s and c0_tokens (`policies.estimates.costs`).
        congestion_per_s: kappa, per second (`policies.fleet.columns`).
        delayed_ratio: Chance that work on one of them delays a later request while no request waits.
        beside: None if none of them is a data-parallel rank.
        device_from_us: Log time before which a worker's last uses are in its host memory; 0 if all is on
            its device, None if that is so of all workers.
        few: Prices of each, if they are at most `FEW_MAX`; else empty.
        plain: The rows of a few workers, if no option concerns any of them.
    """

    slots: Slots
    index: slice | Slots
    worker_hash: NDArray[np.uint64]
    held_tokens: Floats
    a_s: Floats
    b_s: Floats
    c0_tokens: Floats
    congestion_per_s: Floats
    pools: Pools | None = None
    spills: Spills | None = None
    evictions: Evictions | None = None
    delayed_ratio: float = 1.0
    beside: Beside | None = None
    device_from_us: Floats | None = None
    few: Sequence[Prices[float]] = ()
    plain: PlainRows | None = None

    def only(self, rows: NDArray[np.intp]) -> "SlowColumns":
        """Rows of some candidates."""
        slots, pools, spills, evictions = self.slots[rows], self.pools, self.spills, self.evictions
        beside = self.beside
        device_from_us = self.device_from_us
        return SlowColumns(
            slots,
            slots,
            self.worker_hash[rows],
            self.held_tokens[rows],
            self.a_s[rows],
            self.b_s[rows],
            self.c0_tokens[rows],
            self.congestion_per_s[rows],
            None if pools is None else pools.only(rows),
            None if spills is None else spills.only(rows),
            None if evictions is None else evictions.only(rows),
            self.delayed_ratio,
            None if beside is None else beside.only(rows),
            None if device_from_us is None else device_from_us[rows],
        )

    def displacing(self, price: Displacing) -> "SlowColumns":
        """The same for a tenant that pays for its evictions."""
        token_s = price.ratio[self.index] * self.b_s
        if self.evictions is not None:
            token_s = np.maximum(token_s, self.evictions.token_s)
        evictions = Evictions(token_s, price.free_tokens[self.index])
        paying = msgspec.structs.replace(self, evictions=evictions, plain=None)
        few = [paying.prices_at(row) for row in range(len(self.few))]
        return msgspec.structs.replace(paying, few=few)

    @property
    def prices(self) -> Prices[Floats]:
        """Prices of the prefill on each of them."""
        pools, spills, evictions = self.pools, self.spills, self.evictions
        return Prices(
            self.index,
            self.a_s,
            self.b_s,
            self.c0_tokens,
            self.congestion_per_s,
            None if pools is None else msgspec.structs.astuple(pools),
            None if spills is None else (spills.token_s, spills.middle_tokens),
            None if evictions is None else msgspec.structs.astuple(evictions),
            self.beside,
        )

    def prices_at(self, row: int) -> Prices[float]:
        """Prices of the prefill on one of them."""
        pools, spills, evictions, beside = self.pools, self.spills, self.evictions, self.beside
        return Prices(
            self.slots.item(row),
            self.a_s.item(row),
            self.b_s.item(row),
            self.c0_tokens.item(row),
            self.congestion_per_s.item(row),
            None if pools is None else pools.at(row),
            None if spills is None or not spills.steps.item(row) else spills.at(row)[1:],
            None if evictions is None or not evictions.token_s.item(row) else evictions.at(row),
            None if beside is None else beside.slots[row][beside.exists[row] > 0.0].tolist() or None,
        )


class Splitting(Protocol):
    """Cost of splitting a request between two workers, or not (`policies.disaggregation.ships`)."""

    def columns(self, loads: Loads, index: slice | Slots, prefill_s: Floats) -> tuple[Floats, Floats, Floats]:
        """W, X and the loss of others, of the candidates of an index."""

    def at(self, loads: Loads, slot: int, prefill_s: float) -> tuple[float, float, float]:
        """W, X and the loss of others, of one candidate."""


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """Workers that may take a request, n >= 1: a live view, to be read before the next operation.

    Attributes:
        matches: Match of each prompt; prompts of which no worker holds anything are left out.
        prompt_tokens: No match is longer.
        tokens_per_block: Estimated tokens in a block of these prompts.
        ships: None if no request would be split.
        queue: None if requests do not wait in the gateway.
        loads_s: By slot, seconds of loading the prompt's blocks that only a candidate's host memory has.
        owner: Owner of the blocks that the request brings; 0 if they are not counted.
        displacing: None for a tenant within its share of KV space.
        copying: None unless copies are counted, and the prompt has a start that others have.
        windowed: True if the safe part of a match may not be all of it.
    """

    slow: SlowColumns
    matches: list[Match]
    loads: Loads
    prompt_tokens: float
    tokens_per_block: float
    now_us: int
    queue: QueueView | None = None
    windowed: bool = True
    ships: Splitting | None = None
    loads_s: Mapping[int, float] = NO_LOADS
    owner: int = 0
    displacing: Displacing | None = None
    copying: Copying | None = None

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.slow.slots)

    @property
    def slots(self) -> Slots:
        """Row of each in the fleet state."""
        return self.slow.slots

    @property
    def worker_hash(self) -> NDArray[np.uint64]:
        """64-bit hash of each worker id."""
        return self.slow.worker_hash

    @property
    def matched_tokens(self) -> Floats:
        """Prefix match, 0 <= matched <= prompt."""
        return self._tokens([match.matched for match in self.matches], self.slow.index)

    @property
    def safe_tokens(self) -> Floats:
        """Window-safe prefix match, 0 <= safe <= matched, for scores."""
        return self._tokens([match.safe for match in self.matches], self.slow.index)

    @property
    def backlog_s(self) -> Floats:
        """V: seconds of prefill reserved by all replicas and not yet done."""
        return self.loads.backlog_s(self.slow.index, self.now_us)

    @property
    def prefill_tokens(self) -> Floats:
        """Uncached tokens reserved and not yet prefilled."""
        return self.loads.prefill_tokens[self.slow.index]

    @property
    def inflight_requests(self) -> Floats:
        """Requests in flight, of all replicas."""
        return self.loads.inflight_requests[self.slow.index]

    @property
    def inflight_tokens(self) -> Floats:
        """Prompt plus expected output tokens of the requests in flight."""
        return self.loads.inflight_tokens[self.slow.index]

    @property
    def held_tokens(self) -> Floats:
        """Tokens that the tree believes each holds."""
        return self.slow.held_tokens

    def times(self, prompt_tokens: float) -> Timing[Floats]:
        """Time of a request on each (`policies.pricing.timing`)."""
        slow, own, queue, ships = self.slow, self.safe_tokens, self.queue, self.ships
        pools, pooled = slow.pools, None
        if pools is not None and self.matches:
            pooled = self._tokens([match.safe for match in self.matches], pools.slots)
        return assemble(
            COLUMNS,
            slow.prices,
            prompt_tokens,
            (own, pooled),
            self.backlog_s,
            self._loaded_s() if self.loads_s else None,
            queue,
            None
            if queue is None or queue.tickets is None
            else lambda _, work_s: queue.columns(slow.slots, work_s),
            None if ships is None else partial(ships.columns, self.loads),
            self._shared,
            self.copying,
        )

    def _shared(self, beside: Beside, until_s: Floats) -> Floats:
        """Seconds that the engine of each computes for other ranks while it computes ``until_s`` for one."""
        others_s = self.loads.backlog_s(beside.slots, self.now_us) * beside.exists
        shared_s: Floats = np.minimum(others_s, until_s[:, None]).sum(axis=1)
        return shared_s

    def _shared_at(self, beside: Sequence[int], until_s: float) -> float:
        """The same of one candidate."""
        at_s, now_us = self.loads.backlog_at_s, self.now_us
        return sum([min(at_s(slot, now_us), until_s) for slot in beside])

    def timings(self, prompt_tokens: float, prices: Sequence[Prices[float]]) -> list[Timing[float]]:
        """Time of a request on a few workers, one by one."""
        queue, ships, shared, copying = self.queue, self.ships, self._shared_at, self.copying
        tokens_per_block, tokens_max, loads_s = self.tokens_per_block, self.prompt_tokens, self.loads_s
        waiting = None if queue is None or queue.tickets is None else queue.at
        shipped = None if ships is None else partial(ships.at, self.loads)
        slots: list[int] = list(map(_slot_of, prices))
        backlogs_s, blocks = self.loads.backlogs_s(slots, self.now_us), self._safe_blocks(slots)
        pooled_blocks = blocks
        if self.slow.pools is not None:
            pooled_blocks = self._safe_blocks(
                [worker.fetching[0] if worker.fetching else worker.slot for worker in prices]
            )
        timings: list[Timing[float]] = []
        for worker, backlog_s, safe_blocks, pool_blocks in zip(
            prices, backlogs_s, blocks, pooled_blocks, strict=True
        ):
            cached = safe_blocks * tokens_per_block
            pooled = pool_blocks * tokens_per_block if pool_blocks > safe_blocks else None
            timings.append(
                assemble(
                    NUMBERS,
                    worker,
                    prompt_tokens,
                    (
                        cached if cached < tokens_max else tokens_max,
                        pooled if pooled is None or pooled < tokens_max else tokens_max,
                    ),
                    backlog_s,
                    loads_s.get(worker.slot) if loads_s else None,
                    queue,
                    waiting,
                    shipped,
                    shared,
                    copying,
                )
            )
        return timings

    def worth_leaving_for(self, prompt_tokens: float) -> "Candidates":
        """Candidates at home, and others that would answer sooner, at their price, than all at home.

        So policies that do not count in seconds spill only where seconds say so.
        """
        spills = self.slow.spills
        if spills is None:
            return self
        times = self.times(prompt_tokens)
        ttft_s, home = times.ready_s + times.work_s, spills.steps == 0
        worth = home | (ttft_s < ttft_s[home].min(initial=np.inf))
        if worth.all():
            return self
        return msgspec.structs.replace(self, slow=self.slow.only(worth.nonzero()[0]))

    def _safe_blocks(self, slots: list[int]) -> list[int]:
        """Window-safe match of each in blocks, over all prompts."""
        blocks = [0] * len(slots)
        for match in self.matches:
            match.add_safe(blocks, slots)
        return blocks

    def _loaded_s(self) -> Floats:
        """Seconds of loading from host memory, of each candidate."""
        loaded_s = np.zeros(len(self))
        for slot, load_s in self.loads_s.items():
            loaded_s[self.slots == slot] = load_s
        return loaded_s

    @property
    def deepest_tokens(self) -> float:
        """Longest match of any worker, even of one that is no candidate; needs ``matches``."""
        blocks = 0
        for match in self.matches:
            blocks += match.parts[-1][1]
        return min(blocks * self.tokens_per_block, self.prompt_tokens)

    def matched_tokens_at(self, slot: int) -> float:
        """Prefix match of one worker."""
        blocks = 0
        for match in self.matches:
            blocks += match.matched_at(slot)
        return min(blocks * self.tokens_per_block, self.prompt_tokens)

    def _tokens(self, columns: list[NDArray[np.int32]], rows: slice | Slots) -> Floats:
        if not columns:
            return np.zeros(len(self))
        blocks = columns[0][rows]
        for column in columns[1:]:
            blocks = blocks + column[rows]
        tokens: Floats = np.minimum(blocks * self.tokens_per_block, self.prompt_tokens)
        return tokens


class Chosen(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The outcome: this worker, and its prediction.

    Attributes:
        slot: Row of the worker in the fleet state.
        safe_tokens: Window-safe match: the tokens that the engine is predicted to reuse.
        estimated_ttft_s: Backlog plus fetch plus prefill plus transfer.
        reason: Stable word for metrics and logs (see `policies.scoring.placement`).
        fetched_tokens: The part of the safe tokens that comes from its pool.
        queue_s: Seconds until the prefill can begin: backlog, fetch, and room for the KV elsewhere.
        transfer_s: Exposed transfer.
        stall_s: Seconds that the requests decoding there would lose.
        others_s: Seconds that waiting and later requests would lose, if the policy prices that.
        tpot_s: Seconds per output token, of a decode worker.
    """

    slot: int
    matched_tokens: int
    safe_tokens: int
    uncached_tokens: int
    service_s: float
    estimated_ttft_s: float
    reason: str
    fetched_tokens: int = 0
    queue_s: float = 0.0
    transfer_s: float = 0.0
    stall_s: float = 0.0
    tpot_s: float = 0.0
    others_s: float = 0.0


class Shed(msgspec.Struct, frozen=True, gc=False):
    """The outcome: no worker may take it now. ``reason`` is a stable word for metrics, logs and errors."""

    reason: str
    retry_after_s: float
    detail: str = ""
