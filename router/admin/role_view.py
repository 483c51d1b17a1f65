"""``GET /roles``: how workers are shared between prefill and decode, and what the slow loop would change.

One replica at a time works it out (`policies.role_plan`), and its plan in the log is everybody's: any replica
may be asked. Only ``changes`` count from its own start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from policies import CONVERTIBLE_LABEL, NEVER_TOKENS, TURNING_LABEL, FleetState, OffloadPlan
from router.fleet import Registry
from router.settings import RoleSettings


@dataclass(frozen=True, slots=True)
class RolePorts:
    """What the view may see.

    Attributes:
        fleet: With the newest plan.
        registry: The workers.
        settings: When roles change.
        now_us: Log time.
    """

    fleet: FleetState
    registry: Registry
    settings: RoleSettings
    now_us: Callable[[], int]


def add_role_view(api: FastAPI, ports: RolePorts) -> None:
    """Add the route."""

    @api.get("/roles", tags=["workers"])
    async def roles() -> dict[str, Any]:
        """Who prefills and decodes, the best shares of both by what came lately, and why what changes.

        ``plan`` is null until enough requests came; ``turn`` names convertible workers that should have, or
        with roles.mode apply will get, another role.
        """
        return described(ports)


def described(ports: RolePorts) -> dict[str, Any]:
    """What the view says."""
    workers = [local.worker for local in ports.registry.all()]
    plan, settings, now_us = ports.fleet.offload_plan, ports.settings, ports.now_us()
    waited_s = (now_us - plan.changed_us) / 1e6 if plan is not None and plan.changed_us else None
    return {
        "mode": settings.mode,
        "interval_s": settings.interval_s,
        "gain_ratio_min": settings.gain_ratio_min,
        "dwell_s_min": settings.dwell_s_min,
        "dwell_left_s": 0.0 if waited_s is None else round(max(settings.dwell_s_min - waited_s, 0.0), 1),
        "roles": {
            role: [worker.worker_id for worker in workers if worker.role == role]
            for role in sorted({"prefill", "decode"} | {worker.role for worker in workers})
        },
        "convertible": [
            worker.worker_id for worker in workers if worker.labels.get(CONVERTIBLE_LABEL) == "true"
        ],
        "turning": {
            worker.worker_id: worker.labels[TURNING_LABEL]
            for worker in workers
            if TURNING_LABEL in worker.labels
        },
        "plan": None if plan is None else _plan(plan, now_us),
        "changes": [
            {"at_unix_s": change.changed_us / 1e6, "turned": change.turned, "replica": change.replica}
            for change in reversed(ports.fleet.role_changes)
        ],
    }


def _plan(plan: OffloadPlan, now_us: int) -> dict[str, Any]:
    tokens = plan.threshold_tokens
    return {
        "age_s": round(max(now_us - plan.at_us, 0) / 1e6, 1),
        "replica": plan.replica,
        "reason": plan.reason,
        "threshold_tokens": tokens if 0 <= tokens < NEVER_TOKENS else None,
        "remote_ratio": round(plan.remote_ratio, 4),
        "egress_bytes_per_s": round(plan.egress_bytes_per_s),
        "requests_per_s": round(plan.requests_per_s, 4),
        "best": {"prefill": plan.prefill, "decode": plan.decode} if plan.prefill or plan.decode else None,
        "gain_ratio": round(plan.gain_ratio, 4),
        "turn": plan.roles,
        "stuck_for_s": {
            worker: round(max(now_us - at_us, 0) / 1e6, 1) for worker, at_us in sorted(plan.stuck_us.items())
        },
    }
