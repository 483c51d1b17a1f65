"""Everything that is not proxied: health, models, metrics, and the views of the other modules here."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from router.admin.bucket_view import add_bucket_view
from router.admin.encoders import add_encoders
from router.admin.link_view import add_link_view
from router.admin.offload_view import add_offload_view
from router.admin.ports import AdminPorts
from router.admin.queue_view import add_queue_view
from router.admin.role_view import add_role_view
from router.admin.tenants import add_tenants
from router.admin.workers import add_workers
from router.errors import (
    ClientError,
    InvalidKey,
    NoWorker,
    Overloaded,
    RouterError,
    UpstreamError,
    error_body,
)
from router.fleet import BucketPlanner, Health
from router.gateway.answer import retry_after


def make_api(ports: AdminPorts, lifespan: Any = None) -> FastAPI:
    """Build the application."""
    api = FastAPI(
        title="Cacheway",
        version=ports.version,
        summary="A cache-affinity gateway for LLM fleets.",
        lifespan=lifespan,
    )
    _errors(api)
    _authorization(api, ports)
    _health(api, ports)
    _models(api, ports)
    add_workers(api, ports)
    add_tenants(api, ports.keys, ports.limiter, ports.now_unix_s)
    add_queue_view(api, ports.queue)
    add_bucket_view(api, _planner(ports))
    add_link_view(api, ports.links)
    add_offload_view(api, ports.offload)
    add_role_view(api, ports.roles)
    add_encoders(api, ports.registry)
    return api


def _planner(ports: AdminPorts) -> BucketPlanner:
    return BucketPlanner(
        ports.fleet,
        ports.registry,
        ports.publish,
        ports.now_us,
        ports.replica,
        lambda: ports.log_status().replicas,
    )


def _errors(api: FastAPI) -> None:
    """Give every error the OpenAI shape."""

    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, RouterError)
        headers = (
            {"retry-after": retry_after(error.retry_after_s).decode()}
            if isinstance(error, Overloaded)
            else {}
        )
        return Response(error_body(error), error.status, headers, "application/json")

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        message = f"{request.method} {request.url.path}: {error.detail}"
        shaped = ClientError(message, code=code, status=error.status_code)
        return Response(error_body(shaped), error.status_code, error.headers, "application/json")

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        # What is no JSON at all has an offset for a place, which is no parameter.
        where = "" if first["type"] == "json_invalid" else ".".join(str(part) for part in first["loc"][1:])
        own = first["type"] == "value_error"  # a sentence of ours
        message = str(first["ctx"]["error"]) if own else f"{where or 'body'}: {first['msg']}"
        shaped = ClientError(message, code="invalid_value", param=where or None)
        return Response(error_body(shaped), 400, media_type="application/json")

    async def crashed(_: Request, __: Exception) -> Response:
        shaped = RouterError("The gateway failed to serve this request; its log says why.")
        return Response(error_body(shaped), 500, media_type="application/json")

    api.add_exception_handler(Exception, crashed)
    api.add_exception_handler(RouterError, known)
    api.add_exception_handler(HTTPException, http)
    api.add_exception_handler(RequestValidationError, invalid)


def _authorization(api: FastAPI, ports: AdminPorts) -> None:
    """Ask for the key everywhere but where probes and scrapers come; tenants may list models."""
    open_paths = frozenset(("/health", "/liveness", "/readiness", "/metrics"))

    def refused(path: str, headers: Sequence[tuple[bytes, bytes]]) -> ClientError | None:
        if path in open_paths or ports.door.is_admin(headers):
            return None
        if not ports.door.is_tenant(headers):
            return InvalidKey(presented=ports.door.presents_key(headers))
        if path == "/v1/models" or path.startswith("/v1/models/"):
            return None
        return ClientError(
            "This key is a tenant's; the gateway's own is needed here.", code="admin_only", status=403
        )

    @api.middleware("http")
    async def check_key(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        error = refused(request.url.path, request.headers.raw)
        if error is None:
            response = await call_next(request)
        else:
            response = Response(error_body(error), error.status, media_type="application/json")
        # Every answer has these; one that no worker gave says so.
        response.headers["x-request-id"] = ports.request_id_of(request.headers.raw).decode("latin-1")
        response.headers.setdefault("x-cacheway-worker", "none")
        response.headers.setdefault("x-cacheway-cached-tokens", "0")
        return response


def _health(api: FastAPI, ports: AdminPorts) -> None:
    @api.get("/liveness", tags=["health"])
    @api.get("/health", tags=["health"])
    async def liveness() -> dict[str, str]:
        """The process is alive and its event loop turns."""
        return {"status": "ok"}

    @api.get("/readiness", tags=["health"])
    @api.get("/health_generate", tags=["health"])
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
                "workers": {"healthy": healthy, "total": len(workers)},
                "shared": {
                    "warm": status.ready,
                    "warming": None if status.warming is None else asdict(status.warming),
                    "degraded": status.degraded_reason,
                    "lag_s": status.lag_s,
                    "snapshot_age_s": status.snapshot_age_s,
                    "buffered_ops": status.buffered_ops,
                    "dropped_ops": status.dropped_ops,
                    "skipped_ops": status.skipped_ops,
                    "replicas": list(status.replicas),
                },
            },
            200 if summary == "ready" else 503,
        )

    @api.get("/metrics", tags=["health"])
    async def metrics() -> Response:
        """Prometheus metrics, of all processes of this gateway on this host."""
        body, content_type = ports.metrics.exposition()
        return Response(body, media_type=content_type)


def _merged_models(ports: AdminPorts) -> list[dict[str, Any]]:
    """The models of all workers, each once."""
    merged: dict[str, dict[str, Any]] = {}
    for local in ports.registry.all():
        for served in local.models or ():
            entry = merged.setdefault(
                served.model_id,
                {
                    "id": served.model_id,
                    "object": "model",
                    "created": 0,
                    "owned_by": served.owned_by or "cacheway",
                    "max_model_len": served.max_model_len or None,
                    "workers": 0,
                },
            )
            entry["workers"] += 1
            lengths = [n for n in (entry["max_model_len"], served.max_model_len) if n]
            entry["max_model_len"] = min(lengths) if lengths else None
    return [merged[key] for key in sorted(merged)]


def _models(api: FastAPI, ports: AdminPorts) -> None:
    @api.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The models of all workers, each once, with how many workers serve it."""
        return {"object": "list", "data": _merged_models(ports)}

    @api.get("/v1/models/{model:path}", tags=["models"])
    async def one_model(model: str) -> dict[str, Any]:
        """One model."""
        for entry in _merged_models(ports):
            if entry["id"] == model:
                return entry
        raise ClientError(
            f"The model {model!r} is not served here.", code="model_not_found", param="model", status=404
        )

    @api.get("/get_model_info", tags=["models"])
    @api.get("/get_server_info", tags=["models"])
    @api.get("/server_info", tags=["models"])
    async def info(request: Request) -> Response:
        """What a healthy worker says about itself, passed through."""
        for local in ports.registry.all():
            if local.health is Health.HEALTHY:
                try:
                    answer = await ports.client.get(local.worker.url + request.url.path)
                except httpx.HTTPError as error:
                    raise UpstreamError(
                        f"{local.worker.worker_id} did not answer: {type(error).__name__}"
                    ) from error
                return Response(
                    answer.content,
                    answer.status_code,
                    {"x-cacheway-worker": local.worker.worker_id},
                    answer.headers.get("content-type"),
                )
        raise NoWorker("No worker is healthy.", retry_after_s=2.0)
