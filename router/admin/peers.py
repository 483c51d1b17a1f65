"""Routes in the dialects of other software: older routers' clients, encoders, clients of OpenAI.

    older routers  ``/add_worker``, ``/remove_worker``, ``/list_workers`` and such (`wire.md` 4), which change
                   the fleet for all replicas as `router.admin.workers` does
    encoders       register and leave by themselves, as SGLang's ``--encoder-register-urls`` has it
    models         ``/v1/models``, and what engines say of themselves

An encoder registers its URL with every language worker that it is configured with, each of which runs a small
registry (``disaggregation/encoder_bootstrap_server.py``). Here the registry is the shared list of workers, so
one registration reaches all replicas. Registering never replaces a worker: a known encoder stays as it is,
and at the URL of any other worker it is refused. Only a registered encoder leaves by itself
(`REGISTERED_LABEL`); those of the settings, of operators or of discovery are theirs to remove.
`router.admin.gate` asks for a credential.
"""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from policies import BOOTSTRAP_PORT_LABEL, Forget
from router.admin.audit import note_change
from router.admin.parts import AdminParts
from router.admin.worker_spec import PeersType, plain_role
from router.admin.workers import refuse_known
from router.engines.sources import decoded
from router.errors import ClientError, NoWorker, UpstreamError
from router.fleet import REGISTERED_LABEL, Health, Registry, normal_url, worker_id_of

FLUSH_TIMEOUT_S = 10.0
FLUSHES_AT_ONCE = 64


def add_peers(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes of the older routers."""
    registry, loads = parts.gateway.registry, parts.gateway.fleet.loads

    @api.post("/add_worker", tags=["peers"])
    async def add_worker(
        request: Request,
        url: Annotated[str, Query(description="Base URL.")],
        worker_type: Annotated[PeersType, Query(description="Role; regular is plain.")] = "regular",
        bootstrap_port: Annotated[
            int | None, Query(ge=1, le=65535, description="Of a prefill worker; left out, 8998.")
        ] = None,
    ) -> dict[str, str]:
        """Add a worker, as the older routers spell it."""
        note_change(request, target=url)
        refuse_known(registry, url)
        labels = {} if bootstrap_port is None else {BOOTSTRAP_PORT_LABEL: str(bootstrap_port)}
        worker_id = registry.add(url, role=plain_role(worker_type), labels=labels)
        return {"status": "accepted", "worker_id": worker_id}

    @api.post("/remove_worker", tags=["peers"])
    async def remove_worker(
        request: Request, url: Annotated[str, Query(description="Base URL.")]
    ) -> dict[str, str]:
        """Remove a worker, as the older routers spell it."""
        note_change(request, target=url)
        worker_id = worker_id_of(normal_url(url))
        if not registry.remove(worker_id):
            raise ClientError(f"There is no worker at {url}.", code="worker_not_found", status=404)
        return {"status": "accepted", "worker_id": worker_id}

    @api.get("/list_workers", tags=["peers"])
    async def list_workers() -> dict[str, list[str]]:
        """The URLs of all workers."""
        return {"urls": [local.worker.url for local in registry.all()]}

    @api.get("/get_loads", tags=["peers"])
    async def get_loads() -> dict[str, Any]:
        """What each worker has in flight, over all replicas."""
        return {
            "loads": [
                {
                    "worker": local.worker.url,
                    "load": int(loads.inflight_requests[local.slots].sum()),
                    "tokens": int(loads.inflight_tokens[local.slots].sum()),
                }
                for local in registry.all()
            ]
        }

    @api.post("/flush_cache", tags=["peers"])
    async def flush_cache(request: Request) -> JSONResponse:
        """Flush the prefix cache of every worker, and forget what the tree knew of those that did."""
        outcomes = await _flush_all(parts)
        flushed = [worker_id for worker_id, problem in outcomes.items() if problem is None]
        failed = {worker_id: problem for worker_id, problem in outcomes.items() if problem is not None}
        note_change(request, detail={"flushed": len(flushed), "failed": len(failed)})
        return JSONResponse({"flushed": flushed, "failed": failed}, 502 if failed and not flushed else 200)


async def _flush_all(parts: AdminParts) -> dict[str, str | None]:
    """Flush all workers; return the error of each, or None."""
    limit, log = asyncio.Semaphore(FLUSHES_AT_ONCE), parts.gateway.log

    async def flush(worker_id: str, url: str) -> str | None:
        async with limit:
            asked_us = log.now_us()
            problem = await _flush(parts.client, url)
        if problem is None:
            # What its KV events told since is newer than the flush.
            log.publish(Forget(worker_id, asked_us))
        return problem

    workers = [local.worker for local in parts.gateway.registry.all()]
    problems = await asyncio.gather(*(flush(worker.worker_id, worker.url) for worker in workers))
    return {worker.worker_id: problem for worker, problem in zip(workers, problems, strict=True)}


async def _flush(client: httpx.AsyncClient, url: str) -> str | None:
    """Flush one worker, SGLang's way, then vLLM's; return the error, or None.

    SGLang empties its host memory, too, and vLLM if it is told so. vLLM answers 200 and ``success: false``
    while requests or copies use blocks (0.32 ``entrypoints/serve/dev/cache/api_router.py``); older versions
    answer without a body.
    """
    try:
        answer = await client.post(f"{url}/flush_cache", timeout=FLUSH_TIMEOUT_S)
        if answer.status_code == 404:
            answer = await client.post(
                f"{url}/reset_prefix_cache", params={"reset_external": "true"}, timeout=FLUSH_TIMEOUT_S
            )
    except httpx.HTTPError as error:
        return type(error).__name__
    if not answer.is_success:
        return f"HTTP {answer.status_code}"
    is_flushed = (decoded(answer.content, dict[str, Any]) or {}).get("success", True)
    return None if is_flushed else "its blocks are in use"


class EncoderUrl(BaseModel):
    """Where an encoder is."""

    model_config = ConfigDict(extra="ignore")

    url: str = Field(min_length=1, max_length=2048, description="Base URL, like http://10.0.0.7:30000.")


def add_encoders(api: FastAPI, registry: Registry) -> None:
    """Add the routes of encoders."""

    @api.post("/register_encoder_url", tags=["encoders"])
    async def register(request: Request, encoder: EncoderUrl) -> dict[str, str]:
        """Add an encode worker, for all replicas; an encoder that is there already stays as it is."""
        worker_id = worker_id_of(normal_url(encoder.url))
        local = registry.get(worker_id)
        if local is not None and local.worker.role == "encode":
            note_change(request, target=encoder.url, made=False)
        else:
            note_change(request, target=encoder.url)
            refuse_known(registry, encoder.url)
            registry.add(encoder.url, role="encode", labels={REGISTERED_LABEL: "encoder"})
        return {"status": "accepted", "worker_id": worker_id}

    @api.delete("/unregister_encoder_url", tags=["encoders"])
    async def unregister(request: Request, encoder: EncoderUrl) -> dict[str, str]:
        """Remove an encode worker that registered itself, for all replicas."""
        note_change(request, target=encoder.url)
        worker_id = worker_id_of(normal_url(encoder.url))
        local = registry.get(worker_id)
        if local is None or local.worker.role != "encode":
            raise ClientError(f"There is no encoder at {encoder.url}.", code="worker_not_found", status=404)
        if REGISTERED_LABEL not in local.worker.labels:
            raise ClientError(
                f"The encoder {worker_id!r} did not register itself; DELETE /workers/{worker_id} removes it.",
                code="not_registered",
                status=409,
            )
        registry.remove(worker_id)
        return {"status": "accepted", "worker_id": worker_id}

    @api.get("/list_encoder_urls", tags=["encoders"])
    async def listed() -> dict[str, list[str]]:
        """The URLs of all encode workers."""
        return {
            "encoder_urls": [local.worker.url for local in registry.all() if local.worker.role == "encode"]
        }


def add_models(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes of models."""

    @api.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The models of all workers, each once, with how many workers serve it."""
        return {"object": "list", "data": _merged_models(parts.gateway.registry)}

    @api.get("/v1/models/{model:path}", tags=["models"])
    async def one_model(
        model: Annotated[str, Path(description="Its id, as ``/v1/models`` lists it.")],
    ) -> dict[str, Any]:
        """One model."""
        for entry in _merged_models(parts.gateway.registry):
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
        for local in parts.gateway.registry.all():
            if local.health is Health.HEALTHY:
                try:
                    answer = await parts.client.get(local.worker.url + request.url.path)
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


def _merged_models(registry: Registry) -> list[dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for local in registry.all():
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
