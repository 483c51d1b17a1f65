"""Encoders that come and go by themselves, as SGLang's ``--encoder-register-urls`` has it.

An encoder registers its URL with every language worker it is told of, each of which runs a small registry
(``disaggregation/encoder_bootstrap_server.py``). Here that is the shared list of workers: it tells one
gateway, and all replicas know.

Registering never replaces a worker. An encoder that is known, wherever from, stays as it is; at the URL of
any other worker it is refused. Only an encoder that came by registering leaves by it (`REGISTERED_LABEL`):
one that the settings, an administrator or discovery named is theirs to remove. `router.admin.gate` asks for a
credential.
"""

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from router.admin.audit import note_change
from router.admin.workers import refuse_known
from router.errors import ClientError
from router.fleet import REGISTERED_LABEL, Registry, normal_url, worker_id_of


class EncoderUrl(BaseModel):
    """Where an encoder is."""

    model_config = ConfigDict(extra="ignore")

    url: str = Field(min_length=1, max_length=2048, description="Base URL, like http://10.0.0.7:30000.")


def add_encoders(api: FastAPI, registry: Registry) -> None:
    """Add the routes."""

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
