"""Routes in the dialects of other software: older routers' clients, encoders, clients of OpenAI.

    older routers  ``/add_worker``, ``/remove_worker``, ``/list_workers`` and such (`wire.md` 4), which change
                   the fleet for all replicas as `router.admin.workers` does
    encoders       register and leave by themselves, as SGLang's ``--encoder-register-urls`` has it
    models         ``/v1/models``, and engines' descriptions of themselves

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
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from policies import BOOTSTRAP_PORT_LABEL
from router.admin.audit import note_change
from router.admin.parts import AdminParts
from router.admin.worker_spec import PeersType, plain_role
from router.admin.workers import refuse_known
from router.errors import ClientError, NoWorker, UpstreamError
from router.fleet import REGISTERED_LABEL, Health, Registry, normal_url, worker_id_of
from router.model_rules import ModelRules
from router.models import Aliases

START_POLL_S = 0.02
"""Time between two looks at a worker that starts; its probes are those of `router.fleet.health`."""


_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "A sentence."}
}


def add_peers(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes of the older routers."""
    registry, loads = parts.gateway.registry, parts.gateway.fleet.loads

    @api.post("/add_worker", tags=["peers"], responses=_TEXT)
    async def add_worker(
        request: Request,
        url: Annotated[str, Query(description="Base URL.")],
        worker_type: Annotated[PeersType, Query(description="Role; regular is plain.")] = "regular",
        bootstrap_port: Annotated[
            int | None, Query(ge=1, le=65535, description="Of a prefill worker; left out, 8998.")
        ] = None,
    ) -> Response:
        """Add a worker, as the older routers spell it, and answer when it can take requests.

        400 if it is there already, or does not answer its health check within
        ``fleet.worker_startup_timeout_s``: then it is not added.
        """
        note_change(request, target=url)
        worker_id = worker_id_of(normal_url(url))
        if registry.get(worker_id) is not None:
            raise ClientError(f"Worker {url} already exists.", code="worker_exists", param="url")
        labels = {} if bootstrap_port is None else {BOOTSTRAP_PORT_LABEL: str(bootstrap_port)}
        registry.add(url, role=plain_role(worker_type), labels=labels)
        await _started(registry, worker_id)
        return PlainTextResponse(f"Successfully added worker: {url}")

    @api.post("/remove_worker", tags=["peers"], responses=_TEXT)
    async def remove_worker(
        request: Request, url: Annotated[str, Query(description="Base URL.")]
    ) -> Response:
        """Remove a worker, as the older routers spell it; one that is not there is removed as well."""
        note_change(request, target=url, made=registry.remove(worker_id_of(normal_url(url))))
        return PlainTextResponse(f"Successfully removed worker: {url}")

    @api.get("/list_workers", tags=["peers"])
    async def list_workers() -> dict[str, list[str]]:
        """The URLs of all workers."""
        return {"urls": [local.worker.url for local in registry.all()]}

    @api.get("/get_loads", tags=["peers"])
    async def get_loads() -> dict[str, Any]:
        """Load in flight at each worker, over all replicas."""
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


async def _started(registry: Registry, worker_id: str) -> None:
    """Wait until a new worker is healthy; take it away and raise ClientError if it is not in time."""
    timeout_s = registry.rules.worker_startup_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            while (  # noqa: ASYNC110 - workers come and go
                local := registry.get(worker_id)
            ) is not None and local.health is not Health.HEALTHY:
                await asyncio.sleep(START_POLL_S)
    except TimeoutError:
        registry.remove(worker_id)
        assert local is not None
        raise ClientError(
            f"Worker {worker_id} was not healthy within {timeout_s:g} s, and is not added: {local.detail}.",
            code="worker_not_healthy",
            param="url",
        ) from None
    if local is None:
        raise ClientError(f"Worker {worker_id} was removed meanwhile.", code="worker_not_found", param="url")


class EncoderUrl(BaseModel):
    """Address of an encoder."""

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
    registry = parts.gateway.registry

    @api.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The models of all workers, each once, with how many workers serve it."""
        return {"object": "list", "data": with_aliases(_merged_models(registry), parts.live.current.models)}

    @api.get("/v1/models/{model:path}", tags=["models"])
    async def one_model(
        model: Annotated[str, Path(description="Its id, as ``/v1/models`` lists it.")],
    ) -> dict[str, Any]:
        """One model."""
        rules, entries = parts.live.current.models, _merged_models(registry)
        resolved = Aliases(rules.aliases, registry.lists).resolve(model)
        for entry in entries:
            if entry["id"] == resolved.model:
                return {**entry, "id": model, "root": resolved.model} if resolved.alias else entry
        raise ClientError(
            f"The model {model!r} is not served here.", code="model_not_found", param="model", status=404
        )

    @api.get("/get_model_info", tags=["models"])
    @api.get("/get_server_info", tags=["models"])
    @api.get("/server_info", tags=["models"])
    async def info(request: Request) -> Response:
        """Description that a healthy worker gives of itself, passed through."""
        for local in registry.all():
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


def with_aliases(entries: list[dict[str, Any]], rules: ModelRules) -> list[dict[str, Any]]:
    """Return the models with their aliases and the adapters that are not loaded, in order.

    An alias has the name of its model as ``root``, an adapter that of its base as ``parent``.
    """
    if not (rules.adapters or (rules.aliases and rules.list_aliases)):
        return entries
    found = {entry["id"]: entry for entry in entries}
    for name, adapter in rules.adapters.items():
        if name not in found and adapter.base in found:
            found[name] = {**found[adapter.base], "id": name, "parent": adapter.base, "workers": 0}
    if not rules.list_aliases:
        return [found[name] for name in sorted(found)]
    exact = Aliases(rules.aliases, lambda _: False).listed()
    aliases = {
        alias: {**found[model], "id": alias, "root": model}
        for alias, model in exact.items()
        if model in found
    }
    merged = found | aliases
    return [merged[name] for name in sorted(merged)]


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
