"""``/tree`` and ``/kv_events``: believed contents of the caches by prompt start, their sources, and savings.

A start is named by the hash of its first block, never by its text. Its length is that of the common beginning
of all cached prompts with this block: of an application mostly its tools and system prompt. Savings are
counted over the newest requests of the asked replica (`router.gateway.recent_decisions`); the contents are
the same in all replicas.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query

from policies import FleetState
from radix import shared_start
from router.admin.parts import AdminParts
from router.fleet import Registry
from router.fleet.kv_events import Follower, KvEvents
from router.gateway import Gateway
from router.gateway.recent_decisions import RecentDecision

HOLDERS_LISTED = 16
WORKERS_MAX = 1000


class Start(msgspec.Struct):
    """Prefill saved by requests whose prompts begin with one block, in tokens.

    Attributes:
        key: 64-bit hash of the first block.
        requests: Completed requests.
        prompt_tokens: Tokens of all their prompts.
        saved_tokens: Saved tokens as reported by the engine, else as predicted.
        predicted_tokens: Saved tokens as predicted when they were placed.
        reported_tokens: Saved tokens as reported, over the requests with a report.
        reported_requests: Number of requests with a report.
        last_us: Log time of the latest end.
    """

    key: int
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    saved_tokens: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0
    reported_requests: int = 0
    last_us: int = 0


def add_tree_view(api: FastAPI, parts: AdminParts) -> None:
    """Serve the views of the tree."""
    gateway = parts.gateway

    @api.get(
        "/tree", tags=["tree"], responses={200: {"content": {"application/json": {"example": _EXAMPLE}}}}
    )
    async def tree(
        limit: Annotated[int, Query(ge=1, le=512, description="Most starts that are listed.")] = 20,
    ) -> dict[str, Any]:
        """Size of the tree, and the starts of prompts that saved most tokens here.

        ``saved_tokens`` are as the engines report, or as predicted where they report nothing, of the newest
        requests. ``blocks`` and ``tokens`` are the part that all cached prompts with this start share; they
        divide there in ``branches`` ways.
        """
        return described(gateway, limit)

    @api.get("/tree/workers", tags=["tree"])
    async def coverage(
        limit: Annotated[int, Query(ge=1, le=WORKERS_MAX, description="Most workers that are listed.")] = 100,
    ) -> dict[str, Any]:
        """Blocks that each worker and each shared cache is believed to hold, the largest first."""
        return covered(gateway.fleet, limit)


def saved(decisions: Iterable[RecentDecision]) -> list[Start]:
    """Return the starts of these requests that saved anything, the greatest first."""
    starts: dict[int, Start] = {}
    for each in decisions:
        if each.outcome != "completed" or each.attempt is None:
            continue
        chosen, usage = each.attempt.chosen, each.usage
        start = starts.setdefault(each.prefix_key, Start(each.prefix_key, each.model))
        start.requests += 1
        start.last_us = each.ended_us
        start.predicted_tokens += chosen.safe_tokens
        if usage is None or usage.cached_tokens is None:
            start.saved_tokens += chosen.safe_tokens
        else:
            start.saved_tokens += usage.cached_tokens
            start.reported_tokens += usage.cached_tokens
            start.reported_requests += 1
        start.prompt_tokens += (
            chosen.safe_tokens + chosen.uncached_tokens if usage is None else usage.prompt_tokens
        )
    return sorted(
        (start for start in starts.values() if start.saved_tokens),
        key=lambda start: (-start.saved_tokens, start.key),
    )


def described(gateway: Gateway, limit: int) -> dict[str, Any]:
    """Return the starts as JSON."""
    tree, block_tokens = gateway.fleet.tree, gateway.fleet.rules.block_tokens
    recent, _ = gateway.reports.decisions.since(0)
    starts = saved(recent)
    held = sum(holdings.blocks for holdings in tree.holdings)
    return {
        "blocks": tree.blocks,
        "blocks_max": tree.blocks_max,
        "runs": tree.nodes,
        "tokens": tree.blocks * block_tokens,
        "copies_mean": round(held / tree.blocks, 3) if tree.blocks else None,
        "savings": {
            "replica": gateway.log.replica,
            "since_unix_s": round(recent[0].ended_us / 1e6, 3) if recent else None,
            "requests": sum(each.outcome == "completed" for each in recent),
            "saved_tokens": sum(start.saved_tokens for start in starts),
        },
        "prefixes": [_prefix(gateway, start) for start in starts[:limit]],
    }


def _prefix(gateway: Gateway, saved: Start) -> dict[str, Any]:
    fleet = gateway.fleet
    start = shared_start(fleet.tree, saved.key)
    names = [] if start is None else [fleet.at_slot(slot).worker_id for slot in start.holders]
    # Text: a block is four bytes for each nominal token, of which the model has learned how many there are.
    tokens_per_block = 4 * fleet.rules.block_tokens / gateway.placing.feedback.bytes_per_token(saved.model)
    return {
        "prefix": f"{saved.key:016x}",
        "model": saved.model or None,
        "requests": saved.requests,
        "saved_tokens": saved.saved_tokens,
        "predicted_tokens": saved.predicted_tokens,
        "reported_tokens": saved.reported_tokens if saved.reported_requests else None,
        "reported_requests": saved.reported_requests,
        "prompt_tokens": saved.prompt_tokens,
        "saved_ratio": round(saved.saved_tokens / saved.prompt_tokens, 4) if saved.prompt_tokens else None,
        "last_unix_s": round(saved.last_us / 1e6, 3),
        "blocks": 0 if start is None else start.blocks,
        "tokens": 0 if start is None else round(start.blocks * tokens_per_block),
        "branches": 0 if start is None else start.branches,
        "holders": names[:HOLDERS_LISTED],
        "holders_count": len(names),
        "whole_holders_count": 0 if start is None else start.whole_holders,
    }


def covered(fleet: FleetState, limit: int) -> dict[str, Any]:
    """Return the believed contents of each holder."""
    tree, block_tokens = fleet.tree, fleet.rules.block_tokens
    holders = [(worker, tree.holdings_of(worker.slot)) for worker in fleet.holders()]
    holders.sort(key=lambda pair: (-pair[1].blocks, pair[0].worker_id))
    listed = []
    for worker, holdings in holders[:limit]:
        capacity = holdings.capacity
        listed.append(
            {
                "worker": worker.worker_id,
                "role": worker.role,
                "held_tokens": holdings.blocks * block_tokens,
                "capacity_tokens": None if capacity is None else capacity * block_tokens,
                "full_ratio": round(holdings.blocks / capacity, 4) if capacity else None,
                "blocks": holdings.blocks,
                "runs": len(holdings.used),
                "tree_ratio": round(holdings.blocks / tree.blocks, 4) if tree.blocks else 0.0,
                "forgot_unix_s": round(holdings.forgot_us / 1e6, 3) or None,
            }
        )
    return {"tree_blocks": tree.blocks, "workers": listed, "omitted": len(holders) - len(listed)}


def add_kv_events_view(api: FastAPI, parts: AdminParts) -> None:
    """Serve the view of KV events."""

    @api.get("/kv_events", tags=["workers"])
    async def followed() -> dict[str, Any]:
        """Workers whose KV events this replica follows, and the evidence for the cache of each worker.

        One replica follows each worker. Only that replica can tell its state (``followed``); ``evidence`` is
        the same everywhere.
        """
        return following(parts.kv_events, parts.gateway.fleet, parts.gateway.registry)


def following(kv_events: KvEvents, fleet: FleetState, registry: Registry) -> dict[str, Any]:
    """Return the state of KV events as JSON."""
    if not kv_events.on:
        return {"enabled": False}
    counts = kv_events.counts()
    return {
        "enabled": True,
        "replica": kv_events.replica,
        "counts": {name: counts[name] for name in sorted(counts)},
        "workers": [
            {
                "worker_id": (worker_id := place.worker_id),
                **evidence(fleet, worker_id),
                "followed": _follower(kv_events.followers.get(worker_id)),
            }
            for _, place in registry.places()[:WORKERS_MAX]
        ],
    }


def evidence(fleet: FleetState, worker_id: str) -> dict[str, Any]:
    """Return the source of a worker's cache contents: ``events`` or ``history``, and the author."""
    word = fleet.evidence.get(worker_id)
    return {
        "evidence": "events" if fleet.tracks(worker_id) else "history",
        "evidence_by": None if word is None else word.replica,
    }


def _follower(follower: Follower | None) -> dict[str, Any] | None:
    """Return how this replica follows a worker; None if it does not."""
    if follower is None:
        return None
    lag_s, counts = follower.lag_s, follower.counts()
    return {
        "state": follower.state.value,
        "detail": follower.detail or None,
        "kv_blocks": follower.blocks,
        "opaque_kv_blocks": follower.opaque_blocks,
        "lag_s": None if lag_s is None else round(lag_s, 3),
        "counts": {name: counts[name] for name in sorted(counts) if counts[name]},
        "sources": [
            {
                "rank": feed.source.rank,
                "endpoint": feed.source.endpoint,
                "replay_endpoint": feed.source.replay,
                "listens": feed.source.listens,
                "connected": feed.connected,
                "complete": feed.sequence.complete,
                "next_batch": feed.sequence.next,
                "asked_from": feed.sequence.asked,
            }
            for feed in follower.feeds
        ],
    }


_EXAMPLE: dict[str, Any] = {
    "blocks": 52_000,
    "blocks_max": 8_000_000,
    "runs": 900,
    "tokens": 13_312_000,
    "copies_mean": 1.4,
    "savings": {
        "replica": "gateway-1",
        "since_unix_s": 1795298400.0,
        "requests": 51_000,
        "saved_tokens": 410_000_000,
    },
    "prefixes": [
        {
            "prefix": "91f3c05a7be2d844",
            "model": "m",
            "requests": 31_000,
            "saved_tokens": 260_000_000,
            "blocks": 32,
            "tokens": 8192,
            "branches": 410,
            "holders": ["10.0.0.7:30000", "10.0.0.8:30000"],
            "holders_count": 2,
        }
    ],
}
