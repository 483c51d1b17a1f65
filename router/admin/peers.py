"""The older routers' dialect: ``/add_worker``, ``/remove_worker``, ``/list_workers`` and such (`wire.md` 4).

What it changes holds for all replicas, as what `router.admin.workers` does.
"""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

from policies import BOOTSTRAP_PORT_LABEL, Forget
from router.admin.audit import note_change
from router.admin.ports import AdminPorts
from router.admin.worker_spec import PeersType, plain_role
from router.admin.workers import refuse_known
from router.errors import ClientError
from router.fleet import normal_url, worker_id_of

FLUSH_TIMEOUT_S = 10.0
FLUSHES_AT_ONCE = 64


def add_peers(api: FastAPI, ports: AdminPorts) -> None:
    """Add the routes."""

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
        refuse_known(ports.registry, url)
        labels = {} if bootstrap_port is None else {BOOTSTRAP_PORT_LABEL: str(bootstrap_port)}
        worker_id = ports.registry.add(url, role=plain_role(worker_type), labels=labels)
        return {"status": "accepted", "worker_id": worker_id}

    @api.post("/remove_worker", tags=["peers"])
    async def remove_worker(
        request: Request, url: Annotated[str, Query(description="Base URL.")]
    ) -> dict[str, str]:
        """Remove a worker, as the older routers spell it."""
        note_change(request, target=url)
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
    async def flush_cache(request: Request) -> JSONResponse:
        """Flush the prefix cache of every worker, and forget what the tree knew of those that did."""
        limit = asyncio.Semaphore(FLUSHES_AT_ONCE)

        async def flush(worker_id: str, url: str) -> str | None:
            async with limit:
                asked_us = ports.now_us()
                problem = await _flush(ports.client, url)
            if problem is None:
                # What its KV events told since is newer than the flush.
                ports.publish(Forget(worker_id, asked_us))
            return problem

        workers = [local.worker for local in ports.registry.all()]
        problems = await asyncio.gather(*(flush(worker.worker_id, worker.url) for worker in workers))
        outcomes = {worker.worker_id: problem for worker, problem in zip(workers, problems, strict=True)}
        flushed = [worker_id for worker_id, problem in outcomes.items() if problem is None]
        failed = {worker_id: problem for worker_id, problem in outcomes.items() if problem is not None}
        note_change(request, detail={"flushed": len(flushed), "failed": len(failed)})
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
