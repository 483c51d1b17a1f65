"""Encoders that come and go by themselves, as SGLang's ``--encoder-register-urls`` has it.

An encoder registers its URL with every language worker it is told of, each of which runs a small registry
(``disaggregation/encoder_bootstrap_server.py``). Here that is the shared list of workers: it tells one
gateway, and all replicas know.
"""

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from router.errors import ClientError
from router.fleet import Registry, normal_url, worker_id_of


class EncoderUrl(BaseModel):
    """Where an encoder is."""

    model_config = ConfigDict(extra="ignore")

    url: str = Field(min_length=1, description="Base URL, like http://10.0.0.7:30000.")


def add_encoders(api: FastAPI, registry: Registry) -> None:
    """Add the routes."""

    @api.post("/register_encoder_url", tags=["encoders"])
    async def register(encoder: EncoderUrl) -> dict[str, str]:
        """Add an encode worker, for all replicas."""
        return {"status": "accepted", "worker_id": registry.add(encoder.url, role="encode")}

    @api.delete("/unregister_encoder_url", tags=["encoders"])
    async def unregister(encoder: EncoderUrl) -> dict[str, str]:
        """Remove an encode worker, for all replicas."""
        worker_id = worker_id_of(normal_url(encoder.url))
        local = registry.get(worker_id)
        if local is None or local.worker.role != "encode":
            raise ClientError(f"There is no encoder at {encoder.url}.", code="worker_not_found", status=404)
        registry.remove(worker_id)
        return {"status": "accepted", "worker_id": worker_id}

    @api.get("/list_encoder_urls", tags=["encoders"])
    async def listed() -> dict[str, list[str]]:
        """The URLs of all encode workers."""
        return {
            "encoder_urls": [local.worker.url for local in registry.all() if local.worker.role == "encode"]
        }
