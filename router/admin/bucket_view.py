"""``GET /buckets``: how lengths are divided among the workers, how that goes, and what would change it.

Every replica folds the same log, so any of them may be asked; only ``placed`` and ``spilled`` count from its
own start. What automatic buckets would do next is worked out when asked, by the same rule that decides it
(`router.fleet.bucket_planner`).
"""

from typing import Any

from fastapi import FastAPI

from policies import ANY_BUCKET, BucketPlan, BucketVerdict, LengthBuckets
from router.fleet.bucket_planner import BucketPlanner


def add_bucket_view(api: FastAPI, planner: BucketPlanner) -> None:
    """Serve the view."""

    @api.get("/buckets", tags=["workers"])
    async def buckets() -> dict[str, Any]:
        """Length buckets: bounds, workers, load, spills, what came lately, plans and their reasons."""
        return described(planner)


def described(planner: BucketPlanner) -> dict[str, Any]:
    """What the view says."""
    known = planner.fleet.buckets
    if known.bounds is None:
        return {"mode": "off"}
    demand, verdict = planner.demand(), planner.verdict()
    rows = [
        {"tokens_max": tokens_max, "requests": requests, "service_s": round(service_s, 3)}
        for tokens_max, requests, service_s in demand.rows()
    ]
    by_slot = {local.worker.slot: local.worker.worker_id for local in planner.registry.all()}
    return {
        "mode": "auto" if known.automatic else "labels",
        "in_use": known.lengths is not None,
        "buckets": bucket_rows(planner, known.bounds),
        "any_length": [worker for slot, worker in by_slot.items() if known.of(slot) == ANY_BUCKET],
        "draining_for_a_move": sorted(by_slot[slot] for slot in known.moving if slot in by_slot),
        "unknown_labels": known.strangers(),
        "spilled": {
            "up": sum(count for (own, taker), count in known.placed.items() if taker > own),
            "down": sum(count for (own, taker), count in known.placed.items() if -1 < taker < own),
        },
        "histogram": {"window_s": round(demand.window_s, 1), "rows": rows},
        "plans": [_plan(plan) for plan in reversed(known.plans)],
        "next": None if verdict is None else _next(verdict),
    }


def bucket_rows(planner: BucketPlanner, bounds: LengthBuckets) -> list[dict[str, Any]]:
    """Each bucket: its workers, what they have to do, and where its requests went."""
    known, loads, now_us = planner.fleet.buckets, planner.fleet.loads, planner.now_us()
    by_slot = {local.worker.slot: local.worker.worker_id for local in planner.registry.all()}
    demand = planner.demand()
    listed = []
    for number, (name, tokens_max) in enumerate(zip(bounds.names, bounds.tokens_max, strict=True)):
        slots = [slot for slot in by_slot if known.of(slot) == number]
        requests, load = demand.within(bounds.tokens_max, number)
        listed.append(
            {
                "number": number,
                "name": name,
                "tokens_max": tokens_max,
                "workers": [by_slot[slot] for slot in slots],
                "requests": requests,
                "load": round(load / len(slots), 4) if slots else None,
                "load_share": round(load / demand.load, 4) if demand.load else 0.0,
                "backlog_s": round(sum(loads.backlog_at_s(slot, now_us) for slot in slots), 3),
                "inflight_requests": int(sum(loads.inflight_requests[slot] for slot in slots)),
                "placed": {
                    "any_length" if taker == ANY_BUCKET else bounds.names[taker]: count
                    for (own, taker), count in sorted(known.placed.items())
                    if own == number and taker < len(bounds)
                },
            }
        )
    return listed


def _plan(plan: BucketPlan) -> dict[str, Any]:
    return {
        "at_unix_s": plan.at_us / 1e6,
        "replica": plan.replica,
        "tokens_max": list(plan.tokens_max),
        "moved": {worker: list(way) for worker, way in plan.moved.items()},
        "reason": plan.reason,
        "ttft_s": round(plan.cost_s, 4),
        "ttft_before_s": round(plan.cost_before_s, 4) or None,
    }


def _next(verdict: BucketVerdict) -> dict[str, Any]:
    """What would happen at the next look, and what is missing for it."""
    best = verdict.best
    return {
        "changes": verdict.plan is not None,
        "reason": verdict.reason,
        "ttft_s": round(verdict.cost_s, 4),
        "best": None
        if best is None
        else {
            "tokens_max": list(best.tokens_max),
            "workers": list(best.workers),
            "ttft_s": round(verdict.best_cost_s, 4),
            "saves_ratio": round(verdict.gain_ratio, 4),
            "must_save_ratio": round(verdict.needed_ratio, 4),
        },
        "not_before_s": round(verdict.wait_s, 1),
    }
