"""``GET /decisions`` and ``GET /shadow``: newest decisions, and the shadow policy's choices.

Every ended request is listed, also those that were rejected before a worker was chosen. The ring holds no
prompts and no keys (`router.gateway.recent_decisions`).
"""

from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Response

from policies import Reason
from policies.disaggregation import OffloadVerdict
from policies.observing import Comparison, Shadow
from router.admin.parts import AdminParts
from router.explaining import REASONS, explained
from router.gateway.recent_decisions import RecentDecision

LIMIT_MAX = 500

SHARES = (0.1, 0.5, 0.9)
"""Quantiles of the differences that a second policy would have made."""

_DOCS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The newest decisions, the newest first.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["cursor", "decisions"],
                        "properties": {
                            "cursor": {"type": "integer"},
                            "decisions": {"type": "array", "items": {"type": "object"}},
                        },
                    },
                    "example": {
                        "replica": "gateway-1",
                        "cursor": 812,
                        "decisions": [
                            {
                                "number": 812,
                                "ended_unix_s": 1795302000.123,
                                "request_id": "mine-1",
                                "worker_request_id": "req-0f3c1f0f6d5f4b6e8b0a9d7c5e4f3a21",
                                "outcome": "completed",
                                "status": 200,
                                "worker": "10.0.0.7:30000",
                                "reason": "only",
                                "why": "10.0.0.7:30000 is the only candidate",
                            }
                        ],
                    },
                }
            },
        }
    }
}


_SHADOW_DOCS: dict[str, Any] = {
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


def add_decisions_view(api: FastAPI, parts: AdminParts) -> None:
    """Serve the views."""
    gateway = parts.gateway

    @api.get("/decisions", tags=["decisions"], **_DOCS)
    async def decisions(
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Most that are listed.")] = 100,
        after: Annotated[int, Query(ge=0, le=1 << 53, description="Only later ones than this cursor.")] = 0,
        worker: Annotated[str, Query(max_length=256, description="Only of this worker.")] = "",
        model: Annotated[str, Query(max_length=256, description="Only of this model.")] = "",
        outcome: Annotated[str, Query(max_length=64, description="completed, or the code of an error.")] = "",
        tenant: Annotated[str, Query(max_length=64, description="Only of this tenant.")] = "",
        request_id: Annotated[
            str, Query(max_length=256, description="Only of this id, the client's or ours.")
        ] = "",
    ) -> Response:
        """The newest decisions of this replica, the newest first, with their reasons and how they went."""
        newest, missed = gateway.reports.decisions.latest(after)
        found: list[dict[str, Any]] = []
        for decision in newest:
            if (
                (not worker or worker in _workers(decision))
                and (not model or model == decision.model)
                and (not outcome or outcome == decision.outcome)
                and (not tenant or tenant == decision.tenant.name)
                and (not request_id or request_id in _ids(decision))
            ):
                found.append(described(decision))
                if len(found) >= limit:
                    break
        answer = {
            "replica": gateway.log.replica,
            "cursor": gateway.reports.decisions.cursor,
            "forgotten": missed,
            "decisions": found,
        }
        return Response(orjson.dumps(answer), media_type="application/json")

    @api.get("/shadow", tags=["decisions"], **_SHADOW_DOCS)
    async def shadow() -> dict[str, Any]:
        """Agreement of a second policy with the active one, and the predicted effect of its choices.

        Differences are those of the shadow less those of the active policy, in predicted seconds to the
        first token and in predicted cached tokens, both by the same model of the fleet as it is. They leave
        out how other choices would have changed the fleet.
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
            "models": {model: compared(found) for model, found in sorted(watching.models.items())},
        }


def _workers(decision: RecentDecision) -> tuple[str, ...]:
    attempt = decision.attempt
    return () if attempt is None else (attempt.worker_id, decision.decode_worker)


def _ids(decision: RecentDecision) -> tuple[str, str]:
    return decision.request_id.decode("latin-1"), decision.worker_request_id.decode("latin-1")


def prompt_tokens_of(decision: RecentDecision) -> float | None:
    """Return the length of a prompt: as reported, or as estimated; None if it was never placed."""
    if decision.usage is not None:
        return decision.usage.prompt_tokens
    chosen = None if decision.attempt is None else decision.attempt.chosen
    return None if chosen is None else chosen.safe_tokens + chosen.uncached_tokens


def described(decision: RecentDecision) -> dict[str, Any]:
    """Return one decision as JSON, for the route and for the console."""
    attempt, usage, offload = decision.attempt, decision.usage, decision.offload
    chosen = None if attempt is None else attempt.chosen
    answered_s = decision.answered_s
    return {
        "number": decision.number,
        "ended_unix_s": round(decision.ended_us / 1e6, 3),
        "request_id": decision.request_id.decode("latin-1"),
        "worker_request_id": decision.worker_request_id.decode("latin-1"),
        "endpoint": decision.endpoint.value if decision.endpoint is not None else None,
        "model": decision.model or None,
        "model_choice": decision.model_choice,
        "tenant": decision.tenant.name or None,
        "session": (decision.parsed and decision.parsed.session) or None,
        "prefix": f"{decision.prefix_key:016x}" if decision.prefix_key else None,
        "outcome": decision.outcome,
        "status": decision.status,
        "detail": decision.detail or None,
        "worker": attempt.worker_id if attempt is not None else None,
        "decode_worker": decision.decode_worker or None,
        "reason": chosen.reason if chosen is not None else None,
        "why": f"{attempt.worker_id} {REASONS[Reason(attempt.chosen.reason)]}"
        if attempt is not None
        else None,
        "side": explained(offload) if isinstance(offload, OffloadVerdict) else None,
        "attempts": decision.attempts,
        "continued": decision.continued,
        "prompt_tokens": prompt_tokens_of(decision),
        "matched_tokens": chosen.matched_tokens if chosen is not None else None,
        "predicted_cached_tokens": chosen.safe_tokens if chosen is not None else None,
        "reported_cached_tokens": usage.cached_tokens if usage is not None else None,
        "wait_s": round(decision.wait_s, 6),
        "predicted_ttft_s": round(chosen.estimated_ttft_s, 6) if chosen is not None else None,
        "ttft_s": round(answered_s - attempt.started_s, 6)
        if attempt is not None and attempt.started_s and answered_s and not decision.continued
        else None,
        "ttft_since_arrival_s": round(answered_s - decision.received_s, 6) if answered_s else None,
        "duration_s": round(decision.ended_s - decision.received_s, 6),
    }


def compared(found: Comparison) -> dict[str, Any]:
    """Return the comparison for one model as JSON."""
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
