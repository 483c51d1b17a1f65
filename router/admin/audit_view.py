"""``GET /audit``: the newest changes that people made through the admin API, of all replicas."""

import json
from typing import Annotated, Any

from fastapi import FastAPI, Query

from policies import AUDIT_KEPT, Audited, FleetState


def add_audit_view(api: FastAPI, fleet: FleetState) -> None:
    """Add the route."""

    @api.get("/audit", tags=["audit"])
    async def audit(
        limit: Annotated[int, Query(ge=1, le=AUDIT_KEPT, description="How many at most.")] = 100,
    ) -> dict[str, Any]:
        """The newest changes, the newest first: who, when, what, and with which outcome.

        Every replica knows those of all; what was refused or failed is in the log of the one that was asked.
        """
        return {"changes": [_described(op) for op in fleet.audit.latest(limit)], "total": len(fleet.audit)}


def _described(op: Audited) -> dict[str, Any]:
    return {
        "at_unix_s": op.unix_us / 1e6,
        "replica": op.replica,
        "actor": op.actor,
        "client": op.client,
        "action": op.action,
        "target": op.target or None,
        "status": op.status,
        "request_id": op.request_id,
        "detail": _decoded(op.detail),
    }


def _decoded(detail: str) -> Any:
    """The JSON of a change's detail; its text if another writer put none there."""
    try:
        return json.loads(detail)
    except (ValueError, RecursionError):
        return detail
