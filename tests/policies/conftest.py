"""Builders of the inputs of policies: one request, and candidates given by the columns that matter."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from policies import Candidates, RequestView
from policies.disaggregation.ships import Ships
from policies.pricing.plain import plain_rows
from policies.pricing.views import Evictions, Pools, SlowColumns, Spills
from policies.state.loads import Loads
from radix import Match

COLUMNS = (
    *("matched_tokens", "safe_tokens", "backlog_s", "prefill_tokens", "inflight_requests", "inflight_tokens"),
    *("held_tokens", "a_s", "b_s", "c0_tokens", "congestion_per_s"),
    *("pooled_tokens", "base_s", "token_s", "tokens_min", "patience", "visit_token_s", "middle_tokens"),
    *("evict_token_s", "free_tokens"),
)

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def _request(
    prompt_tokens: float = 4000.0, *, key: int = 7, prefix_key: int = 7, sequence: int = 0
) -> RequestView:
    return RequestView(key, prefix_key, prompt_tokens, 100.0, sequence)


def _candidates(**columns: Sequence[float]) -> Candidates:
    """Idle workers that prefill 1,000 tokens/s at any context, unless columns say otherwise.

    With ``pooled_tokens`` each has a pool of its own, from which a fetch takes ``base_s + tokens·token_s``;
    with a ``patience`` of 1 the engine stops it as SGLang's ``timeout`` does, with 0 as ``best_effort``.
    With ``transfer_s`` a decode worker takes each request over, after that time.
    With ``steps`` they are so far from the request's length bucket, where a visitor costs ``visit_token_s``.
    With ``evict_token_s`` a token that is pushed out costs that much, once ``free_tokens`` are used.
    """
    n = len(next(iter(columns.values())))
    defaults: dict[str, Sequence[float]] = {
        "matched_tokens": columns.get("safe_tokens", [0.0] * n),
        "b_s": [0.001] * n,
        "c0_tokens": [float("inf")] * n,
        "patience": [float("inf")] * n,
    }
    given = {
        name: np.array(columns.get(name, defaults.get(name, [0.0] * n)), dtype=np.float64) for name in COLUMNS
    }
    pooled = "pooled_tokens" in columns
    slots = np.array(columns.get("slots", range(n)), dtype=np.intp)
    rows = max(slots, default=0) + 1
    loads = Loads()
    loads.ensure(rows - 1)
    loads.prefill_us[slots] = given["backlog_s"] * 1e6
    for name in ("prefill_tokens", "inflight_requests", "inflight_tokens"):
        getattr(loads, name)[slots] = given[name]
    # Behind the workers come their pools.
    matched, safe = np.zeros(2 * rows), np.zeros(2 * rows)
    matched[slots], safe[slots] = given["matched_tokens"], given["safe_tokens"]
    safe[slots + rows] = given["pooled_tokens"]
    # A token to the block, and another worker's match is longer than all of these.
    match: Any = Match(rows, rows, [(1 << 2 * rows, 1_000_000)], matched, safe)  # type: ignore[arg-type]
    slow = SlowColumns(
        slots,
        slots,
        np.array(columns.get("worker_hash", range(1, n + 1)), dtype=np.uint64),
        **{name: given[name] for name in SlowColumns.__struct_fields__ if name in given},
        pools=Pools(slots + rows, given["base_s"], given["token_s"], given["tokens_min"], given["patience"])
        if pooled
        else None,
        spills=Spills(
            np.array(columns["steps"], dtype=np.intp), given["visit_token_s"], given["middle_tokens"]
        )
        if "steps" in columns
        else None,
        evictions=Evictions(given["evict_token_s"], given["free_tokens"])
        if "evict_token_s" in columns
        else None,
    )
    few = [slow.prices_at(row) for row in range(n)]
    slow = structs.replace(slow, few=few, plain=plain_rows(few, slow.worker_hash.tolist()))
    ships = None
    if "transfer_s" in columns:
        routes, nothing = np.arange(rows), np.zeros(rows)
        base_s = np.zeros(rows)
        base_s[slots] = columns["transfer_s"]
        ships = Ships(routes, nothing, base_s, nothing, nothing, np.ones(rows))
    matches = [match] if matched.any() or pooled else []
    return Candidates(slow, matches, loads, float("inf"), 1.0, 0, ships=ships)


@pytest.fixture(scope="session")
def make_request() -> MakeRequest:
    return _request


@pytest.fixture(scope="session")
def make_candidates() -> MakeCandidates:
    return _candidates
