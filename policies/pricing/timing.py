"""Time that a request needs on a worker: one assembly, for one worker and for columns of many.

    B  = V + A + R              A   work of the waiting requests that go first (`policies.state.queue_view`)
    V' = max(B - H + F, W)      R   work of other data-parallel ranks in the same steps
    x  = max(s, L) + X + P + D  F   the fetch from the cache that it shares, if that is sooner
                                H   the part of B that hides F, at most F: a fetch begins when the request
                                    comes to its engine, so only the backlog that engines are given
                                W   until a decode worker has room
                                X   exposed transfer
                                P   price of leaving the length bucket (`policies.state.buckets`)
                                D   loss of the requests decoding there (`policies.disaggregation.ships`)
                                L   loading from host memory, beside the prefill s(u, c) of u uncached tokens
                                    behind c cached ones (`policies.estimates.host_memory`)

**Ranks.** The ranks of an engine step together, and each fills its share of a step. So while one of them does
its V + A + s seconds of work, the engine also does as much of every other one that has so much: R = sum of
min(V_j, V + A + s), in seconds of the whole engine.

A few workers cost less one by one, as plain numbers: a vector operation on four rows takes 0.3 to 1 us, and a
decision a dozen of them. So the formulas are written once, for `Number`, over an `Arithmetic`.
"""

from collections.abc import Callable
from math import inf
from typing import Any, Generic, NamedTuple

import msgspec
import numpy as np

from policies.estimates.costs import Floats, Number, service_s
from policies.estimates.fetch_times import WAIT_BASE_S, WAIT_S_MAX, WAIT_TOKEN_S
from policies.state.buckets import spill_s
from policies.state.queue_view import QueueView


class Arithmetic(NamedTuple, Generic[Number]):
    """Operations that differ for numbers and columns; ``pick(condition, one, other)`` chooses."""

    least: Callable[[Any, Any], Number]
    greatest: Callable[[Any, Any], Number]
    pick: Callable[[Any, Any, Any], Number]


def _pick(condition: bool, one: float, other: float) -> float:
    return one if condition else other


NUMBERS: Arithmetic[float] = Arithmetic(min, max, _pick)
COLUMNS: Arithmetic[Floats] = Arithmetic(np.minimum, np.maximum, np.where)


class Prices(NamedTuple, Generic[Number]):
    """Prices of the prefill on a worker, or on each of many.

    Attributes:
        slot: Row in the fleet state; of many, an array or a slice.
        a_s: Service model, as are b_s and c0_tokens (`policies.estimates.costs`).
        fetching: Slot of its pool, base_s, token_s, tokens_min, patience; None without a pool.
        visiting: For a request of another length bucket: token_s, middle_tokens; None at home.
        evicting: For a cache that may be full: seconds lost with each token that is pushed out, and tokens
            that still fit (`policies.fleet.columns`); None while there is room.
        beside: Other ranks of the engine, for ``shared`` of `assemble`; None if it is no rank.
    """

    slot: Any
    a_s: Number
    b_s: Number
    c0_tokens: Number
    congestion_per_s: Number
    fetching: tuple[Any, Number, Number, Number, Number] | None = None
    visiting: tuple[Number, Number] | None = None
    evicting: tuple[Number, Number] | None = None
    beside: Any = None


class Timing(msgspec.Struct, Generic[Number], frozen=True, gc=False):
    """Time of a request on one worker, or on each of many (``slot``); all in seconds but tokens.

    Attributes:
        safe_tokens: Window-safe match, with the tokens it fetches.
        fetched_tokens: The part of them that comes from its pool.
        service_s: max(s, L): prefill of the rest.
        ready_s: V'.
        work_s: x.
        transfer_s: X.
        stall_s: D.
        spill_s: P, which is no time of this request.
        settled_s: The part of V' during which later requests stay behind this one.
        behind: Waiting requests that it would overtake.
        evict_s: Expected price of computing the blocks again that it pushes out of the cache.
        fetch_s: F, if it fetches; the part of V' that runs beside the backlog.
        saved_s: Expected saving of later requests by a copy of a start (`policies.fleet.hot_prefixes`).
    """

    slot: Any
    safe_tokens: Number
    service_s: Number
    ready_s: Number
    work_s: Number
    congestion_per_s: Number | float = 0.0
    settled_s: Number | float = 0.0
    fetched_tokens: Number | float = 0.0
    transfer_s: Number | float = 0.0
    stall_s: Number | float = 0.0
    spill_s: Number | float = 0.0
    behind: Number | float = 0.0
    evict_s: Number | float = 0.0
    fetch_s: Number | float = 0.0
    saved_s: Number | float = 0.0


TOKEN_S_MIN = 1e-12
"""Seconds a fetched token takes at least, in a division: a column has 0 for a worker without a pool."""

Shipped = Callable[[Any, Number], tuple[Number, Number, Number]]
"""W, X and D of a request with so long a prefill on a worker (`policies.disaggregation.ships`)."""

Waiting = Callable[[Any, Number], tuple[Number, Number]]
"""``ahead_s`` and ``behind`` of a request with so much work on a worker (`QueueView.at`, or `.columns`)."""


def _fetched(
    math: Arithmetic[Number],
    prices: Prices[Number],
    prompt_tokens: float,
    match: tuple[Number, Number],
    times_s: tuple[Number, Number],
    queue: QueueView | None,
) -> tuple[Number, Number, Number, Number]:
    """Return V', s, the tokens fetched and F, if a request fetches from its pool where that is sooner.

    ``match`` is without and with the pool, ``times_s`` are V' and s without the fetch. If the engine stops a
    fetch, only the part that came counts (`policies.estimates.fetch_times`).
    """
    assert prices.fetching is not None
    (cached, pooled), (ready_s, prefill_s) = match, times_s
    _, base_s, token_s, tokens_min, patience = prices.fetching
    more = pooled - cached
    wait_s = patience * math.least(WAIT_S_MAX, WAIT_BASE_S + WAIT_TOKEN_S * more)
    if queue is None:
        hidden_s = ready_s
        wait_s = math.pick(patience > 0.0, wait_s, inf)
    else:  # The fetch begins when the request leaves the gateway, and goes on while it waits in the engine.
        hidden_s = math.least(ready_s, queue.committed_s)
        wait_s = math.greatest(wait_s, hidden_s)
    fetch_s = math.least(base_s + more * token_s, wait_s)
    came = math.least(more, math.greatest(wait_s - base_s, 0.0) / math.greatest(token_s, TOKEN_S_MIN))
    reused = math.pick(came < more, cached + came, pooled)
    rest_s = service_s(prices.a_s, prices.b_s, prices.c0_tokens, prompt_tokens - reused, reused)
    fetched_s = math.greatest(ready_s, ready_s - hidden_s + fetch_s)
    fetches = (came >= tokens_min) & (fetched_s + rest_s < ready_s + prefill_s)
    return (
        math.pick(fetches, fetched_s, ready_s),
        math.pick(fetches, rest_s, prefill_s),
        math.pick(fetches, came, 0.0),
        math.pick(fetches, fetch_s, 0.0),
    )


def assemble(
    math: Arithmetic[Number],
    prices: Prices[Number],
    prompt_tokens: float,
    match: tuple[Number, Number | None],
    backlog_s: Number,
    loaded_s: Number | None,
    queue: QueueView | None,
    waiting: Waiting[Number] | None,
    shipped: Shipped[Number] | None,
    shared: Callable[[Any, Number], Number] | None = None,
    copying: tuple[float, float] | None = None,
) -> Timing[Number]:
    """Assemble the time of a request on a worker.

    ``match`` is its window-safe match, and the same with its pool, None if that adds nothing. ``backlog_s``
    is V; ``loaded_s`` is L, None for none; ``queue`` is None if requests do not wait in the gateway,
    ``waiting`` if no request waits; ``shipped`` gives W, X and D by slot and prefill seconds, None if no
    request is split; ``shared`` gives R by `Prices.beside` and seconds of work; ``copying`` are the tokens of
    a common start and the saving of one more copy, None without one.
    """
    slot, a_s, b_s, c0_tokens, congestion_per_s, fetching, visiting, evicting, beside = prices
    cached, pooled = match
    prefill_s = service_s(a_s, b_s, c0_tokens, prompt_tokens - cached, cached)
    saved_s = 0.0 if copying is None else math.pick(cached < copying[0], copying[1], 0.0)
    ready_s = backlog_s
    behind: Number | float = 0.0
    if waiting is not None:
        ahead_s, behind = waiting(slot, prefill_s)
        ready_s = backlog_s + ahead_s
    own_s = ready_s
    if beside is not None and shared is not None:
        ready_s = ready_s + shared(beside, ready_s + prefill_s)
    fetched: Number | float = 0.0
    fetch_s = fetched
    if fetching is not None and pooled is not None:
        ready_s, prefill_s, fetched, fetch_s = _fetched(
            math, prices, prompt_tokens, (cached, pooled), (ready_s, prefill_s), queue
        )
        cached = cached + fetched
    if loaded_s is not None:
        prefill_s = math.greatest(prefill_s, loaded_s)
    work_s = prefill_s
    transfer_s: Number | float = 0.0
    stall_s: Number | float = 0.0
    if shipped is not None:
        room_s, transfer_s, stall_s = shipped(slot, prefill_s)
        ready_s = math.greatest(ready_s, room_s)
        work_s = work_s + transfer_s + stall_s
    price_s = 0.0 if visiting is None else spill_s(*visiting, prompt_tokens - cached, cached)
    if visiting is not None:
        work_s = work_s + price_s
    evict_s = (
        0.0 if evicting is None else evicting[0] * math.greatest(prompt_tokens - cached - evicting[1], 0.0)
    )
    if queue is not None:
        settled_s = math.least(backlog_s, queue.committed_s)
    else:
        settled_s = ready_s if beside is None else own_s  # later requests to other ranks do not stay behind
    return Timing(
        slot,
        cached,
        prefill_s,
        ready_s,
        work_s,
        congestion_per_s,
        settled_s,
        fetched,
        transfer_s,
        stall_s,
        price_s,
        behind,
        evict_s,
        fetch_s,
        saved_s,
    )
