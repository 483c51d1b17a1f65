"""``/settings`` and ``/policies``: every setting with its origin, and changes of the live ones.

A change holds for all replicas (`router.live_settings`): it is checked as a whole, goes through the shared
log, has a history, and can be rolled back. Without Redis only the asked replica has it, and the answer says
so (``shared``).
"""

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from policies import DECODE_COST, POLICIES, SettingsChanged
from router.admin.audit import note_change
from router.admin.parts import AdminParts
from router.catalogue import CATALOGUE, Setting
from router.live_settings import LiveSettings, Outcome, value_of
from router.reference import about, shown
from router.settings import PlacementSettings

NOT_SHARED = (
    "Redis is gone: this replica applies the change at once, the others when Redis is back; it is lost if "
    "this one ends before that"
)


class _Asked(BaseModel):
    """Fields of every change."""

    model_config = ConfigDict(extra="forbid")

    comment: str = Field(
        default="", max_length=300, description="Why; kept in the history.", examples=["try min_ttft"]
    )
    dry_run: bool = Field(default=False, description="Check only, and report what would change.")
    expected_revision: str | None = Field(
        default=None,
        max_length=64,
        description="The revision that GET /settings told: 409 if the settings have changed since.",
    )


class SettingsPatch(_Asked):
    """New values for some settings."""

    values: dict[str, Any] = Field(
        min_length=1,
        max_length=200,
        description="By dotted key, typed as in the configuration file; null restores each replica's value "
        "at its start.",
        examples=[{"placement.policy": "min_ttft", "queue.size": 500}],
    )


class SettingsRollback(_Asked):
    """The change to undo, with all after it."""

    change_id: str = Field(
        min_length=1, max_length=64, description="From the history.", examples=["0123456789abcdef"]
    )


_CHANGED = {
    "replica": "gw-1",
    "revision": "8d7a4ff0c7a3c1b2",
    "shared": True,
    "note": None,
    "refused": {},
    "dry_run": False,
    "change_id": "0123456789abcdef",
    "changed": {"placement.policy": {"before": "expected_cost", "after": "min_ttft"}},
}

_REFUSED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Changes made here, with the values before and after.",
        "content": {"application/json": {"example": _CHANGED}},
    },
    400: {"description": "A value is not allowed; the message says which are. Nothing was changed."},
    409: {"description": "The settings have changed since the expected revision."},
}


def add_settings(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes."""
    live = parts.live

    @api.get("/settings", tags=["settings"])
    async def settings() -> dict[str, Any]:
        """Every setting: its value, value at the start and default, its source, and its effect.

        Secrets are masked. ``live`` is false for a setting that may not change while the gateway serves: it
        needs a restart. ``refused`` lists changes that this replica cannot use.
        """
        return {
            **_state(parts),
            "settings": {key: _described(live, key, row) for key, row in CATALOGUE.items()},
        }

    @api.patch("/settings", tags=["settings"], responses=_REFUSED)
    async def patch(request: Request, asked: SettingsPatch) -> dict[str, Any]:
        """Change settings for all replicas, or none of them if anything is wrong.

        ``changed`` lists the values that changed here; ``change_id`` is null if nothing was.
        """
        outcome = live.change(
            asked.values,
            actor=request.state.actor,
            comment=asked.comment,
            expected=asked.expected_revision,
            dry_run=asked.dry_run,
        )
        return _answer(parts, request, outcome, dry_run=asked.dry_run)

    @api.get("/settings/history", tags=["settings"])
    async def history(
        limit: Annotated[int, Query(ge=1, le=200, description="Most entries.")] = 50,
    ) -> dict[str, Any]:
        """The newest changes, the newest first, with each value before; null is the value at the start."""
        changes = live.overrides.history
        return {
            **_state(parts),
            "changes": [_told(live, change) for change in reversed(changes[-limit:])],
            "total": len(changes),
        }

    @api.post(
        "/settings/rollback",
        tags=["settings"],
        responses={**_REFUSED, 404: {"description": "The history has no such change."}},
    )
    async def rollback(request: Request, asked: SettingsRollback) -> dict[str, Any]:
        """Give every setting the value that it had before a change: undo that one, and all after it.

        It is a change like any other, in the history, and can be rolled back itself.
        """
        outcome = live.roll_back(
            asked.change_id,
            actor=request.state.actor,
            comment=asked.comment,
            expected=asked.expected_revision,
            dry_run=asked.dry_run,
        )
        return _answer(parts, request, outcome, dry_run=asked.dry_run)


def _state(parts: AdminParts) -> dict[str, Any]:
    shared = parts.gateway.log.status().connected
    return {
        "replica": parts.gateway.log.replica,
        "revision": parts.live.overrides.digest(),
        "shared": shared,
        "note": None if shared else NOT_SHARED,
        "refused": dict(parts.live.refused),
    }


def _answer(parts: AdminParts, request: Request, outcome: Outcome, *, dry_run: bool) -> dict[str, Any]:
    """Note a change for the audit, and return its JSON."""
    changed = {
        key: {"before": shown(before), "after": shown(after)}
        for key, (before, after) in outcome.values.items()
    }
    note_change(
        request,
        target=", ".join(changed),
        detail={"change_id": outcome.change_id, "changed": changed},
        made=bool(outcome.change_id),
    )
    return {
        **_state(parts),
        "dry_run": dry_run,
        "change_id": outcome.change_id or None,
        "changed": changed,
    }


def _described(live: LiveSettings, key: str, row: Setting) -> dict[str, Any]:
    """Return one setting as JSON."""
    origin, change = live.origin(key), live.overrides.newest.get(key)
    runtime = origin.kind == "runtime"
    return {
        "value": shown(value_of(live.current, key)),
        "started": shown(value_of(live.started, key)),
        "default": shown(row.default),
        "source": origin.kind,
        "place": "" if runtime else origin.place,
        "live": row.live,
        "refused": live.refused.get(key),
        "change": _by(change) if runtime and change is not None else None,
        "allowed": row.allowed,
        "choices": list(row.choices),
        "flag": row.flag,
        "description": row.description,
    }


def _by(change: SettingsChanged) -> dict[str, Any]:
    """Return the author, time and reason of a change."""
    return {
        "change_id": change.change_id,
        "at_unix_s": change.at_us / 1e6,
        "replica": change.replica,
        "actor": change.actor,
        "comment": change.comment,
        "undoes": change.undoes or None,
    }


def _told(live: LiveSettings, change: SettingsChanged) -> dict[str, Any]:
    """Return one change of the history as JSON."""
    before = live.overrides.before(change.change_id) or {}
    return {
        **_by(change),
        "values": {
            key: {"before": _value(before, key), "after": _value(change.values, key)}
            for key in sorted(change.values)
        },
    }


def _value(texts: Mapping[str, str | None], key: str) -> Any:
    """Return an override's value; None without one."""
    text = texts.get(key)
    if text is None:
        return None
    try:
        return orjson.loads(text)
    except ValueError:  # another version wrote it
        return text


def add_policies(api: FastAPI, parts: AdminParts) -> None:
    """Add the route of policies."""

    @api.get("/policies", tags=["settings"])
    async def policies() -> dict[str, Any]:
        """The policies with their options, the decisions that each makes now, and the shadow policy.

        Any of them may choose a worker, or a prefill worker, or a decode worker; change which with
        ``PATCH /settings`` (placement.policy, prefill_policy, decode_policy, policy_options). Under ``own``
        are policies that this replica loaded when it started: time of a decision in microseconds, and whether
        one was switched off. They stay off until the replica restarts.
        """
        return described(parts.live.current.placement) | {"own": parts.own_policies.described()}


def described(placement: PlacementSettings) -> dict[str, Any]:
    """Return the policies as JSON."""
    chosen = {
        "placement": placement.policy,
        "prefill": placement.prefill_policy or placement.policy,
        "decode": placement.decode_policy,
    }
    active = {part: {"policy": name, "options": placement.options_of(name)} for part, name in chosen.items()}
    shadow = placement.shadow_policy
    return {
        "active": active,
        "shadow": {
            "policy": shadow,
            "options": placement.shadow_policy_options,
            "ratio": placement.shadow_ratio,
        }
        if shadow
        else None,
        "policies": [
            {
                "name": name,
                "picks": about(rule.price or rule.costs),
                "uses_cache": rule.uses_cache,
                "counts_seconds": rule.price is not None,
                "decides": [part for part, used in chosen.items() if used == name],
                "options": _options(rule.options),
            }
            for name, rule in POLICIES.items()
        ],
        "decode_only": {
            "name": DECODE_COST,
            "picks": "The decode worker with the least seconds of wait for room, transfer and output.",
            "decides": [part for part, used in chosen.items() if used == DECODE_COST],
        },
    }


def _options(kind: type[Any] | None) -> list[dict[str, Any]]:
    """Return the options of a policy; an infinite greatest value is null."""
    if kind is None:
        return []
    return [
        {
            "name": option.name,
            "default": option.default,
            "low": option.metadata["low"],
            "high": option.metadata["high"] if isfinite(option.metadata["high"]) else None,
        }
        for option in fields(kind)
    ]
