"""``/workers``: list, add, change, drain and remove workers.

A change is an operation in the shared log, so it holds for all replicas and outlives the asked one, as does
the command to remove a worker once it has drained (`policies.fleet.departures`). While Redis is gone the
answer says ``"shared": false``, and the others apply it later. `router.admin.peers` has the older routers'
dialect.
"""

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request

from policies import Forget
from policies.disaggregation import TURNING_LABEL
from router.admin.audit import note_change
from router.admin.parts import AdminParts
from router.admin.worker_spec import WorkerChange, WorkerPatch, WorkerSpec
from router.admin.worker_view import Legs, described, progress
from router.errors import ClientError
from router.fleet import LocalWorker, Registry, normal_url, worker_id_of
from router.gateway import Gateway

WorkerId = Annotated[
    str, Path(description="``HOST:PORT``, with a base path if it has one.", examples=["10.0.0.7:30000"])
]


def add_workers(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes, those of draining first: ``/workers/{worker_id}`` would match them, too."""
    _add_drains(api, parts.gateway)
    _add_list(api, parts.gateway)
    _add_one(api, parts.gateway)


def _add_drains(api: FastAPI, gateway: Gateway) -> None:
    """Add the routes that drain a worker, undo it, and forget its cache."""
    registry, fleet = gateway.registry, gateway.fleet

    @api.post("/workers/{worker_id:path}/drain", status_code=202, tags=["workers"])
    async def drain(request: Request, worker_id: WorkerId) -> dict[str, Any]:
        """Give a worker no new requests, for all replicas; those in flight there finish."""
        local = found(registry, worker_id)
        note_change(request, detail={"inflight_requests": progress(gateway, local)["inflight_requests"]})
        _drain(registry, local)
        return accepted(gateway, worker_id) | progress(gateway, found(registry, worker_id))

    @api.get("/workers/{worker_id:path}/drain", tags=["workers"])
    async def drain_progress(worker_id: WorkerId) -> dict[str, Any]:
        """Progress of a worker's draining: requests left, its start, and the expected time.

        ``expected_s`` is null until answers of such workers have been timed.
        """
        return progress(gateway, found(registry, worker_id))

    @api.post("/workers/{worker_id:path}/undrain", status_code=202, tags=["workers"])
    async def undrain(worker_id: WorkerId) -> dict[str, Any]:
        """Put a worker back in service, for all replicas; it no longer leaves, if it was to."""
        found(registry, worker_id)
        registry.change(worker_id, draining=False)
        return accepted(gateway, worker_id) | progress(gateway, found(registry, worker_id))

    @api.post("/workers/{worker_id:path}/forget", status_code=202, tags=["workers"])
    async def forget(request: Request, worker_id: WorkerId) -> dict[str, Any]:
        """Forget the cached blocks of a worker, for all replicas; its engine is not asked to drop anything.

        For an engine whose cache was flushed behind our back. ``POST /flush_cache`` flushes the engines, too.
        """
        local = found(registry, worker_id)
        held_tokens = sum(map(fleet.tree.held_blocks, local.slots)) * fleet.rules.block_tokens
        note_change(request, detail={"held_tokens": held_tokens})
        gateway.log.publish(Forget(worker_id, gateway.log.now_us()))
        return accepted(gateway, worker_id) | {"forgotten_tokens": held_tokens}


def _add_list(api: FastAPI, gateway: Gateway) -> None:
    registry = gateway.registry

    @api.post("/workers", status_code=202, tags=["workers"])
    async def add(request: Request, spec: WorkerSpec) -> dict[str, Any]:
        """Add a worker for all replicas; it serves after its first successful health check.

        One that is there already stays as it is: adding it again does not end its drain.
        """
        note_change(request, target=spec.url, detail=spec.model_dump(exclude_none=True))
        refuse_known(registry, spec.url)
        worker_id = registry.add(
            spec.url,
            role=spec.said_role or "plain",
            capacity_tokens=spec.capacity_tokens or 0,
            labels=spec.labels_over({}),
        )
        return accepted(gateway, worker_id) | {
            "url": found(registry, worker_id).worker.url,
            "location": f"/workers/{worker_id}",
        }

    @api.get("/workers", tags=["workers"])
    async def listed() -> dict[str, Any]:
        """All workers with role, site, state, load and cache."""
        legs = Legs(registry)
        workers = [described(gateway, local, legs) for local in registry.all()]
        return {"workers": workers, "total": len(workers)}


def _add_one(api: FastAPI, gateway: Gateway) -> None:
    """Add the routes of one worker."""
    registry = gateway.registry

    @api.get("/workers/{worker_id:path}", tags=["workers"])
    async def one(worker_id: WorkerId) -> dict[str, Any]:
        """One worker."""
        return described(gateway, found(registry, worker_id), Legs(registry))

    @api.put("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def change(request: Request, worker_id: WorkerId, change: WorkerChange) -> dict[str, Any]:
        """Change a worker for all replicas: drain it, give it another role, say its capacity, label it."""
        return changed(request, worker_id, change)

    @api.patch("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def patch(request: Request, worker_id: WorkerId, change: WorkerPatch) -> dict[str, Any]:
        """Change a worker for all replicas, as PUT does, but leave the labels that are not named."""
        return changed(request, worker_id, change)

    def changed(request: Request, worker_id: str, change: WorkerChange) -> dict[str, Any]:
        known = found(registry, worker_id).worker
        note_change(request, detail=change.model_dump(exclude_none=True, exclude_unset=True))
        registry.change(
            worker_id,
            role=change.said_role,
            draining=change.draining,
            capacity_tokens=change.capacity_tokens,
            labels=change.labels_over(known.labels),
        )
        return accepted(gateway, worker_id)

    @api.delete("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def remove(
        request: Request,
        worker_id: WorkerId,
        drain: Annotated[bool, Query(description="Drain it first, and remove it when it is empty.")] = False,
    ) -> dict[str, Any]:
        """Remove a worker for all replicas; requests in flight there finish.

        With ``drain=true`` it stays, and can be looked at and taken back, until nothing is in flight there.
        Any living replica then removes it, not only the one that was asked.
        """
        local = found(registry, worker_id)
        note_change(request, detail={"drain": drain})
        if drain:
            _drain(registry, local, leaving=True)
            return accepted(gateway, worker_id, "draining") | progress(gateway, found(registry, worker_id))
        registry.remove(worker_id)
        return accepted(gateway, worker_id)


def found(registry: Registry, worker_id: str) -> LocalWorker:
    """Return a worker; raise ClientError if the id is unknown."""
    local = registry.get(worker_id)
    if local is None:
        known = ", ".join(worker.worker.worker_id for worker in registry.all()[:5]) or "none"
        raise ClientError(
            f"There is no worker {worker_id!r}; known: {known}.", code="worker_not_found", status=404
        )
    return local


def _drain(registry: Registry, local: LocalWorker, *, leaving: bool | None = None) -> None:
    """Drain a worker; a conversion of its role ends, so that it stays drained."""
    labels = {name: value for name, value in local.worker.labels.items() if name != TURNING_LABEL}
    registry.change(local.worker.worker_id, draining=True, labels=labels, leaving=leaving)


def refuse_known(registry: Registry, url: str) -> None:
    """Refuse to add a worker that exists; raise ClientError if it exists, or the URL is not valid."""
    worker_id = worker_id_of(normal_url(url))
    if registry.get(worker_id) is not None:
        raise ClientError(
            f"The worker {worker_id!r} is there already. PATCH /workers/{worker_id} changes it, "
            f"POST /workers/{worker_id}/undrain puts it back in service.",
            code="worker_exists",
            param="url",
            status=409,
        )


def accepted(gateway: Gateway, worker_id: str, status: str = "accepted") -> dict[str, Any]:
    """The answer to a change. While Redis is gone only the asked replica knows of it."""
    return {"worker_id": worker_id, "status": status, "shared": gateway.log.status().connected}
