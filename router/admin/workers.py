"""``/workers``: who serves, in which role, how well; and adding, changing and removing workers.

Both dialects of the existing routers are spoken: REST ``/workers`` and ``/add_worker``, ``/remove_worker``,
``/list_workers`` (`wire.md` 4). A change made here is an operation in the shared log, so it holds for all
replicas. What is said of a worker beside its role is kept as labels; those that the gateway reads itself may
also be given as fields of their own.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import httpx
from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from policies import (
    BOOTSTRAP_HOST_LABEL,
    BOOTSTRAP_PORT_LABEL,
    CONVERTIBLE_LABEL,
    DP_SIZE_LABEL,
    HANDOVER_LABEL,
    SITE_LABEL,
    Forget,
)
from router.admin.ports import AdminPorts
from router.errors import ClientError
from router.fleet import Health, LocalWorker, normal_url, worker_id_of
from router.handover.bootstrap import bootstrap_of
from router.named_workers import check_labels

FLUSH_TIMEOUT_S = 10.0
FLUSHES_AT_ONCE = 64

Role = Literal["plain", "prefill", "decode", "encode"]
PeersType = Literal["plain", "regular", "prefill", "decode", "encode"]

_OTHER_LEG = {"prefill": "decode", "decode": "prefill"}

_FIELDS = {
    "site": SITE_LABEL,
    "handover": HANDOVER_LABEL,
    "bootstrap_host": BOOTSTRAP_HOST_LABEL,
    "bootstrap_port": BOOTSTRAP_PORT_LABEL,
    "convertible": CONVERTIBLE_LABEL,
    "dp_size": DP_SIZE_LABEL,
}
"""Labels that have fields of their own."""


class _Said(BaseModel):
    """What may be said of a worker, when it is added and later."""

    role: Role | None = Field(
        default=None, description="plain serves whole requests; prefill and decode share them."
    )
    worker_type: PeersType | None = Field(
        default=None, description="The same, as the older routers call it; regular is plain."
    )
    capacity_tokens: int | None = Field(
        default=None, ge=0, description="KV capacity in tokens; 0 to ask the engine."
    )
    labels: dict[str, str] | None = Field(
        default=None, description="Free labels; worker_class prices it. They replace all that it had."
    )
    site: str | None = Field(
        default=None, description="Where it stands; left out, where this gateway stands."
    )
    handover: Literal["sglang", "nixl", "mooncake"] | None = Field(
        default=None, description="How it hands KV over or takes it; left out, as its engine does by default."
    )
    bootstrap_host: str | None = Field(
        default=None,
        min_length=1,
        description="Host where decode workers find this prefill worker; left out, that of its URL.",
    )
    bootstrap_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of its bootstrap server; left out, what it says or 8998.",
    )
    convertible: bool | None = Field(
        default=None, description="Whether the slow loop may change its role (see roles.mode)."
    )
    dp_size: int | None = Field(default=None, ge=1, le=4096, description="SGLang: its data-parallel ranks.")

    @model_validator(mode="after")
    def _role_and_labels_are_sound(self) -> Self:
        if self.role and self.worker_type and self.role != _role(self.worker_type):
            raise ValueError(f"role {self.role} and worker_type {self.worker_type} differ; give one of them")
        check_labels(self.labels_over({}))
        return self

    @property
    def said_role(self) -> Role | None:
        """The role, in either word; None if nothing was said."""
        return self.role or (_role(self.worker_type) if self.worker_type else None)

    def labels_over(self, known: Mapping[str, str]) -> dict[str, str]:
        """All labels, where it had ``known`` ones."""
        labels = dict(known if self.labels is None else self.labels)
        for name, label in _FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                labels[label] = str(value).lower() if isinstance(value, bool) else str(value)
        return labels


class WorkerSpec(_Said):
    """A worker to add."""

    model_config = ConfigDict(extra="ignore")  # the peers' clients send more than we use

    url: str = Field(description="Base URL, like http://10.0.0.7:30000.")


class WorkerChange(_Said):
    """What to change of a worker; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    draining: bool | None = Field(default=None, description="True: no new requests; False: back in service.")


def _role(peers_type: PeersType) -> Role:
    return "plain" if peers_type == "regular" else peers_type


def add_workers(api: FastAPI, ports: AdminPorts) -> None:
    """Serve both dialects."""
    _rest(api, ports)
    _older(api, ports)


class _Legs:
    """How many workers there are of each role and protocol, for a look at who can work with whom."""

    def __init__(self, ports: AdminPorts) -> None:
        self._all: Counter[tuple[str, str]] = Counter()
        self._ready: Counter[tuple[str, str]] = Counter()
        for local in ports.registry.all():
            kind = local.worker.role, local.protocol
            self._all[kind] += 1
            self._ready[kind] += local.health is Health.HEALTHY and not local.worker.draining

    def partners(self, local: LocalWorker) -> dict[str, int] | None:
        """Of a prefill or decode worker: how many could take the other half of its requests."""
        role = _OTHER_LEG.get(local.worker.role)
        if role is None:
            return None
        kind = role, local.protocol
        return {"ready": self._ready[kind], "total": self._all[kind]}


def _described(ports: AdminPorts, local: LocalWorker, legs: _Legs) -> dict[str, Any]:
    worker, loads, slot = local.worker, ports.fleet.loads, local.worker.slot
    now_us, started = ports.now_us(), ports.fleet.started(worker.worker_id)
    circuit = ports.registry.circuits.of(local)
    return {
        "id": worker.worker_id,
        "url": worker.url,
        "role": worker.role,
        "worker_type": "regular" if worker.role == "plain" else worker.role,
        "site": local.site or None,
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
        **_part(local, legs),
        "capacity_tokens": worker.capacity_tokens,
        "held_tokens": ports.fleet.tree.held_blocks(slot) * ports.fleet.rules.block_tokens,
        "inflight_requests": int(loads.inflight_requests[slot]),
        "inflight_tokens": int(loads.inflight_tokens[slot]),
        "backlog_s": round(loads.backlog_at_s(slot, now_us), 6),
        "connections": {"open": local.pool.open, "idle": local.pool.idle},
    }


def _part(local: LocalWorker, legs: _Legs) -> dict[str, Any]:
    """What part a worker has in prefill and decode; None for what it does not."""
    leg, labels = local.worker.role in _OTHER_LEG, local.worker.labels
    listens = local.worker.role == "prefill" and local.protocol != "nixl"
    bootstrap = bootstrap_of(local) if listens else None
    return {
        "handover": (local.protocol or None) if leg else None,
        "bootstrap_host": bootstrap and bootstrap.host,
        "bootstrap_port": bootstrap and bootstrap.port,
        "partners": legs.partners(local),
        "convertible": labels.get(CONVERTIBLE_LABEL) == "true",
    }


def _rest(api: FastAPI, ports: AdminPorts) -> None:
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
        worker_id = ports.registry.add(
            spec.url,
            role=spec.said_role or "plain",
            capacity_tokens=spec.capacity_tokens or 0,
            labels=spec.labels_over({}),
        )
        return {
            "worker_id": worker_id,
            "status": "accepted",
            "url": spec.url,
            "location": f"/workers/{worker_id}",
        }

    @api.get("/workers", tags=["workers"])
    async def listed() -> dict[str, Any]:
        """All workers with role, site, state, load and cache."""
        legs = _Legs(ports)
        workers = [_described(ports, local, legs) for local in ports.registry.all()]
        return {"workers": workers, "total": len(workers)}

    @api.get("/workers/{worker_id:path}", tags=["workers"])
    async def one(worker_id: str) -> dict[str, Any]:
        """One worker."""
        return _described(ports, found(worker_id), _Legs(ports))

    @api.put("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def change(worker_id: str, change: WorkerChange) -> dict[str, str]:
        """Change a worker for all replicas: drain it, give it another role, say its capacity, label it."""
        known = found(worker_id).worker
        ports.registry.change(
            worker_id,
            role=change.said_role,
            draining=change.draining,
            capacity_tokens=change.capacity_tokens,
            labels=change.labels_over(known.labels),
        )
        return {"worker_id": worker_id, "status": "accepted"}

    @api.delete("/workers/{worker_id:path}", status_code=202, tags=["workers"])
    async def remove(worker_id: str) -> dict[str, str]:
        """Remove a worker for all replicas; requests in flight there finish."""
        found(worker_id)
        ports.registry.remove(worker_id)
        return {"worker_id": worker_id, "status": "accepted"}


def _older(api: FastAPI, ports: AdminPorts) -> None:
    @api.post("/add_worker", tags=["peers"])
    async def add_worker(
        url: Annotated[str, Query(description="Base URL.")],
        worker_type: Annotated[PeersType, Query(description="Role; regular is plain.")] = "regular",
        bootstrap_port: Annotated[
            int | None, Query(ge=1, le=65535, description="Of a prefill worker; left out, 8998.")
        ] = None,
    ) -> dict[str, str]:
        """Add a worker, as the older routers spell it."""
        labels = {} if bootstrap_port is None else {BOOTSTRAP_PORT_LABEL: str(bootstrap_port)}
        worker_id = ports.registry.add(url, role=_role(worker_type), labels=labels)
        return {"status": "accepted", "worker_id": worker_id}

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
