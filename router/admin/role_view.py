"""``GET /roles`` and ``GET /buckets``: division of work among the workers, by stage and by length.

Every replica folds the same log, so any of them may be asked. The current verdict is computed when asked, by
the rule that decides (`router.pairs.role_planner`), from the asked replica's own fit of decode, which may
differ a little from the leader's. ``changes``, ``placed`` and ``spilled`` count since the asked replica's
start.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from fastapi import FastAPI

from policies import ANY_BUCKET, LengthBuckets, OffloadPlan
from policies.disaggregation import NEVER_TOKENS, RoleDemand, RoleMember, RoleVerdict, Throughput
from router.admin.parts import AdminParts
from router.gateway import Gateway
from router.pairs import RolePlanner


def add_role_view(api: FastAPI, parts: AdminParts) -> None:
    """Serve the views."""

    @api.get("/roles", tags=["workers"])
    async def roles() -> dict[str, Any]:
        """Prefill and decode: workers, threshold, load, the plan and its reason, and turning workers."""
        return described(parts.roles)

    @api.get("/buckets", tags=["workers"])
    async def buckets() -> dict[str, Any]:
        """Length buckets: bounds, workers, load, spills, and recent requests."""
        return divided(parts.gateway)


def described(planner: RolePlanner) -> dict[str, Any]:
    """Return the roles as JSON."""
    members = planner.members()
    if not members:
        return {"mode": planner.rules.mode, "workers": []}
    demand = planner.demand(members)
    plan = planner.core.fleet.offload_plan
    return {
        "mode": planner.rules.mode,
        "leads": planner.leads(),
        "workers": [_worker(member, planner.core.log.now_us()) for member in members],
        "stages": _stages(demand),
        "histogram": _histogram(demand),
        "plan": None if plan is None else _plan(plan),
        "now": _verdict(planner.verdict(members)),
        "changes": [
            {"at_unix_s": change.changed_us / 1e6, "replica": change.replica, "turned": change.turned}
            for change in reversed(planner.core.fleet.role_changes)
        ],
    }


def _worker(member: RoleMember, now_us: int) -> dict[str, Any]:
    turning = {}
    if member.turning:
        turning = {
            "turning_to": member.turning,
            "turning_s": round((now_us - member.worker.version[0]) / 1e6, 1),
        }
    return {
        "worker_id": member.worker_id,
        "role": member.worker.role,
        "site": member.site or None,
        "worker_class": member.worker.worker_class,
        "convertible": member.convertible,
        "serves": member.serves,
        "inflight_requests": member.inflight_requests,
        **turning,
    }


def _stages(demand: RoleDemand) -> dict[str, Any]:
    load = demand.load
    return {
        "prefill": {
            "busy_ratio": round(load.prefill_ratio, 4),
            "backlog_s": round(load.prefill_backlog_s, 3),
        },
        "decode": {
            "busy_ratio": round(load.decode_ratio, 4),
            "requests_per_s_per_worker": {name: round(one, 4) for name, one in demand.decode_per_s.items()},
        },
        "links": {site: round(rate) for site, rate in demand.link_bytes_per_s.items()},
    }


def _histogram(demand: RoleDemand) -> list[dict[str, Any]]:
    """Return the bins that are not empty."""
    lengths = demand.lengths
    return [
        {"tokens_max": round(bound), "requests": round(requests, 2)}
        for bound, requests in zip(lengths.bounds.tolist(), lengths.requests.tolist(), strict=True)
        if requests
    ]


def _plan(plan: OffloadPlan) -> dict[str, Any]:
    return {
        "at_unix_s": plan.at_us / 1e6,
        "replica": plan.replica,
        "threshold_tokens": _threshold(plan.threshold_tokens),
        "nothing_remote": plan.threshold_tokens >= NEVER_TOKENS,
        "prefill": plan.prefill or None,
        "decode": plan.decode or None,
        "roles": plan.roles,
        "gain_ratio": round(plan.gain_ratio, 4),
        "reason": plan.reason,
        "requests_per_s": round(plan.requests_per_s, 4),
        "remote_ratio": round(plan.remote_ratio, 4),
        "egress_bytes_per_s": round(plan.egress_bytes_per_s),
        "changed_unix_s": plan.changed_us / 1e6 or None,
        "turned": plan.turned,
        "stuck": sorted(plan.stuck_us),
    }


def _verdict(verdict: RoleVerdict) -> dict[str, Any]:
    """Return the verdict and changes of the next look, and the reasons against them."""
    best = verdict.best
    return {
        "reason": verdict.reason,
        "serves": None if verdict.now is None else _throughput(verdict.now),
        "best": None
        if best is None
        else {
            "prefill": best.split.prefill_workers,
            "decode": best.split.decode_workers,
            **_throughput(best.throughput),
        },
        "roles": dict(verdict.roles),
        "gain_ratio": round(verdict.gain_ratio, 4),
        "must_gain_ratio": round(verdict.needed_ratio, 4),
        "not_before_s": round(verdict.wait_s, 1),
    }


def _throughput(found: Throughput) -> dict[str, Any]:
    rates: Sequence[tuple[str, float]] = (
        ("requests_per_s", found.requests_per_s),
        ("remote_prefill_per_s", found.remote_per_s),
        ("prefill_per_s", found.prefill_per_s),
        ("decode_per_s", found.decode_per_s),
        ("remote_ratio", found.remote_ratio),
        ("egress_bytes_per_s", found.egress_bytes_per_s),
    )
    return {
        "threshold_tokens": _threshold(found.threshold_tokens),
        **{name: round(rate, 4) if isfinite(rate) else None for name, rate in rates},
        "bound": found.bound.value,
    }


def _threshold(tokens: float) -> int | None:
    """Return the threshold; None if it is unknown, or if no prefill is remote."""
    return round(tokens) if 0 <= tokens < NEVER_TOKENS else None


def divided(gateway: Gateway) -> dict[str, Any]:
    """Return the length buckets as JSON."""
    division = gateway.fleet.buckets
    if division.bounds is None:
        return {"mode": "off"}
    demand = gateway.fleet.lengths.demand(gateway.log.now_us())
    rows = [
        {"tokens_max": tokens_max, "requests": requests, "service_s": round(service_s, 3)}
        for tokens_max, requests, service_s in demand.rows()
    ]
    by_slot = {place.slot: place.worker_id for _, place in gateway.registry.places()}
    return {
        "mode": "labels",
        "in_use": division.lengths is not None,
        "buckets": bucket_rows(gateway, division.bounds),
        "any_length": [worker for slot, worker in by_slot.items() if division.of(slot) == ANY_BUCKET],
        "unknown_labels": division.strangers(),
        "spilled": {
            "up": sum(count for (own, taker), count in division.placed.items() if taker > own),
            "down": sum(count for (own, taker), count in division.placed.items() if -1 < taker < own),
        },
        "histogram": {"window_s": round(demand.window_s, 1), "rows": rows},
    }


def bucket_rows(gateway: Gateway, bounds: LengthBuckets) -> list[dict[str, Any]]:
    """Return each bucket with its workers, their load, and the placement of its requests."""
    division, loads, now_us = gateway.fleet.buckets, gateway.fleet.loads, gateway.log.now_us()
    by_slot = {place.slot: place.worker_id for _, place in gateway.registry.places()}
    demand = gateway.fleet.lengths.demand(now_us)
    works = demand.within(bounds.tokens_max)
    listed = []
    for number, (name, tokens_max) in enumerate(zip(bounds.names, bounds.tokens_max, strict=True)):
        slots = [slot for slot in by_slot if division.of(slot) == number]
        requests, load = works[number]
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
                    for (own, taker), count in sorted(division.placed.items())
                    if own == number and taker < len(bounds)
                },
            }
        )
    return listed
