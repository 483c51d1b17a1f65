"""Health, readiness and metrics: what probes and scrapers ask.

All of it is answered without a key. A probe needs a status and some counts; names of replicas, settings and
hosts are for operators: for whoever presents the gateway's own key or an administrator's token, and for all
where neither keys nor tokens are configured.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from router.admin.ports import AdminPorts
from router.errors import ClientError
from router.fleet import INSTANCE_HEADER, Health, instance_of
from router.proxy import Header
from router.tenants import presented_key

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "No requests should be sent here; ``status`` says why.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def add_health(api: FastAPI, ports: AdminPorts, *, with_metrics: bool) -> None:
    """Add the routes.

    Args:
        api: Gets them.
        ports: What is asked.
        with_metrics: Whether metrics are among them, and not on a port of their own only.
    """
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
    async def readiness(request: Request) -> JSONResponse:
        """Whether requests should be sent here: 200, or 503 without a healthy worker that takes them.

        It is 503, too, once the process was told to end, although it still serves for a while.
        A lost Redis does not make a replica unready; ``shared`` says what is missing. Where there are keys or
        tokens, names and sentences are only told to the gateway's own key and to administrators.
        """
        status = ports.log_status()
        workers = ports.registry.all()
        healthy = sum(local.health is Health.HEALTHY and not local.worker.draining for local in workers)
        summary = "ready" if healthy else "no_healthy_worker"
        if ports.shutting_down():
            summary = "shutting_down"
        degraded = ports.degraded()
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
            "status": summary,
            "degraded_count": len(degraded),
            "workers": {"healthy": healthy, "total": len(workers)},
            "shared": shared,
        }
        if _is_operator(ports, request.scope["headers"]):
            answer |= {
                "replica": ports.replica,
                "version": ports.version,
                "degraded": list(degraded),
                "settings_refused": sorted(ports.settings.live.refused),
            }
            shared |= {"degraded": status.degraded_reason, "replicas": list(status.replicas)}
        return JSONResponse(answer, 200 if summary == "ready" else 503)

    if not with_metrics:

        @api.get("/metrics", include_in_schema=False)
        async def moved() -> Response:
            raise ClientError(
                "Metrics have a port of their own here, --prometheus-port.", code="not_found", status=404
            )

        return

    @api.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics, of all processes of this gateway on this host."""
        body, content_type = ports.metrics.exposition()
        return Response(body, media_type=content_type)


def _is_operator(ports: AdminPorts, headers: Sequence[Header]) -> bool:
    """Whether a request is an operator's, or everybody is one."""
    door, tokens = ports.door, ports.tokens
    key = presented_key(headers)
    if tokens is not None and key is not None and tokens.holder(key) is not None:
        return True
    return tokens is None if door.is_open else door.is_admin(headers)
