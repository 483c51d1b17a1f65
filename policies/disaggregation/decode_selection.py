"""Selection of the decode worker that ends a request which a prefill worker begins.

**Cost**, in seconds: ``wait + X + output_tokens · TPOT``

    wait   until it has room for the KV; 0 if it has
    X      round trip + max(0, send - overlap·s): the transfer that the prefill of s seconds does not overlap
    TPOT   of a batch with this request in it, by its load (below)

**Load** (theory E4.5: N + sum of L over a constant). A decode step reads the weights once, and for each
request a fixed part (window, state, activations) and the KV of its context. With r the context that costs as
much as that fixed part, n requests with K tokens of context weigh ``(n + K/r) / (1 + m/r)`` requests of mean
context m; `policies.estimates.decodes.DecodeFit` knows the time for that many.

**Room** is judged by `policies.fleet.admission`; a worker with room is chosen as long as there is one. A full
worker gets a part f of its room within f·t_d: decodes end at random, after t_d on average.

**Transfer** is free within a site. Between sites it is the KV bytes that the decode worker lacks, over what
may be reserved of the link, as if no other request used it; `policies.state.links.Links.quote` plans it for
the pair.
"""

from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.disaggregation.candidate_sites import CandidatesBySite
from policies.disaggregation.decode_pools import DecodePool, DecodePools, decode_pools
from policies.disaggregation.ships import Ships
from policies.estimates.costs import Floats
from policies.estimates.decodes import DecodeFit
from policies.estimates.kv_bytes import KvBytes
from policies.fleet.admission import Admission
from policies.fleet.fleet import FleetState
from policies.fleet.pairing import ALONE, Pairing
from policies.pricing.views import Candidates, Chosen, RequestView, Slots
from policies.scoring import DECODE_COST, DECODE_POLICIES, POLICIES, Policy, make_policy
from policies.scoring.placement import cheapest_row
from policies.state.buckets import ANY_BUCKET
from radix import Match

TPOT_BASE_S, TPOT_REQUEST_S = 0.01, 0.0002
"""Seconds of a decode step, and of each request in it, before anything was observed: only order matters."""

SLOPE_MIN = 1e-3
"""Least share of a step's time that a request adds: else all batches are equal where none was large yet."""

CONTEXT_TOKENS = 8192.0
"""r: a guess; 0 would count nothing but tokens, and +inf nothing but requests."""

DECODE_S = 10.0
"""t_d before any decode was observed, a guess: how soon a full worker has room."""

CACHED_MAX = 100
"""Lists of workers (one per model and bucket) that are cached."""


def decode_policy(name: str, options: Mapping[str, float] = MappingProxyType({})) -> Policy | None:
    """Make a decode policy by name; None is `DECODE_COST`, which has no options.

    Raises:
        ValueError: Unknown name or option, or a value out of range; the message lists what is valid.
    """
    if name == DECODE_COST:
        return None
    if name not in POLICIES:
        raise ValueError(f"unknown decode policy {name!r}; known are: {', '.join(DECODE_POLICIES)}")
    return make_policy(name, options)


class DecodePartner(msgspec.Struct, frozen=True, gc=False):
    """The decode worker of a request.

    It waits ``wait_s`` for room only if no worker has any. ``transfer_s`` is X; ``cached_tokens`` of the
    prompt are there and not sent; ``tpot_s`` counts this request in its batch.
    """

    slot: int
    wait_s: float
    transfer_s: float
    cached_tokens: float
    tpot_s: float
    keeps_prefixes: bool


class _Columns(msgspec.Struct, frozen=True, eq=False):
    """One request's view of a pool, one row per decode worker.

    ``cost_s`` is the cost without X; +inf for full workers if another has room.
    """

    has_room: bool
    wait_s: Floats
    tpot_s: Floats
    cost_s: Floats
    cached_tokens: Floats | float


_EMPTY = _Columns(False, np.zeros(0), np.zeros(0), np.zeros(0), 0.0)  # noqa: FBT003


class DecodeSelector:
    """Finds decode workers by a policy (None: `DECODE_COST`) and the fits of decode by worker class."""

    def __init__(
        self,
        fleet: FleetState,
        admission: Admission,
        decode_fit: Callable[[str], DecodeFit],
        policy: Policy | None = None,
    ) -> None:
        self.fleet = fleet
        self.admission = admission
        self.decode_fit = decode_fit
        self.policy = policy
        self._cached: dict[int, DecodePools] = {}
        self._others: dict[int, tuple[Slots, Slots]] = {}

    def decode_view(
        self, pairing: Pairing, request: RequestView, kv: KvBytes, candidates: Candidates
    ) -> "DecodeView":
        """View of the decode workers for a request, with the cached blocks of each candidate."""
        return DecodeView(self, self.pools(pairing), request, kv, candidates)

    def open(self, pairing: Pairing, slots: Slots, now_us: int) -> NDArray[np.bool_]:
        """Mask of the candidates that could begin a request, if only a short one (`DecodeView.open`)."""
        pools = self.pools(pairing)
        return self.opened(pools, slots, [self._has_room(pool.slots, 1.0, now_us) for pool in pools.pools])

    def is_open(self, pairing: Pairing, slot: int, now_us: int, tokens: float = 1.0) -> bool:
        """`open` of one candidate, for a request of this length in tokens."""
        pools = self.pools(pairing)
        number = pools.pool_of.item(slot)
        if number != ALONE:
            return self._has_room(pools.pools[number].slots, tokens, now_us)
        return not (pools.decodes.item(slot) and self.fleet.loads.inflight_requests.item(slot))

    def any_room(self, pairing: Pairing, tokens: float, now_us: int) -> bool:
        """True if some decode worker has room for a request of this length in tokens."""
        return any(self._has_room(pool.slots, tokens, now_us) for pool in self.pools(pairing).pools)

    def by_site(self, pairing: Pairing, slots: Slots) -> CandidatesBySite | None:
        """Candidates by the link that their KV crosses, cached; None if nothing crosses a link."""
        return self.pools(pairing).sites.by_site(slots)

    def opened(self, pools: DecodePools, slots: Slots, rooms: list[bool]) -> NDArray[np.bool_]:
        """`open`, where it is known which pools have room."""
        busy = pools.decodes[slots] * self.fleet.loads.inflight_requests[slots]
        open_: NDArray[np.bool_] = np.array([*rooms, True])[pools.pool_of[slots]] & (busy == 0)
        return open_

    def without_decode(self, pools: DecodePools, slots: Slots) -> Slots:
        """Candidates but decode workers, or all if there are no others; cached by array."""
        cached = self._others.get(id(slots))  # see `policies.fleet.columns`
        if cached is None or cached[0] is not slots:
            if len(self._others) >= CACHED_MAX:
                self._others.clear()
            others = slots[pools.decodes[slots] == 0]
            cached = self._others[id(slots)] = slots, others if 0 < len(others) < len(slots) else slots
        return cached[1]

    def pools(self, pairing: Pairing) -> DecodePools:
        """Pools of a pairing, cached until the fleet changes."""
        cached = self._cached.get(id(pairing))
        if cached is None or cached.pairing is not pairing or cached.revision != self.fleet.revision:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            self._others.clear()
            cached = self._cached[id(pairing)] = decode_pools(self.fleet, pairing)
        return cached

    def _has_room(self, slots: Slots, tokens: float, now_us: int) -> bool:
        return bool(self.admission.lacking(slots, tokens, now_us).min(initial=1.0) == 0.0)


class DecodeView:
    """View of the decode workers for one request."""

    __slots__ = ("_candidates", "_decode_selector", "_full_link", "_pools", "_seen", "kv", "request")

    def __init__(
        self,
        decode_selector: DecodeSelector,
        pools: DecodePools,
        request: RequestView,
        kv: KvBytes,
        candidates: Candidates,
    ) -> None:
        self._decode_selector = decode_selector
        self._pools = pools
        self.request = request
        self.kv = kv
        self._candidates = candidates
        self._seen: dict[int, _Columns] = {}
        self._full_link = ""

    def without_room_on(self, link: str) -> "DecodeView":
        """The same view, where a link has no room for the request now."""
        other = DecodeView(self._decode_selector, self._pools, self.request, self.kv, self._candidates)
        other._seen, other._full_link = self._seen, link
        return other

    # Prices.

    def ships(self) -> Ships:
        """Cost of splitting the request, with the cheapest partner in each pool."""
        pools = self._pools
        room_s, base_s, send_s, overlap_ratio = np.zeros((4, len(pools.pools) + 1))
        for number, pool in enumerate(pools.pools):
            columns = self._columns(number)
            if not len(pool.slots):
                continue
            row = columns.cost_s.argmin()
            if not columns.has_room:
                room_s[number + 1] = columns.wait_s[row]
            if pool.link:
                base_s[number + 1], sent_s = self._transfer(pool, columns.cached_tokens)
                send_s[number + 1] = sent_s[row] if isinstance(sent_s, np.ndarray) else sent_s
                overlap_ratio[number + 1] = pool.hand_over.overlap_ratio
        return Ships(pools.pool_of + 1, room_s, base_s, send_s, overlap_ratio, pools.splits)

    # Questions.

    def splits(self, slot: int) -> bool:
        """True if the candidate in a slot needs a partner."""
        return self._pools.pool_of.item(slot) != ALONE

    def decoders(self, slot: int) -> Slots:
        """Workers that may decode the prefill of the candidate in a slot: its partners, or itself."""
        number = self._pools.pool_of.item(slot)
        return np.array([slot]) if number == ALONE else self._pools.pools[number].slots

    def wait_s(self, slot: int) -> float:
        """Seconds until there is room for it; 0 for a candidate that needs no partner."""
        number = self._pools.pool_of.item(slot)
        if number == ALONE or (columns := self._columns(number)).has_room:
            return 0.0
        return float(columns.wait_s.min(initial=inf))

    def has_room(self, slot: int) -> bool:
        """True if there is room where the KV of the candidate in a slot would be decoded.

        A plain worker's own room is `policies.fleet.admission.Admission.has_room`.
        """
        pools = self._pools
        number = pools.pool_of.item(slot)
        if number != ALONE:
            return self._open(number)
        if not pools.decodes.item(slot):
            return True
        tokens = self.request.prompt_tokens + self.request.output_tokens
        lacking = self._decode_selector.admission.lacking(np.array([slot]), tokens, self._candidates.now_us)
        return lacking.item(0) == 0.0

    def without_decode(self, slots: Slots) -> Slots:
        """Candidates but decode workers; all of them if there are no others."""
        return self._decode_selector.without_decode(self._pools, slots)

    def open(self, slots: Slots) -> Slots:
        """Candidates that may take a request when idle.

        A prefill worker needs a partner with room; a decode worker must decode nothing: else it is not idle,
        although it has nothing to prefill.
        """
        pools = self._pools
        rooms = [self._open(number) for number in range(len(pools.pools))]
        return slots[self._decode_selector.opened(pools, slots, rooms)]

    def partner(self, chosen: Chosen) -> DecodePartner | None:
        """The decode worker for a prefill worker's request; None if the policy considers none."""
        pool, columns, exposed_s, costs = self._priced(chosen)
        row = cheapest_row(self.request.key, pool.worker_hash, costs)
        return None if row is None else _partner(pool, columns, exposed_s, row)

    def partners(self, chosen: Chosen) -> list[tuple[float, DecodePartner]]:
        """All candidates of `partner` with their costs, in its order; +inf is not considered."""
        pool, columns, exposed_s, costs = self._priced(chosen)
        first = cheapest_row(self.request.key, pool.worker_hash, costs)
        rows = sorted(range(len(costs)), key=lambda row: (row != first, costs.item(row)))
        return [(costs.item(row), _partner(pool, columns, exposed_s, row)) for row in rows]

    def _priced(self, chosen: Chosen) -> tuple[DecodePool, _Columns, Floats | float, Floats]:
        """Partners of a prefill worker: pool, columns, and X and cost of each."""
        number = self._pools.pool_of.item(chosen.slot)
        pool, columns = self._pools.pools[number], self._columns(number)
        exposed_s: Floats | float = 0.0
        costs = columns.cost_s
        if pool.link:
            base_s, send_s = self._transfer(pool, columns.cached_tokens)
            overlap_s = pool.hand_over.overlap_ratio * chosen.service_s
            exposed_s = base_s + np.maximum(send_s - overlap_s, 0.0)
            costs = costs + exposed_s
        policy = self._decode_selector.policy
        if policy is not None:
            rows = (costs < inf).nonzero()[0]
            costs = np.full(len(costs), inf)
            costs[rows] = policy.costs(self.request, self._peers(pool, rows))
        return pool, columns, exposed_s, costs

    # Links.

    def by_site(self, slots: Slots) -> CandidatesBySite | None:
        """Candidates by the link that their KV crosses; None if nothing crosses a link."""
        return self._pools.sites.by_site(slots)

    def link(self, slot: int) -> str:
        """Link that the KV of the candidate in a slot crosses; empty for none."""
        return self._pools.sites.link(slot)

    def overlap_ratio(self, slot: int) -> float:
        """Share of the prefill of the candidate in a slot, which splits, during which its KV is sent."""
        return self._pools.pools[self._pools.pool_of.item(slot)].hand_over.overlap_ratio

    def held_tokens(self, slot: int) -> float:
        """Most tokens of the prompt that a partner of the candidate in a slot, which splits, holds."""
        held = self._columns(self._pools.pool_of.item(slot)).cached_tokens
        return float(held.max()) if isinstance(held, np.ndarray) else held

    def full_link(self, slot: int) -> str:
        """The full link, if the KV of the candidate in a slot crosses it; else empty."""
        full = self._full_link
        return full if full and self._pools.sites.link(slot) == full else ""

    # Inside.

    def _open(self, number: int) -> bool:
        link = self._pools.pools[number].link
        return self._columns(number).has_room and (not link or link != self._full_link)

    def _transfer(self, pool: DecodePool, cached_tokens: Floats | float) -> tuple[float, Floats | float]:
        """Round trip, and seconds on the link to decode workers that hold so much."""
        links, prompt_tokens = self._decode_selector.fleet.links, self.request.prompt_tokens
        cap_bytes_per_s = links.cap_bytes_per_s(pool.link, self._candidates.now_us)
        if not cap_bytes_per_s:
            return 0.0, 0.0
        kv_bytes = self.kv.of(prompt_tokens) - self.kv.kv_bytes_per_token * cached_tokens
        return links.rtt_s(pool.link), kv_bytes / cap_bytes_per_s

    def _counted_matches(self, pool: DecodePool) -> list[Match]:
        return self._candidates.matches if pool.keeps.any() else []

    def _peers(self, pool: DecodePool, rows: NDArray[np.intp]) -> Candidates:
        """Rows of a pool as candidates of a placement policy."""
        seen = self._candidates
        slow = self._decode_selector.fleet.columns.gathered(pool.slots, ANY_BUCKET, seen.now_us)
        if len(rows) < len(pool.slots):
            slow = slow.only(rows)
        matches = self._counted_matches(pool)
        return Candidates(slow, matches, seen.loads, seen.prompt_tokens, seen.tokens_per_block, seen.now_us)

    def _columns(self, number: int) -> _Columns:
        columns = self._seen.get(number)
        if columns is None:
            columns = self._seen[number] = self._gathered(self._pools.pools[number])
        return columns

    def _gathered(self, pool: DecodePool) -> _Columns:
        selector, request, seen, slots = self._decode_selector, self.request, self._candidates, pool.slots
        if not len(slots):
            return _EMPTY
        tokens = request.prompt_tokens + request.output_tokens
        lacking = selector.admission.lacking(slots, tokens, seen.now_us)
        requests, held = seen.loads.inflight_requests[slots], seen.loads.inflight_tokens[slots]
        # With this request: (requests + 1 + (held + tokens)/r) / (1 + mean/r), in whole weights of r tokens.
        batch = requests * CONTEXT_TOKENS + held + (CONTEXT_TOKENS + tokens)
        batch *= (requests.sum() + len(slots)) / batch.sum()
        wait_s, tpot_s = lacking, batch
        for name, rows in pool.classes:
            fit = selector.decode_fit(name)
            base_s, slope_s = fit.line_s if fit.known else (TPOT_BASE_S, TPOT_REQUEST_S)
            slope_s = max(slope_s, SLOPE_MIN * base_s)
            part: slice | NDArray[np.intp] = slice(None) if len(rows) == len(slots) else rows
            wait_s[part] *= fit.decode_s or DECODE_S
            tpot_s[part] = base_s + slope_s * batch[part]
        cost_s = request.output_tokens * tpot_s
        has_room = not lacking.all()
        if lacking.any():
            cost_s = np.where(lacking > 0.0, inf, cost_s) if has_room else cost_s + wait_s
        return _Columns(has_room, wait_s, tpot_s, cost_s, self._cached_tokens(pool))

    def _cached_tokens(self, pool: DecodePool) -> Floats | float:
        matches, seen = self._counted_matches(pool), self._candidates
        if not matches:
            return 0.0
        blocks = sum([match.safe[pool.slots] for match in matches])
        held = np.minimum(blocks * seen.tokens_per_block, self.request.prompt_tokens)
        return held if pool.keeps.all() else np.where(pool.keeps, held, 0.0).astype(np.float64)


def _partner(pool: DecodePool, columns: _Columns, exposed_s: Floats | float, row: int) -> DecodePartner:
    return DecodePartner(
        pool.slots.item(row),
        columns.wait_s.item(row),
        _at(exposed_s, row),
        _at(columns.cached_tokens, row),
        columns.tpot_s.item(row),
        pool.keeps.item(row),
    )


def _at(column: Floats | float, row: int) -> float:
    return column.item(row) if isinstance(column, np.ndarray) else column
