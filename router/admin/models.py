"""``/v1/models`` and what engines say of themselves: what clients ask beside what is proxied."""

from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Path, Request, Response

from router.admin.ports import AdminPorts
from router.errors import ClientError, NoWorker, UpstreamError
from router.fleet import Health


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


def add_models(api: FastAPI, ports: AdminPorts) -> None:
    """Add the routes."""

    @api.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The models of all workers, each once, with how many workers serve it."""
        return {"object": "list", "data": _merged_models(ports)}

    @api.get("/v1/models/{model:path}", tags=["models"])
    async def one_model(
        model: Annotated[str, Path(description="Its id, as ``/v1/models`` lists it.")],
    ) -> dict[str, Any]:
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
