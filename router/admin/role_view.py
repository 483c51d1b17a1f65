"""``GET /roles``: who prefills and decodes, what that serves, and what the slow loop would change.

Every replica folds the same log, so any of them may be asked for the plan and for what is turning; what would
be decided now is worked out when asked, by the same rule that decides it (`router.fleet.role_planner`). It
follows what the asked replica has learned of decode, which may differ a little from what the leader has. Only
``changes`` count from the asked replica's own start.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from fastapi import FastAPI

from policies import NEVER_TOKENS, OffloadPlan, RoleDemand, RoleMember, RoleVerdict, Throughput
from router.fleet import RolePlanner


def add_role_view(api: FastAPI, planner: RolePlanner) -> None:
    """Serve the view."""

    @api.get("/roles", tags=["workers"])
    async def roles() -> dict[str, Any]:
        """Prefill and decode: workers, threshold, load, the plan and its reason, and what is turning."""
        return described(planner)


def described(planner: RolePlanner) -> dict[str, Any]:
    """What the view says."""
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
    """Bins in which anything came."""
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
    """What would be said and changed at the next look, and what is missing for it."""
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
    """A threshold; None if it is not known, or if nothing is remote."""
    return round(tokens) if 0 <= tokens < NEVER_TOKENS else None
