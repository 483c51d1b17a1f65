"""Health, readiness and metrics, for probes and scrapers; and the replicas of this gateway.

Probes and scrapers need no key and get a status and some counts. Names of replicas, settings and hosts are
for operators: for requests with the gateway's own key or an administrator's token, and for all where neither
keys nor tokens are configured.

Replicas' vitals come with heartbeats (`router.shared.vitals`) and are read when asked for, in one round trip.
Without Redis only the asked replica is listed, and the answer says so.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from router.admin.parts import AdminParts
from router.errors import ClientError
from router.fleet import INSTANCE_HEADER, Health, instance_of
from router.proxy import Header
from router.shared import Vitals
from router.tenants import presented_key

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "No requests should be sent here; ``status`` says why.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def add_health(api: FastAPI, parts: AdminParts, *, root: bool = False) -> None:
    """Add the routes of probes; with ``root`` also ``/``, which coding agents and some balancers ask."""
    instance = instance_of(parts.gateway.log.replica)

    @api.get("/liveness", tags=["health"])
    @api.post("/ping", tags=["health"])
    @api.get("/ping", tags=["health"])
    @api.get("/health", tags=["health"])
    async def liveness(response: Response) -> dict[str, str]:
        """The process is alive and its event loop turns.

        The answer says which replica it is, unreadable: a gateway recognises itself among its workers.
        """
        response.headers[INSTANCE_HEADER] = instance
        return {"status": "ok"}

    @api.get("/readiness", tags=["health"], responses=_NOT_READY)
    @api.get("/health_generate", tags=["health"], responses=_NOT_READY)
    async def readiness(request: Request) -> JSONResponse:
        """Readiness of this replica: 200, or 503 without a healthy worker that takes requests.

        Where prefill and decode are apart, that is a pair of one hand-over protocol.

        It is 503, too, once the process was told to end, although it still serves for a while.
        A lost Redis does not make a replica unready; ``shared`` says what is missing. Where there are keys or
        tokens, only the gateway's own key and administrators see names and sentences.
        """
        answer = _readiness(parts, details=_is_operator(parts, request.scope["headers"]))
        return JSONResponse(answer, 200 if answer["status"] == "ready" else 503)

    if root:
        api.add_api_route("/", liveness, methods=["GET", "HEAD"], include_in_schema=False)
    for path in ("/liveness", "/health"):
        api.head(path, include_in_schema=False)(liveness)
    for path in ("/readiness", "/health_generate"):
        api.head(path, include_in_schema=False)(readiness)


def _readiness(parts: AdminParts, *, details: bool) -> dict[str, Any]:
    """Return the answer to readiness probes; names and sentences only for operators."""
    status, degraded = parts.gateway.log.status(), parts.degraded()
    workers = parts.gateway.registry.all()
    healthy = sum(local.health is Health.HEALTHY and not local.worker.draining for local in workers)
    summary = "ready" if healthy else "no_healthy_worker"
    if healthy and not parts.gateway.registry.can_serve:
        summary = "no_pair"
    shared: dict[str, Any] = {
        "warm": status.ready,
        "warming": None if status.warming is None else asdict(status.warming),
        "lag_s": status.lag_s,
        "snapshot_age_s": status.snapshot_age_s,
        "buffered_ops": status.buffered_ops,
        "dropped_ops": status.dropped_ops,
        "skipped_ops": sum(status.skipped_ops.values()),
    }
    answer = {
        "status": "shutting_down" if parts.ending.begun else summary,
        "degraded_count": len(degraded),
        "workers": {"healthy": healthy, "total": len(workers)},
        "shared": shared,
    }
    if details:
        answer |= {
            "replica": parts.gateway.log.replica,
            "version": parts.version,
            "degraded": list(degraded),
            "settings_refused": sorted(parts.live.refused),
        }
        shared |= {"degraded": status.degraded_reason, "replicas": list(status.replicas)}
    return answer


def add_metrics(api: FastAPI, parts: AdminParts, *, moved: bool = False) -> None:
    """Add the route of scrapers; it answers with a pointer if metrics have ``moved`` to their own port."""
    if moved:

        @api.get("/metrics", include_in_schema=False)
        async def elsewhere() -> Response:
            raise ClientError(
                "Metrics have a port of their own here, --prometheus-port.", code="not_found", status=404
            )

        return

    @api.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics, of all processes of this gateway on this host."""
        body, content_type = parts.gateway.metrics.exposition()
        return Response(body, media_type=content_type)


def _is_operator(parts: AdminParts, headers: Sequence[Header]) -> bool:
    """Return True if a request is an operator's, or if the API is open."""
    door, tokens = parts.door, parts.tokens
    key = presented_key(headers)
    if tokens is not None and key is not None and tokens.holder(key) is not None:
        return True
    return tokens is None if door.is_open else door.is_admin(headers)


def add_replicas_view(api: FastAPI, parts: AdminParts) -> None:
    """Add the route."""

    @api.get("/replicas", tags=["replicas"])
    async def replicas() -> dict[str, Any]:
        """The living replicas: version, addresses, lag, the writer of snapshots, degraded parts.

        Counters count from each replica's own start. ``known`` is false for one without vitals here,
        and all else of it is null.
        """
        found = await parts.vitals()
        status = parts.gateway.log.status()
        return {
            "asked": parts.gateway.log.replica,
            "shared": status.connected,
            "degraded": status.degraded_reason,
            "replicas": [_described(parts, replica, vitals) for replica, vitals in found.items()],
            "total": len(found),
        }


def _described(parts: AdminParts, replica: str, vitals: Vitals | None) -> dict[str, Any]:
    if vitals is None:
        unknown = dict.fromkeys(("age_s", *Vitals.__struct_fields__))
        return {"replica": replica, "known": False, **unknown}
    return {
        "replica": replica,
        "known": True,
        "age_s": round(max(parts.now_unix_s() - vitals.at_unix_s, 0.0), 3),
        **msgspec.to_builtins(vitals),
    }
