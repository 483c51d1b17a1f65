"""``GET /policies``: which policies there are, what each picks and takes, and which of them decide now."""

from collections.abc import Callable
from dataclasses import fields
from math import isfinite
from typing import Any

from fastapi import FastAPI

from policies import DECODE_COST, POLICIES
from router.reference import about
from router.settings import PlacementSettings, Settings


def add_policies(api: FastAPI, settings: Callable[[], Settings]) -> None:
    """Add the route.

    Args:
        api: The application.
        settings: As they are now.
    """

    @api.get("/policies", tags=["settings"])
    async def policies() -> dict[str, Any]:
        """The policies with their options, what each decides now, and which one only watches (shadow).

        Any of them may choose a worker, or a prefill worker, or a decode worker; change which with
        ``PATCH /settings`` (placement.policy, prefill_policy, decode_policy, policy_options).
        """
        return described(settings().placement)


def described(placement: PlacementSettings) -> dict[str, Any]:
    """The whole answer."""
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
            "picks": "The decode worker where wait for room, transfer and output cost the least seconds.",
            "decides": [part for part, used in chosen.items() if used == DECODE_COST],
        },
    }


def _options(kind: type[Any] | None) -> list[dict[str, Any]]:
    """The options of a policy; without a greatest value that is null."""
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
