"""Audit: a log line and an operation in the shared log for every change through the admin API.

    changed   log line, metric, operation (`policies.Audited`): every replica lists it
    refused   log line, metric: not authorised
    failed    log line, metric: authorised, and did not work

A handler describes its change with `note_change`; the rest comes from the route. The entry is written before
the answer begins, so that ``GET /audit`` has it from then on.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.types import Scope

from policies import AUDIT_KEPT, Audited, FleetState, OpLog

logger = logging.getLogger(__name__)

DETAIL_CHARS_MAX = 2000
"""Characters of a change's detail as JSON; longer ones are left out: 1,000 changes are 2 MB at most."""

NAME_CHARS_MAX = 256
"""Characters of a target, or of an unknown path."""


@dataclass(slots=True)
class Change:
    """A handler's description of its change; ``made`` is False if nothing was changed after all."""

    target: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    made: bool = True


def note_change(
    request: Request, *, target: str = "", detail: Mapping[str, Any] | None = None, made: bool = True
) -> None:
    """Describe a request's change for the audit; the last call counts.

    Args:
        request: The request.
        target: Name of the changed thing; empty for the one in the path.
        detail: As JSON takes it; never a secret.
        made: False if it changes nothing, such as a dry run.
    """
    request.state.change = Change(target, detail or {}, made)


class AuditTrail:
    """Writes the audit of one replica; ``counted`` gets ``changed``, ``refused`` or ``failed``."""

    def __init__(self, log: OpLog, now_unix_s: Callable[[], float], counted: Callable[[str], None]) -> None:
        self._log, self._now_unix_s, self._counted = log, now_unix_s, counted

    def ended(self, scope: Scope, status: int) -> None:
        """Write the entry of a request that is about to be answered with a status."""
        state = scope["state"]
        change: Change = state.get("change") or Change()
        if status < 400 and not change.made:
            return
        route = getattr(scope.get("route"), "path_format", "") or scope["path"][:NAME_CHARS_MAX]
        named = ", ".join(map(str, scope.get("path_params", {}).values()))
        entry = {
            "actor": state.get("actor", ""),
            "client": _address(scope),
            "action": f"{scope['method']} {route}",
            "target": (change.target or named)[:NAME_CHARS_MAX],
            "status": status,
            "request_id": state["request_id"],
        }
        outcome = "changed" if status < 400 else "refused" if status in (401, 403) else "failed"
        self._counted(outcome)
        level = logging.INFO if outcome == "changed" else logging.WARNING
        logger.log(
            level,
            _OUTCOMES[outcome],
            extra={"event": f"admin.{outcome}", **entry, "detail": dict(change.detail)},
        )
        if outcome == "changed":
            self._log.publish(
                Audited(
                    at_us=self._log.now_us(),
                    replica=self._log.replica,
                    detail=_bounded(change.detail),
                    unix_us=round(self._now_unix_s() * 1e6),
                    **entry,
                )
            )


_OUTCOMES = {
    "changed": "a change through the admin API",
    "refused": "a change through the admin API that was not allowed",
    "failed": "a change through the admin API that was not made",
}


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def _bounded(detail: Mapping[str, Any]) -> str:
    text = json.dumps(detail, default=str, separators=(",", ":"))
    return text if len(text) <= DETAIL_CHARS_MAX else '{"left_out":"it is too long"}'


def add_audit_view(api: FastAPI, fleet: FleetState) -> None:
    """Add the route."""

    @api.get("/audit", tags=["audit"])
    async def audit(
        limit: Annotated[int, Query(ge=1, le=AUDIT_KEPT, description="Most entries.")] = 100,
    ) -> dict[str, Any]:
        """The newest changes, the newest first: author, time, change and outcome.

        Every replica knows all of them; the log of the replica that was asked has refused and failed ones.
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
    """Return a change's detail from its JSON; its text if it is no JSON."""
    try:
        return json.loads(detail)
    except (ValueError, RecursionError):
        return detail
