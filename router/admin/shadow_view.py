"""``GET /shadow``: what a second policy would have chosen (`policies.observing.shadow`).

Of this replica, since its start or since the shadow was last changed.
"""

from typing import Any

from fastapi import FastAPI

from policies import Comparison, Shadow
from router.gateway import Gateway

SHARES = (0.1, 0.5, 0.9)

_DOCS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Agreement and predicted differences, shadow less active.",
            "content": {
                "application/json": {
                    "example": {
                        "replica": "gateway-1",
                        "enabled": True,
                        "active_policy": "expected_cost",
                        "shadow_policy": "least_load",
                        "ratio": 0.1,
                        "models": {
                            "m": {
                                "judged": 1200,
                                "agreement_ratio": 0.41,
                                "ttft_s": {"mean": 0.31, "p10": -0.01, "p50": 0.2, "p90": 0.9},
                                "cached_tokens": {"mean": -2100.0, "p10": -8192, "p50": 0, "p90": 0},
                                "unplaced": 0,
                            }
                        },
                    }
                }
            },
        }
    }
}


def add_shadow_view(api: FastAPI, gateway: Gateway) -> None:
    """Serve the view."""

    @api.get("/shadow", tags=["decisions"], **_DOCS)
    async def shadow() -> dict[str, Any]:
        """How often a second policy would choose the same worker, and what its choices would change.

        Differences are those of the shadow less those of the active policy, in predicted seconds to the
        first token and in predicted cached tokens, both by the same model of the fleet as it is. What other
        choices would have made of the fleet is not in them.
        """
        watching, decider = gateway.placing.decider.shadow, gateway.placing.decider
        if not isinstance(watching, Shadow):
            return {"replica": gateway.log.replica, "enabled": False, "active_policy": decider.policy.name}
        return {
            "replica": gateway.log.replica,
            "enabled": True,
            "active_policy": decider.policy.name,
            "shadow_policy": watching.policy.name,
            "ratio": watching.ratio,
            "models": {model: described(found) for model, found in sorted(watching.models.items())},
        }


def described(found: Comparison) -> dict[str, Any]:
    """What is said of one model."""
    seconds, tokens = found.quantiles(SHARES)
    judged = max(found.judged, 1)
    names = [f"p{share:.0%}".rstrip("%") for share in SHARES]
    return {
        "judged": found.judged,
        "agreement_ratio": round(found.agreed / judged, 4) if found.judged else None,
        "ttft_s": {
            "mean": round(found.ttft_s / judged, 6),
            **{name: round(value, 6) for name, value in zip(names, seconds, strict=True)},
        },
        "cached_tokens": {
            "mean": round(found.cached_tokens / judged, 1),
            **{name: round(value) for name, value in zip(names, tokens, strict=True)},
        },
        "unplaced": found.unplaced,
    }
