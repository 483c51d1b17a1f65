"""``/workers``: who serves, in which role, how well; and adding, changing, draining and removing workers.

A change made here is an operation in the shared log, so it holds for all replicas, and outlives the one that
was asked: also the wish to remove a worker once it has drained (`policies.fleet.departures`). While Redis is
gone the answer says ``"shared": false``: the others hear of it later. The older routers' dialect is in
`router.admin.peers`.
"""

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request

from policies import TURNING_LABEL, Forget
from router.admin.audit import note_change
from router.admin.ports import AdminPorts
from router.admin.worker_spec import WorkerChange, WorkerPatch, WorkerSpec
from router.admin.worker_view import Legs, described, progress
from router.errors import ClientError
from router.fleet import LocalWorker, Registry, normal_url, worker_id_of

WorkerId = Annotated[
    str, Path(description="``HOST:PORT``, with a base path if it has one.", examples=["10.0.0.7:30000"])
]


def add_workers(api: FastAPI, ports: AdminPorts) -> None:
    """Add the routes."""

    def found(worker_id: str) -> LocalWorker:
        local = ports.registry.get(worker_id)
        if local is None:
            known = ", ".join(worker.worker.worker_id for worker in ports.registry.all()[:5]) or "none"
            raise ClientError(
                f"There is no worker {worker_id!r}; known: {known}.", code="worker_not_found", status=404
            )
        return local

    @api.post("/workers", status_code=202, tags=["workers"])
    async def add(request: Request, spec: WorkerSpec) -> dict[str, Any]:
        """Add a worker for all replicas; it serves after its first successful health check.

        One that is there already stays as it is: who adds it again does not end somebody's drain.
        """
        note_change(request, target=spec.url, detail=spec.model_dump(exclude_none=True))
        refuse_known(ports.registry, spec.url)
        worker_id = ports.registry.add(
            spec.url,
            role=spec.said_role or "plain",
            capacity_tokens=spec.capacity_tokens or 0,
            labels=spec.labels_over({}),
        )
        return accepted(ports, worker_id) | {
            "url": found(worker_id).worker.url,
            "location": f"/workers/{worker_id}",
        }

    @api.get("/workers", tags=["workers"])
    async def listed() -> dict[str, Any]:
        """All workers with role, site, state, load and cache."""
        legs = Legs(ports)
        workers = [described(ports, local, legs) for local in ports.registry.all()]
        return {"workers": workers, "total": len(workers)}

    @api.post("/workers/{worker_id:path}/drain", status_code=202, tags=["workers"])
    async def drain(request: Request, worker_id: WorkerId) -> dict[str, Any]:
        """Give a worker no new requests, for all replicas; those in flight there finish."""
        local = found(worker_id)
        note_change(request, detail={"inflight_requests": progress(ports, local)["inflight_requests"]})
        _drain(local)
        return accepted(ports, worker_id) | progress(ports, found(worker_id))

    @api.get("/workers/{worker_id:path}/drain", tags=["workers"])
    async def drain_progress(worker_id: WorkerId) -> dict[str, Any]:
        """How far a worker is with draining: what is left, since when, and how long it will take.

        ``expected_s`` is null while nobody has seen how long answers of such workers take.
        """
        return progress(ports, found(worker_id))

    @api.post("/workers/{worker_id:path}/undrain", status_code=202, tags=["workers"])
    async def undrain(worker_id: WorkerId) -> dict[str, Any]:
        """Put a worker back in service, for all replicas; it no longer leaves, if it was to."""
        found(worker_id)
        ports.registry.change(worker_id, draining=False)
        return accepted(ports, worker_id) | progress(ports, found(worker_id))

    @api.post("/workers/{worker_id:path}/forget", status_code=202, tags=["workers"])
    async def forget(request: Request, worker_id: WorkerId) -> dict[str, Any]:
        """Forget what a worker has cached, for all replicas; its engine is not asked to drop anything.

        For an engine whose cache was flushed behind our back. ``POST /flush_cache`` flushes the engines, too.
        """
        local = found(worker_id)
        held_tokens = ports.fleet.tree.held_blocks(local.worker.slot) * ports.fleet.rules.block_tokens
        note_change(request, detail={"held_tokens": held_tokens})
        ports.publish(Forget(worker_id, ports.now_us()))
        return accepted(ports, worker_id) | {"forgotten_tokens": held_tokens}

    def _drain(local: LocalWorker, *, leaving: bool | None = None) -> None:
        """Drain it; if it was turning into another role, it no longer is, so that it stays drained."""
        labels = {name: value for name, value in local.worker.labels.items() if name != TURNING_LABEL}
        ports.registry.change(local.worker.worker_id, draining=True, labels=labels, leaving=leaving)

    @api.get("/workers/{worker_id:path}", tags=["workers"])
    async def one(worker_id: WorkerId) -> dict[str, Any]:
        """One worker."""
        return described(ports, found(worker_id), Legs(ports))

    @api.put("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def change(request: Request, worker_id: WorkerId, change: WorkerChange) -> dict[str, Any]:
        """Change a worker for all replicas: drain it, give it another role, say its capacity, label it."""
        changed(request, worker_id, change)
        return accepted(ports, worker_id)

    @api.patch("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def patch(request: Request, worker_id: WorkerId, change: WorkerPatch) -> dict[str, Any]:
        """Change a worker for all replicas, as PUT does, but leave the labels that are not named."""
        changed(request, worker_id, change)
        return accepted(ports, worker_id)

    def changed(request: Request, worker_id: str, change: WorkerChange) -> None:
        known = found(worker_id).worker
        note_change(request, detail=change.model_dump(exclude_none=True, exclude_unset=True))
        ports.registry.change(
            worker_id,
            role=change.said_role,
            draining=change.draining,
            capacity_tokens=change.capacity_tokens,
            labels=change.labels_over(known.labels),
        )

    @api.delete("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def remove(
        request: Request,
        worker_id: WorkerId,
        drain: Annotated[bool, Query(description="Drain it first, and remove it when it is empty.")] = False,
    ) -> dict[str, Any]:
        """Remove a worker for all replicas; requests in flight there finish.

        With ``drain=true`` it stays, and can be looked at and taken back, until nothing is in flight there.
        Whichever replica lives then removes it, whoever was asked.
        """
        local = found(worker_id)
        note_change(request, detail={"drain": drain})
        if drain:
            _drain(local, leaving=True)
            return accepted(ports, worker_id, "draining") | progress(ports, found(worker_id))
        ports.registry.remove(worker_id)
        return accepted(ports, worker_id)


def refuse_known(registry: Registry, url: str) -> None:
    """Refuse to add a worker that is there.

    Raises:
        ClientError: If it is, or if the URL is none.
    """
    worker_id = worker_id_of(normal_url(url))
    if registry.get(worker_id) is not None:
        raise ClientError(
            f"The worker {worker_id!r} is there already. PATCH /workers/{worker_id} changes it, "
            f"POST /workers/{worker_id}/undrain puts it back in service.",
            code="worker_exists",
            param="url",
            status=409,
        )


def accepted(ports: AdminPorts, worker_id: str, status: str = "accepted") -> dict[str, Any]:
    """The answer to a change. While Redis is gone only the asked replica knows of it."""
    return {"worker_id": worker_id, "status": status, "shared": ports.log_status().connected}
