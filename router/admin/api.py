"""Everything that is not proxied: health, models, workers, metrics.

Both dialects of the existing routers are spoken: REST ``/workers`` and ``/add_worker``,
``/remove_worker``, ``/list_workers`` (`wire.md` 4). A change made here is an operation in the
shared log, so it holds for all replicas.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import httpx
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from policies import FleetState, Forget, Op
from router.admin.bucket_view import add_bucket_view
from router.admin.encoders import add_encoders
from router.admin.queue_view import QueuePorts, add_queue_view
from router.admin.tenants import add_tenants
from router.errors import (
    ClientError,
    InvalidKey,
    NoWorker,
    Overloaded,
    RouterError,
    UpstreamError,
    error_body,
)
from router.fleet import BucketPlanner, Health, LocalWorker, Registry, normal_url, worker_id_of
from router.gateway.answer import retry_after
from router.metrics import Metrics
from router.shared import LogStatus
from router.tenants import Door, KeysWatch, Limiter

FLUSH_TIMEOUT_S = 10.0
FLUSHES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """What the API may see and do."""

    version: str
    replica: str
    fleet: FleetState
    registry: Registry
    publish: Callable[[Op], None]
    now_us: Callable[[], int]
    log_status: Callable[[], LogStatus]
    request_id_of: Callable[[Sequence[tuple[bytes, bytes]]], bytes]
    door: Door
    keys: KeysWatch | None
    metrics: Metrics
    client: httpx.AsyncClient
    shutting_down: Callable[[], bool]
    queue: QueuePorts
    now_unix_s: Callable[[], float] = time.time
    limiter: Limiter | None = None


class WorkerSpec(BaseModel):
    """A worker to add."""

    model_config = ConfigDict(extra="ignore")  # the peers' clients send more than we use

    url: str = Field(description="Base URL, like http://10.0.0.7:30000.")
    worker_type: Literal["plain", "regular"] = Field(
        default="plain", description="Role; prefill and decode fleets are not available in this version."
    )
    capacity_tokens: int = Field(default=0, ge=0, description="KV capacity in tokens; 0 to ask the engine.")
    labels: dict[str, str] = Field(default_factory=dict, description="Free labels; worker_class prices it.")


class WorkerChange(BaseModel):
    """What to change of a worker; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    draining: bool | None = Field(default=None, description="True: no new requests; False: back in service.")
    capacity_tokens: int | None = Field(default=None, ge=0, description="KV capacity in tokens.")
    labels: dict[str, str] | None = Field(default=None, description="Replaces all labels.")


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
    _workers(api, ports)
    _peers_dialect(api, ports)
    add_tenants(api, ports.keys, ports.limiter, ports.now_unix_s)
    add_queue_view(api, ports.queue)
    add_bucket_view(api, _planner(ports))
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
        shaped = ClientError(f"{where or 'body'}: {first['msg']}", code="invalid_value", param=where or None)
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


def _described(ports: AdminPorts, local: LocalWorker) -> dict[str, Any]:
    worker, loads, slot = local.worker, ports.fleet.loads, local.worker.slot
    now_us, started = ports.now_us(), ports.fleet.started(worker.worker_id)
    circuit = ports.registry.circuits.of(local)
    return {
        "id": worker.worker_id,
        "url": worker.url,
        "role": worker.role,
        "state": local.state,
        "is_healthy": local.health is Health.HEALTHY,
        "detail": local.detail,
        "circuit": ports.registry.circuits.state(local).value,
        "circuit_by": circuit.replica if circuit else None,
        "circuit_wait_s": round(max(0, circuit.until_us - now_us) / 1e6, 3) if circuit else 0.0,
        "share": round(ports.registry.share(local, now_us), 3),
        "started_unix_s": started.started_unix_ms / 1000 if started else None,
        "engine": local.engine or None,
        "models": [served.model_id for served in local.models or ()],
        "labels": worker.labels,
        "capacity_tokens": worker.capacity_tokens,
        "held_tokens": ports.fleet.tree.held_blocks(slot) * ports.fleet.rules.block_tokens,
        "inflight_requests": int(loads.inflight_requests[slot]),
        "inflight_tokens": int(loads.inflight_tokens[slot]),
        "backlog_s": round(loads.backlog_at_s(slot, now_us), 6),
        "connections": {"open": local.pool.open, "idle": local.pool.idle},
    }


def _workers(api: FastAPI, ports: AdminPorts) -> None:
    def found(worker_id: str) -> LocalWorker:
        local = ports.registry.get(worker_id)
        if local is None:
            known = ", ".join(worker.worker.worker_id for worker in ports.registry.all()[:5]) or "none"
            raise ClientError(
                f"There is no worker {worker_id!r}; known: {known}.", code="worker_not_found", status=404
            )
        return local

    @api.post("/workers", status_code=202, tags=["workers"])
    async def add(spec: WorkerSpec) -> dict[str, Any]:
        """Add a worker for all replicas; it serves after its first successful health check."""
        worker_id = ports.registry.add(spec.url, capacity_tokens=spec.capacity_tokens, labels=spec.labels)
        return {
            "worker_id": worker_id,
            "status": "accepted",
            "url": spec.url,
            "location": f"/workers/{worker_id}",
        }

    @api.get("/workers", tags=["workers"])
    async def listed() -> dict[str, Any]:
        """All workers with state, load and cache."""
        workers = [_described(ports, local) for local in ports.registry.all()]
        return {"workers": workers, "total": len(workers)}

    @api.get("/workers/{worker_id:path}", tags=["workers"])
    async def one(worker_id: str) -> dict[str, Any]:
        """One worker."""
        return _described(ports, found(worker_id))

    @api.put("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def change(worker_id: str, change: WorkerChange) -> dict[str, str]:
        """Change a worker for all replicas: drain it, say its capacity, label it."""
        found(worker_id)
        ports.registry.change(
            worker_id,
            draining=change.draining,
            capacity_tokens=change.capacity_tokens,
            labels=change.labels,
        )
        return {"worker_id": worker_id, "status": "accepted"}

    @api.delete("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def remove(worker_id: str) -> dict[str, str]:
        """Remove a worker for all replicas; requests in flight there finish."""
        found(worker_id)
        ports.registry.remove(worker_id)
        return {"worker_id": worker_id, "status": "accepted"}


def _peers_dialect(api: FastAPI, ports: AdminPorts) -> None:
    @api.post("/add_worker", tags=["peers"])
    async def add_worker(url: Annotated[str, Query(description="Base URL.")]) -> dict[str, str]:
        """Add a worker, as the older routers spell it."""
        return {"status": "accepted", "worker_id": ports.registry.add(url)}

    @api.post("/remove_worker", tags=["peers"])
    async def remove_worker(url: Annotated[str, Query(description="Base URL.")]) -> dict[str, str]:
        """Remove a worker, as the older routers spell it."""
        worker_id = worker_id_of(normal_url(url))
        if not ports.registry.remove(worker_id):
            raise ClientError(f"There is no worker at {url}.", code="worker_not_found", status=404)
        return {"status": "accepted", "worker_id": worker_id}

    @api.get("/list_workers", tags=["peers"])
    async def list_workers() -> dict[str, list[str]]:
        """The URLs of all workers."""
        return {"urls": [local.worker.url for local in ports.registry.all()]}

    @api.get("/get_loads", tags=["peers"])
    async def get_loads() -> dict[str, Any]:
        """What each worker has in flight, over all replicas."""
        return {
            "loads": [
                {
                    "worker": local.worker.url,
                    "load": int(ports.fleet.loads.inflight_requests[local.worker.slot]),
                    "tokens": int(ports.fleet.loads.inflight_tokens[local.worker.slot]),
                }
                for local in ports.registry.all()
            ]
        }

    @api.post("/flush_cache", tags=["peers"])
    async def flush_cache() -> JSONResponse:
        """Flush the prefix cache of every worker, and forget what the tree knew of those that did."""
        limit = asyncio.Semaphore(FLUSHES_AT_ONCE)

        async def flush(worker_id: str, url: str) -> str | None:
            async with limit:
                problem = await _flush(ports.client, url)
            if problem is None:
                ports.publish(Forget(worker_id, ports.now_us()))
            return problem

        workers = [local.worker for local in ports.registry.all()]
        problems = await asyncio.gather(*(flush(worker.worker_id, worker.url) for worker in workers))
        outcomes = {worker.worker_id: problem for worker, problem in zip(workers, problems, strict=True)}
        flushed = [worker_id for worker_id, problem in outcomes.items() if problem is None]
        failed = {worker_id: problem for worker_id, problem in outcomes.items() if problem is not None}
        return JSONResponse({"flushed": flushed, "failed": failed}, 502 if failed and not flushed else 200)


async def _flush(client: httpx.AsyncClient, url: str) -> str | None:
    """Flush one worker, SGLang's way, then vLLM's; None or what went wrong."""
    try:
        answer = await client.post(f"{url}/flush_cache", timeout=FLUSH_TIMEOUT_S)
        if answer.status_code == 404:
            answer = await client.post(f"{url}/reset_prefix_cache", timeout=FLUSH_TIMEOUT_S)
    except httpx.HTTPError as error:
        return type(error).__name__
    return None if answer.is_success else f"HTTP {answer.status_code}"
