"""``/tree``: what is believed to be cached where, which starts of prompts save most, and whether it is sound.

A start is named by the hash of its first block and never by its text. Its length is that of what all cached
prompts have in common that begin so: of an application mostly its tools and its system prompt. What it saved
is counted by this replica alone, over this hour and the last one (`policies.observing.savings`); what is
cached where, all replicas know alike.
"""

import asyncio
import logging
from time import perf_counter
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request

from policies import Entry, FleetState
from radix import Inspection, inspect_tree, shared_start
from router.admin.audit import note_change
from router.errors import ClientError
from router.gateway import Gateway

logger = logging.getLogger(__name__)

HOLDERS_LISTED = 16
WORKERS_MAX = 1000
STEP_S = 0.001
"""How long the event loop is held."""


def add_tree_view(api: FastAPI, gateway: Gateway) -> None:
    """Serve the views."""
    checking = asyncio.Lock()

    @api.get(
        "/tree", tags=["tree"], responses={200: {"content": {"application/json": {"example": _EXAMPLE}}}}
    )
    async def tree(
        limit: Annotated[int, Query(ge=1, le=512, description="Most starts that are listed.")] = 20,
    ) -> dict[str, Any]:
        """How large the tree is, and the starts of prompts that saved most tokens here.

        ``saved_tokens`` are as the engines report, or as predicted where they report nothing; the true sum is
        at most ``error_tokens`` more. ``blocks`` and ``tokens`` are what all cached prompts share that begin
        so; they part there in ``branches`` ways.
        """
        gateway.reports.decisions.fold()
        return described(gateway, limit)

    @api.get("/tree/workers", tags=["tree"])
    async def coverage(
        limit: Annotated[int, Query(ge=1, le=WORKERS_MAX, description="Most workers that are listed.")] = 100,
    ) -> dict[str, Any]:
        """What each worker and each shared cache is believed to hold, those that hold most first."""
        return covered(gateway.fleet, limit)

    @api.post(
        "/tree/check",
        tags=["tree"],
        responses={409: {"description": "A check is under way."}},
    )
    async def check(
        request: Request,
        time_s: Annotated[
            float, Query(gt=0, le=60, description="How long to look at most, in seconds.")
        ] = 10.0,
    ) -> dict[str, Any]:
        """Look whether the tree of this replica is sound, in steps of a millisecond. Changes nothing."""
        note_change(request, made=False)
        if checking.locked():
            raise ClientError("A check is under way.", code="check_under_way", status=409)
        async with checking:
            return await checked(gateway.fleet, time_s)


def described(gateway: Gateway, limit: int) -> dict[str, Any]:
    """What the first view says."""
    fleet, decisions = gateway.fleet, gateway.reports.decisions
    tree, savings = fleet.tree, decisions.savings
    held = sum(holdings.blocks for holdings in tree.holdings)
    return {
        "blocks": tree.blocks,
        "blocks_max": tree.blocks_max,
        "runs": tree.nodes,
        "tokens": tree.blocks * fleet.rules.block_tokens,
        "copies_mean": round(held / tree.blocks, 3) if tree.blocks else None,
        "savings": {
            "replica": gateway.log.replica,
            "since_unix_s": round(savings.since_us / 1e6, 3) or None,
            "requests": savings.requests,
            "saved_tokens": savings.total_tokens,
            "unlisted_saved_tokens_max": savings.floor,
            "uncounted_requests": decisions.missed,
        },
        "prefixes": [_prefix(fleet, entry, gateway) for entry in savings.top(limit)],
    }


def _prefix(fleet: FleetState, entry: Entry, gateway: Gateway) -> dict[str, Any]:
    start = shared_start(fleet.tree, entry.key)
    names = [] if start is None else [fleet.at_slot(slot).worker_id for slot in start.holders]
    # Text: a block is four bytes for each nominal token, of which the model has learned how many there are.
    tokens_per_block = 4 * fleet.rules.block_tokens / gateway.placing.feedback.bytes_per_token(entry.model)
    return {
        "prefix": f"{entry.key:016x}",
        "model": entry.model or None,
        "requests": entry.requests,
        "saved_tokens": entry.saved_tokens,
        "error_tokens": entry.error,
        "predicted_tokens": entry.predicted_tokens,
        "reported_tokens": entry.reported_tokens if entry.reported_requests else None,
        "reported_requests": entry.reported_requests,
        "prompt_tokens": entry.prompt_tokens,
        "saved_ratio": round(entry.saved_tokens / entry.prompt_tokens, 4) if entry.prompt_tokens else None,
        "last_unix_s": round(entry.last_us / 1e6, 3),
        "blocks": 0 if start is None else start.blocks,
        "tokens": 0 if start is None else round(start.blocks * tokens_per_block),
        "branches": 0 if start is None else start.branches,
        "holders": names[:HOLDERS_LISTED],
        "holders_count": len(names),
        "whole_holders_count": 0 if start is None else start.whole_holders,
    }


def covered(fleet: FleetState, limit: int) -> dict[str, Any]:
    """What each holder is believed to hold."""
    tree, block_tokens = fleet.tree, fleet.rules.block_tokens
    holders = []
    for worker in fleet.holders():
        holdings = tree.holdings_of(worker.slot)
        holders.append((worker, holdings))
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


async def checked(fleet: FleetState, time_s: float) -> dict[str, Any]:
    """Look at the tree for some seconds at most."""
    inspection, began_s = Inspection(), perf_counter()
    complete, until_s = True, began_s + STEP_S
    for _ in inspect_tree(fleet.tree, inspection):
        now_s = perf_counter()
        if now_s - began_s > time_s:
            complete = False
            break
        if now_s >= until_s:
            await asyncio.sleep(0)
            until_s = perf_counter() + STEP_S
    if inspection.wrong:
        logger.error(
            "the prefix tree is not sound",
            extra={
                "event": "tree.unsound",
                "wrong": inspection.wrong,
                "findings": inspection.findings,
            },
        )
    return {
        "sound": not inspection.wrong,
        "complete": complete,
        "runs_checked": inspection.runs,
        "workers_checked": inspection.workers,
        "workers_too_large_to_add_up": inspection.workers_passed,
        "totals_checked": inspection.totals,
        "wrong": inspection.wrong,
        "findings": inspection.findings,
        "took_s": round(perf_counter() - began_s, 3),
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
        "unlisted_saved_tokens_max": 0,
        "uncounted_requests": 0,
    },
    "prefixes": [
        {
            "prefix": "91f3c05a7be2d844",
            "model": "m",
            "requests": 31_000,
            "saved_tokens": 260_000_000,
            "error_tokens": 0,
            "blocks": 32,
            "tokens": 8192,
            "branches": 410,
            "holders": ["10.0.0.7:30000", "10.0.0.8:30000"],
            "holders_count": 2,
        }
    ],
}
