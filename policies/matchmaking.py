"""Which decode worker ends a request that a prefill worker begins, and whether one can.

**Cost**, in seconds: ``wait + X + output_tokens · TPOT``

    wait   until it has room for the KV; 0 if it has
    X      base + max(0, send - overlap·s): the transfer that the prefill of s seconds does not overlap
    TPOT   of a batch with this request in it, by the load that it will be (below)

**Load** (theory E4.5: N + sum of L over a constant). A decode step reads the weights once, and for each
request a fixed part (window, state, activations) and the KV of its context. With r the context that costs as
much as that fixed part, n requests with K tokens of context weigh ``(n + K/r) / (1 + m/r)`` requests of mean
context m, and for that many `policies.decodes.DecodeFit` knows the time.

**Room.** `policies.admission` says who has it. A worker with room is chosen as long as there is one. How long
a full one takes to get it: decodes end at random, after t_d on average, so a part f of them within f·t_d.

**One look.** A request looks at the decode workers once, each group of partners as columns, when it is first
asked for (`Look`). What does not change with every request is kept for a list of workers (`Matchmaker`).
"""

from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.admission import Admission
from policies.buckets import ANY_BUCKET
from policies.costs import Floats
from policies.decodes import DecodeFit
from policies.fleet import FleetState
from policies.links import site_after
from policies.pairing import ALONE, HandOver, Pairing, Partners
from policies.placement import cheapest_row
from policies.scoring import POLICIES, Policy, make_policy
from policies.sides import Sides, SiteMap
from policies.views import Candidates, Chosen, RequestView, Ships, Slots

DECODE_COST = "decode_cost"
"""The default policy, above. The policies of prefill workers may choose decode workers, too."""

DECODE_POLICIES = (DECODE_COST, *POLICIES)
"""Names of policies that choose decode workers."""

TPOT_BASE_S, TPOT_REQUEST_S = 0.01, 0.0002
"""Seconds of a decode step, and what a request adds, before anything was observed: only order matters."""

SLOPE_MIN = 1e-3
"""A request adds at least this share of the time of a step: else all batches would be alike where none was
large yet."""

CONTEXT_TOKENS = 8192.0
"""r: a guess; 0 would count nothing but tokens, and +inf nothing but requests."""

DECODE_S = 10.0
"""t_d before any decode was observed, a guess: tells how soon a full worker has room."""

KEPT_MAX = 100
"""Lists of workers (one per model and bucket) of which anything is kept."""


def decode_policy(name: str, options: Mapping[str, float] = MappingProxyType({})) -> Policy | None:
    """Make a decode policy by name; None is `DECODE_COST`.

    Args:
        name: One of `DECODE_POLICIES`.
        options: Its options; what is missing keeps its default. `DECODE_COST` has none.

    Raises:
        ValueError: Unknown name or option, or a value out of range; the message lists what is valid.
    """
    if name == DECODE_COST:
        return None
    if name not in POLICIES:
        raise ValueError(f"unknown decode policy {name!r}; known are: {', '.join(DECODE_POLICIES)}")
    return make_policy(name, options)


class Partner(msgspec.Struct, frozen=True, gc=False):
    """The decode worker of a request.

    Attributes:
        slot: Its row in the fleet state.
        has_room: Whether it has room now; if not, nobody has.
        wait_s: How long until it has.
        transfer_s: X.
        cached_tokens: How much of the prompt it holds already, and is not sent.
        tpot_s: Seconds per output token with this request in its batch.
        keeps_prefixes: Whether it will hold the prompt for later requests.
    """

    slot: int
    has_room: bool
    wait_s: float
    transfer_s: float
    cached_tokens: float
    tpot_s: float
    keeps_prefixes: bool


class _Pool(msgspec.Struct, frozen=True, eq=False):
    """Decode workers that take over from the same prefill workers: of one protocol, length bucket and site.

    Attributes:
        hand_over: The protocol.
        link: What the KV crosses on its way there; empty if they stand in the site of the prefill workers.
        slots: Of each worker.
        worker_hash: Of each worker id.
        classes: Worker classes, and the rows of each.
    """

    hand_over: HandOver
    link: str
    slots: Slots
    worker_hash: NDArray[np.uint64]
    classes: tuple[tuple[str, NDArray[np.intp]], ...]


class _Halves(msgspec.Struct, frozen=True, eq=False):
    """What does not change with every request, of one `Pairing`.

    Attributes:
        pairing: The pairing.
        revision: Of the fleet.
        pool_of: By slot: number of the pool; `ALONE` for who needs none.
        pools: All of them.
        splits: By slot, see `Ships`.
        decodes: By slot, see `Ships`.
        sites: Whose KV crosses which link.
    """

    pairing: Pairing
    revision: int
    pool_of: NDArray[np.intp]
    pools: tuple[_Pool, ...]
    splits: Floats
    decodes: Floats
    sites: SiteMap


class _Columns(msgspec.Struct, frozen=True, eq=False):
    """One request's view of a pool, one row per decode worker.

    Attributes:
        room: Whether it has room for the request.
        wait_s: How long until it has.
        tpot_s: Seconds per output token with it.
        cost_s: All of the cost but X.
    """

    room: NDArray[np.bool_]
    wait_s: Floats
    tpot_s: Floats
    cost_s: Floats


_NOBODY = _Columns(np.zeros(0, dtype=np.bool_), np.zeros(0), np.zeros(0), np.zeros(0))


class Matchmaker:
    """Finds decode workers.

    Args:
        fleet: What is known of the workers.
        admission: Who has room.
        decode_fit: What is learned of the decode of a worker class.
        policy: How decode workers are priced; None: `DECODE_COST`.
    """

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
        self._kept: dict[int, _Halves] = {}

    def look(self, pairing: Pairing, request: RequestView, now_us: int) -> "Look":
        """Look at the decode workers for a request."""
        return Look(self, self._halves_of(pairing), request, now_us)

    def open(self, pairing: Pairing, slots: Slots, now_us: int) -> NDArray[np.bool_]:
        """Which of some candidates could begin a request, if only a short one (`Look.open`)."""
        halves = self._halves_of(pairing)
        rooms = [self._has_room(pool.slots, 1.0, now_us) for pool in halves.pools]
        return self.opened(halves, slots, rooms)

    def is_open(self, pairing: Pairing, slot: int, now_us: int) -> bool:
        """The same of one candidate."""
        halves = self._halves_of(pairing)
        pool = halves.pool_of.item(slot)
        if pool != ALONE:
            return self._has_room(halves.pools[pool].slots, 1.0, now_us)
        return not (halves.decodes.item(slot) and self.fleet.loads.inflight_requests.item(slot))

    def any_room(self, pairing: Pairing, tokens: float, now_us: int) -> bool:
        """Whether some decode worker has room for a request of so many tokens."""
        return any(self._has_room(pool.slots, tokens, now_us) for pool in self._halves_of(pairing).pools)

    def opened(self, halves: _Halves, slots: Slots, rooms: list[bool]) -> NDArray[np.bool_]:
        """The same, where it is known which pools have room."""
        busy = halves.decodes[slots] * self.fleet.loads.inflight_requests[slots]
        open_: NDArray[np.bool_] = np.array([*rooms, True])[halves.pool_of[slots]] & (busy == 0)
        return open_

    def _has_room(self, slots: Slots, tokens: float, now_us: int) -> bool:
        return bool(self.admission.lacking(slots, tokens, now_us).min(initial=1.0) == 0.0)

    def _halves_of(self, pairing: Pairing) -> _Halves:
        kept = self._kept.get(id(pairing))
        if kept is None or kept.pairing is not pairing or kept.revision != self.fleet.revision:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = self._kept[id(pairing)] = self._halves(pairing)
        return kept

    def _halves(self, pairing: Pairing) -> _Halves:
        fleet, rows = self.fleet, len(self.fleet.loads.prefill_us)
        pool_of = np.full(rows, ALONE, dtype=np.intp)
        splits, decodes = np.zeros(rows), np.zeros(rows)
        sites = SiteMap(fleet.links, rows)
        numbers: dict[tuple[int, int, str], int] = {}
        pools: list[_Pool] = []
        for slot, group in zip(pairing.slots.tolist(), pairing.groups.tolist(), strict=True):
            if group == ALONE:
                decodes[slot] = fleet.at_slot(slot).role == "decode"
                continue
            splits[slot] = 1.0
            site = fleet.at_slot(slot).site
            key = (group, fleet.buckets.of(slot), site)
            if key not in numbers:
                numbers[key] = len(pools)
                pools.append(self._reached(pairing.partners[group], slot, sites))
            pool_of[slot] = numbers[key]
            pool = pools[numbers[key]]
            sites.put(slot, site, pool.link if len(pool.slots) else None)
        return _Halves(pairing, fleet.revision, pool_of, tuple(pools), splits, decodes, sites)

    def _reached(self, partners: Partners, slot: int, sites: SiteMap) -> _Pool:
        """Those of some decode workers that the prefill worker in a slot may hand over to; maybe nobody."""
        fleet = self.fleet
        slots = fleet.buckets.together_with(partners.slots, slot)
        stand = np.array([fleet.at_slot(each).site for each in slots.tolist()])
        link = sites.way(fleet.at_slot(slot).site, sorted(set(stand.tolist())))
        if link is None:
            slots = slots[:0]
        elif fleet.links.rules:
            slots = slots[stand == (site_after(link) if link else fleet.at_slot(slot).site)]
        return self._pool(partners.hand_over, link or "", slots)

    def _pool(self, hand_over: HandOver, link: str, slots: Slots) -> _Pool:
        classes: dict[str, list[int]] = {}
        for row, slot in enumerate(slots.tolist()):
            classes.setdefault(self.fleet.at_slot(slot).worker_class, []).append(row)
        return _Pool(
            hand_over,
            link,
            slots,
            self.fleet.columns.hashes(slots),
            tuple((name, np.array(rows, dtype=np.intp)) for name, rows in classes.items()),
        )


class Look:
    """What one request finds.

    Args:
        matchmaker: Who looks.
        halves: At whom.
        request: For whom.
        now_us: Log time.
    """

    __slots__ = ("_full", "_halves", "_matchmaker", "_now_us", "_request", "_seen")

    def __init__(self, matchmaker: Matchmaker, halves: _Halves, request: RequestView, now_us: int) -> None:
        self._matchmaker = matchmaker
        self._halves = halves
        self._request = request
        self._now_us = now_us
        self._seen: dict[int, _Columns] = {}
        self._full = ""

    def ships(self, kv_bytes: float = 0.0) -> Ships:
        """What it costs to split the request.

        Args:
            kv_bytes: What all of its KV weighs; 0 if nobody knows.
        """
        halves, links = self._halves, self._matchmaker.fleet.links
        routes = len(halves.pools) + 1
        room_s, base_s, send_s, overlap_ratio = np.zeros((4, routes))
        for number, pool in enumerate(halves.pools, 1):
            columns = self._columns(number - 1)
            room_s[number] = 0.0 if columns.room.any() else columns.wait_s.min(initial=inf)
            cap_bytes_per_s = links.cap_bytes_per_s(pool.link, self._now_us) if pool.link else 0.0
            if cap_bytes_per_s:
                base_s[number] = links.rtt_s(pool.link)
                send_s[number] = kv_bytes / cap_bytes_per_s
                overlap_ratio[number] = pool.hand_over.overlap_ratio
        return Ships(halves.pool_of + 1, room_s, base_s, send_s, overlap_ratio, halves.splits, halves.decodes)

    def sides(self, slots: Slots) -> Sides | None:
        """Some candidates by what their KV crosses; None if nothing crosses a link."""
        return self._halves.sites.sides(slots)

    def link(self, slot: int) -> str:
        """The link that the KV of the candidate in a slot crosses; empty for none."""
        return self._halves.sites.link(slot)

    def overlap_ratio(self, slot: int) -> float:
        """Share of the prefill of the candidate in a slot, who splits, during which its KV is on its way."""
        return self._halves.pools[self._halves.pool_of.item(slot)].hand_over.overlap_ratio

    def held_tokens(self, slot: int, candidates: Candidates) -> float:
        """The most of the prompt that one of its partners holds already, who splits."""
        pool = self._halves.pools[self._halves.pool_of.item(slot)]
        return candidates.most_safe_tokens(pool.slots) if pool.hand_over.keeps_prefixes else 0.0

    def wait_for(self, link: str) -> None:
        """A link has no room for the request now: who would send its KV over it has none."""
        self._full = link

    def waits_for_link(self, slot: int) -> bool:
        """Whether the candidate in a slot would send its KV over that link."""
        return bool(self._full) and self._halves.sites.link(slot) == self._full

    def splits(self, slot: int) -> bool:
        """Whether the candidate in a slot needs a partner."""
        return self._halves.pool_of.item(slot) != ALONE

    def has_room(self, slot: int) -> bool:
        """Whether there is room for the KV where the candidate in a slot would have it decoded.

        Of a plain worker that is not asked here (`policies.admission.Admission.has_room`).
        """
        halves = self._halves
        pool = halves.pool_of.item(slot)
        if pool != ALONE:
            return self._open(pool)
        if not halves.decodes.item(slot):
            return True
        tokens = self._request.prompt_tokens + self._request.output_tokens
        lacking = self._matchmaker.admission.lacking(np.array([slot]), tokens, self._now_us)
        return lacking.item(0) == 0.0

    def without_decode(self, slots: Slots) -> Slots:
        """Of some candidates, those that are no decode workers; all of them if there are no others."""
        others = slots[self._halves.decodes[slots] == 0]
        return others if len(others) else slots

    def open(self, slots: Slots) -> Slots:
        """Of some candidates, those whom idle time is no reason to leave alone.

        A partner has room for what a prefill worker begins, and a decode worker decodes nothing: while it
        does, it is not idle, although it has nothing to prefill.
        """
        halves = self._halves
        rooms = [self._open(number) for number in range(len(halves.pools))]
        return slots[self._matchmaker.opened(halves, slots, rooms)]

    def partner(self, chosen: Chosen, candidates: Candidates) -> Partner | None:
        """The decode worker that ends what a prefill worker begins.

        Args:
            chosen: The prefill worker.
            candidates: As it was chosen from.

        Returns:
            None if the policy considers nobody.
        """
        number = self._halves.pool_of.item(chosen.slot)
        pool, columns = self._halves.pools[number], self._columns(number)
        costs = columns.cost_s
        policy = self._matchmaker.policy
        if policy is not None:
            slow, _ = self._matchmaker.fleet.columns.gathered(pool.slots, ANY_BUCKET, self._now_us)
            costs = policy.costs(
                self._request,
                Candidates(
                    slow,
                    [],
                    candidates.matches if pool.hand_over.keeps_prefixes else [],
                    candidates.loads,
                    candidates.prompt_tokens,
                    candidates.tokens_per_block,
                    self._now_us,
                ),
            )
        if columns.room.any():
            costs = np.where(columns.room, costs, inf)
        row = cheapest_row(self._request.key, pool.worker_hash, costs)
        if row is None:
            return None
        return Partner(
            pool.slots.item(row),
            columns.room.item(row),
            columns.wait_s.item(row),
            0.0,
            0.0,
            columns.tpot_s.item(row),
            pool.hand_over.keeps_prefixes,
        )

    def _open(self, number: int) -> bool:
        """Whether there is room in a pool, and on the way to it."""
        link = self._halves.pools[number].link
        return bool(self._columns(number).room.any()) and (not link or link != self._full)

    def _columns(self, number: int) -> _Columns:
        """A pool as columns."""
        columns = self._seen.get(number)
        if columns is None:
            columns = self._seen[number] = self._look_at(self._halves.pools[number])
        return columns

    def _look_at(self, pool: _Pool) -> _Columns:
        matchmaker, request, slots = self._matchmaker, self._request, pool.slots
        if not len(slots):
            return _NOBODY
        tokens = request.prompt_tokens + request.output_tokens
        lacking = matchmaker.admission.lacking(slots, tokens, self._now_us)
        loads = matchmaker.fleet.loads
        requests, held = loads.inflight_requests[slots] + 1.0, loads.inflight_tokens[slots] + tokens
        mean_tokens = held.sum() / requests.sum()
        batch = (requests + held / CONTEXT_TOKENS) / (1.0 + mean_tokens / CONTEXT_TOKENS)
        wait_s, tpot_s = lacking, batch
        for name, rows in pool.classes:
            fit = matchmaker.decode_fit(name)
            everybody = len(rows) == len(slots)
            base_s, slope_s = (
                (fit.tpot_s(0.0), fit.tpot_s(1.0) - fit.tpot_s(0.0))
                if fit.known
                else (TPOT_BASE_S, TPOT_REQUEST_S)
            )
            slope_s = max(slope_s, SLOPE_MIN * base_s)
            if everybody:
                wait_s, tpot_s = (fit.decode_s or DECODE_S) * lacking, base_s + slope_s * batch
            else:
                wait_s[rows] *= fit.decode_s or DECODE_S
                tpot_s[rows] = base_s + slope_s * batch[rows]
        return _Columns(lacking == 0.0, wait_s, tpot_s, wait_s + request.output_tokens * tpot_s)
