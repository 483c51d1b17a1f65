"""Health, readiness and metrics: what probes and scrapers ask."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from router.admin.ports import AdminPorts
from router.fleet import INSTANCE_HEADER, Health, instance_of

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "No requests should be sent here; ``status`` says why.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def add_health(api: FastAPI, ports: AdminPorts) -> None:
    """Add the routes."""
    instance = instance_of(ports.replica)

    @api.get("/liveness", tags=["health"])
    @api.get("/health", tags=["health"])
    async def liveness(response: Response) -> dict[str, str]:
        """The process is alive and its event loop turns.

        The answer says which replica it is, unreadable: a gateway recognises itself among its workers.
        """
        response.headers[INSTANCE_HEADER] = instance
        return {"status": "ok"}

    @api.get("/readiness", tags=["health"], responses=_NOT_READY)
    @api.get("/health_generate", tags=["health"], responses=_NOT_READY)
    async def readiness() -> JSONResponse:
        """Whether requests should be sent here: 200, or 503 without a healthy worker that takes them.

        It is 503, too, once the process was told to end, although it still serves for a while.
        A lost Redis does not make a replica unready; ``shared`` says what is missing.
        """
        status = ports.log_status()
        workers = ports.registry.all()
        healthy = sum(local.health is Health.HEALTHY and not local.worker.draining for local in workers)
        summary = "ready" if healthy else "no_healthy_worker"
        if ports.shutting_down():
            summary = "shutting_down"
        return JSONResponse(
            {
                "status": summary,
                "replica": ports.replica,
                "version": ports.version,
                "degraded": list(ports.degraded()),
                "workers": {"healthy": healthy, "total": len(workers)},
                "settings_refused": sorted(ports.settings.live.refused),
                "shared": {
                    "warm": status.ready,
                    "warming": None if status.warming is None else asdict(status.warming),
                    "degraded": status.degraded_reason,
                    "lag_s": status.lag_s,
                    "snapshot_age_s": status.snapshot_age_s,
                    "buffered_ops": status.buffered_ops,
                    "dropped_ops": status.dropped_ops,
                    "skipped_ops": sum(status.skipped_ops.values()),
                    "replicas": list(status.replicas),
                },
            },
            200 if summary == "ready" else 503,
        )

    @api.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics, of all processes of this gateway on this host."""
        body, content_type = ports.metrics.exposition()
        return Response(body, media_type=content_type)
