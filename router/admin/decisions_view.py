"""``GET /decisions``: what this replica decided lately, why, and how it went.

Every request that ended is there, also those that were rejected before anybody was chosen. In the ring are
no prompts and no keys (`router.gateway.recent_decisions`).
"""

from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Response

from policies import Reason
from router.gateway import Gateway
from router.gateway.plain_words import REASONS, explained
from router.gateway.recent_decisions import RecentDecision

LIMIT_MAX = 500

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


def add_decisions_view(api: FastAPI, gateway: Gateway) -> None:
    """Serve the view."""

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
        kept, missed = gateway.reports.decisions.since(after)
        found: list[dict[str, Any]] = []
        for decision in reversed(kept):
            if len(found) >= limit:
                break
            if (
                (not worker or worker in _workers(decision))
                and (not model or model == decision.model)
                and (not outcome or outcome == decision.outcome)
                and (not tenant or tenant == decision.tenant)
                and (not request_id or request_id in _ids(decision))
            ):
                found.append(described(decision))
        said = {
            "replica": gateway.log.replica,
            "cursor": gateway.reports.decisions.cursor,
            "forgotten": missed,
            "decisions": found,
        }
        return Response(orjson.dumps(said), media_type="application/json")


def _workers(decision: RecentDecision) -> tuple[str, ...]:
    attempt = decision.attempt
    return () if attempt is None else (attempt.worker_id, decision.decode_worker)


def _ids(decision: RecentDecision) -> tuple[str, str]:
    return decision.request_id.decode("latin-1"), decision.worker_request_id.decode("latin-1")


def described(decision: RecentDecision) -> dict[str, Any]:
    """What is said of one, for people and for the console."""
    attempt, usage, offload = decision.attempt, decision.usage, decision.offload
    chosen = None if attempt is None else attempt.chosen
    first_byte = decision.first_byte_s > 0
    return {
        "number": decision.number,
        "ended_unix_s": round(decision.ended_us / 1e6, 3),
        "request_id": decision.request_id.decode("latin-1"),
        "worker_request_id": decision.worker_request_id.decode("latin-1"),
        "endpoint": decision.endpoint.value if decision.endpoint is not None else None,
        "model": decision.model or None,
        "tenant": decision.tenant or None,
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
        "side": explained(offload) if offload is not None else None,
        "attempts": decision.attempts,
        "prompt_tokens": usage.prompt_tokens
        if usage is not None
        else chosen.safe_tokens + chosen.uncached_tokens
        if chosen is not None
        else None,
        "matched_tokens": chosen.matched_tokens if chosen is not None else None,
        "predicted_cached_tokens": chosen.safe_tokens if chosen is not None else None,
        "reported_cached_tokens": usage.cached_tokens if usage is not None else None,
        "wait_s": round(decision.wait_s, 6),
        "predicted_ttft_s": round(chosen.estimated_ttft_s, 6) if chosen is not None else None,
        "ttft_s": round(decision.first_byte_s - attempt.started_s, 6)
        if attempt is not None and first_byte
        else None,
        "ttft_since_arrival_s": round(decision.first_byte_s - decision.received_s, 6) if first_byte else None,
        "duration_s": round(decision.ended_s - decision.received_s, 6),
    }
