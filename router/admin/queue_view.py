"""``/queue``: waiting requests of all replicas, with reasons; and ending the wait of one.

Every replica folds all tickets, so any of them may be asked. Only ``here``, ``order`` and ``refused`` are the
asked replica's own. The replica that holds the request ends its wait: the command goes through the log
(`policies.Expire`). Tickets are counted in steps: ten thousand of them take some ten milliseconds, of which a
stream waits for two.
"""

import asyncio
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request

from policies import ANY_BUCKET, Expire, RequestQueue, Ticket, Worker, class_of, model_and_length
from router.admin.audit import note_change
from router.admin.parts import AdminParts
from router.errors import ClientError
from router.gateway import Gateway

STEP = 1000
"""Tickets counted in one turn of the loop, some two milliseconds."""

LISTED_MAX = 100
"""Tenants and lanes that are listed, those with the most requests; the rest is added up."""

TICKETS_MAX = 1000

TicketId = Annotated[
    str, Path(description="As GET /queue/tickets names it.", max_length=256, examples=["gw-1-7f3a"])
]


@dataclass(slots=True)
class Sum:
    """Some tickets, added up."""

    requests: int = 0
    uncached_tokens: int = 0
    service_us: int = 0
    oldest_us: int = 0

    def add(self, ticket: Ticket) -> None:
        """Count one."""
        if not self.requests or ticket.arrived_us < self.oldest_us:
            self.oldest_us = ticket.arrived_us
        self.requests += 1
        self.uncached_tokens += ticket.uncached_tokens
        self.service_us += ticket.service_us

    def merge(self, other: "Sum") -> None:
        """Count those of another."""
        if not self.requests or (other.requests and other.oldest_us < self.oldest_us):
            self.oldest_us = other.oldest_us
        self.requests += other.requests
        self.uncached_tokens += other.uncached_tokens
        self.service_us += other.service_us

    def described(self, now_us: int) -> dict[str, Any]:
        """Return the sum as JSON, in seconds."""
        oldest_s = (now_us - self.oldest_us) / 1e6 if self.requests else 0.0
        return {
            "requests": self.requests,
            "uncached_tokens": self.uncached_tokens,
            "service_s": round(self.service_us / 1e6, 3),
            "oldest_wait_s": round(max(oldest_s, 0.0), 3),
        }


@dataclass(slots=True)
class Census:
    """All tickets, summed up by common properties."""

    total: Sum = field(default_factory=Sum)
    classes: dict[str, Sum] = field(default_factory=dict)
    tenants: dict[str, Sum] = field(default_factory=dict)
    lanes: dict[str, Sum] = field(default_factory=dict)
    replicas: dict[str, Sum] = field(default_factory=dict)
    slots: dict[int, Sum] = field(default_factory=dict)

    def add(self, ticket: Ticket) -> None:
        """Count one."""
        self.total.add(ticket)
        self.classes.setdefault(class_of(ticket.flow), Sum()).add(ticket)
        self.tenants.setdefault(ticket.flow.partition("/")[2], Sum()).add(ticket)
        self.lanes.setdefault(ticket.lane, Sum()).add(ticket)
        self.replicas.setdefault(ticket.replica, Sum()).add(ticket)
        if ticket.slot >= 0:
            self.slots.setdefault(ticket.slot, Sum()).add(ticket)


async def census(tickets: Iterable[Ticket]) -> Census:
    """Count tickets; those that come or end meanwhile may be counted or not."""
    counted = Census()
    for number, ticket in enumerate(list(tickets)):
        if number % STEP == STEP - 1:
            await asyncio.sleep(0)
        counted.add(ticket)
    return counted


def add_queue_view(api: FastAPI, parts: AdminParts) -> None:
    """Add the route."""

    @api.get("/queue", tags=["queue"])
    async def queue() -> dict[str, Any]:
        """Waiting requests by class, tenant, lane and replica; room at workers; counts of rejected requests.

        ``predicted_drain_s`` is the predicted time until the workers of a lane have served its queue: the
        Retry-After of a rejected client.
        """
        counted = await census(parts.gateway.fleet.tickets)
        return described(parts, counted, parts.gateway.log.now_us())


def described(parts: AdminParts, counted: Census, now_us: int) -> dict[str, Any]:
    """The whole answer."""
    gateway, settings = parts.gateway, parts.live.current.queue
    room, inversions = gateway.placing.room, gateway.fleet.tickets.inversions
    return {
        "replica": gateway.log.replica,
        "enabled": not settings.disable_queue,
        "waiting": counted.total.described(now_us),
        "here": len(room),
        "bounds": {
            "requests_max": settings.size,
            "tokens_max": settings.tokens_max or None,
            "drain_s_max": settings.drain_s_max or None,
            "timeout_s": settings.timeout_s,
        },
        "classes": _listed("class", counted.classes, now_us),
        "tenants": _listed("tenant", counted.tenants, now_us),
        "lanes": [{**lane, **_lane(room, lane["lane"])} for lane in _listed("lane", counted.lanes, now_us)],
        "replicas": _listed("replica", counted.replicas, now_us),
        "workers": [
            _worker(gateway, local.state, place, counted, now_us)
            for local, place in gateway.registry.places()
        ],
        "order": {
            "inversions": inversions.count,
            "inversion_s_max": round(inversions.us_max / 1e6, 3),
            "rooms_overdue": room.overdue,
        },
        "refused": gateway.reports.refusals.described(),
    }


def _listed(name: str, sums: dict[str, Sum], now_us: int) -> list[dict[str, Any]]:
    """Return the largest entries, and the sum of the rest."""
    ordered = sorted(sums.items(), key=lambda item: (-item[1].requests, item[0]))
    listed = [{name: key, **each.described(now_us)} for key, each in ordered[:LISTED_MAX]]
    if len(ordered) > LISTED_MAX:
        rest = Sum()
        for _, each in ordered[LISTED_MAX:]:
            rest.merge(each)
        listed.append({name: None, "others": len(ordered) - LISTED_MAX, **rest.described(now_us)})
    return listed


def _lane(room: RequestQueue, lane: str | None) -> dict[str, Any]:
    """Return a lane as JSON, without its tickets."""
    if lane is None:
        return {}
    model, length = model_and_length(lane)
    return {
        "model": model,
        "bucket": None if length.bucket == ANY_BUCKET else length.bucket,
        "predicted_drain_s": round(room.drain_s(lane), 3),
    }


def _worker(gateway: Gateway, state: str, place: Worker, counted: Census, now_us: int) -> dict[str, Any]:
    """Return a worker, or a data-parallel rank, as JSON."""
    fleet, admission, slot = gateway.fleet, gateway.placing.admission, place.slot
    reported = fleet.reports.get(place.worker_id)
    for_it = counted.slots.get(slot)
    return {
        "id": place.worker_id,
        "state": state,
        "backlog_s": round(fleet.loads.backlog_at_s(slot, now_us), 6),
        "target_s": round(admission.target_s(slot), 6),
        "has_room": admission.has_room(slot, now_us),
        "below_caps": admission.below_caps(slot, now_us),
        "inflight_requests": int(fleet.loads.inflight_requests[slot]),
        "running_max": _finite(admission.running_max(slot)),
        "inflight_tokens": int(fleet.loads.inflight_tokens[slot]),
        "kv_tokens_max": _finite(admission.kv_tokens_max(slot)),
        "waiting_for_it": for_it.requests if for_it is not None else 0,
        "report": None
        if reported is None
        else {
            "age_s": round((now_us - reported.at_us) / 1e6, 3),
            "fresh": now_us - reported.at_us <= admission.rules.report_age_s_max * 1e6,
            "running": _said(reported.running),
            "waiting": _said(reported.waiting),
            "kv_tokens": _said(reported.kv_tokens),
        },
    }


def _finite(bound: float) -> int | None:
    return int(bound) if bound < float("inf") else None


def _said(value: int) -> int | None:
    """Return an engine's report as JSON; None without one."""
    return value if value >= 0 else None


def add_tickets(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes of single tickets."""
    gateway, log = parts.gateway, parts.gateway.log

    @api.get("/queue/tickets", tags=["queue"])
    async def tickets(
        limit: Annotated[int, Query(ge=1, le=TICKETS_MAX, description="Most entries.")] = 100,
        class_name: Annotated[str, Query(alias="class", description="Only those of this class.")] = "",
        tenant: Annotated[str, Query(description="Only those of this tenant.")] = "",
        lane: Annotated[str, Query(description="Only those of this lane, as ``GET /queue`` names it.")] = "",
        replica: Annotated[str, Query(description="Only those that wait at this replica.")] = "",
    ) -> dict[str, Any]:
        """The requests that wait, at all replicas, in the order in which those of one flow go.

        Between tenants and classes their shares decide.
        """
        now_us, listed = log.now_us(), list[Ticket]()
        for number, ticket in enumerate(list(gateway.fleet.tickets)):
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
            name, _, owner = ticket.flow.partition("/")
            if (
                (not class_name or name == class_name)
                and (not tenant or owner == tenant)
                and (not lane or ticket.lane == lane)
                and (not replica or ticket.replica == replica)
            ):
                listed.append(ticket)
        first = heapq.nsmallest(limit, listed)
        return {"tickets": [_ticket(gateway, each, now_us) for each in first], "total": len(listed)}

    @api.get("/queue/{ticket:path}", tags=["queue"])
    async def one_ticket(ticket: TicketId) -> dict[str, Any]:
        """One request that waits."""
        return _ticket(gateway, found(ticket), log.now_us())

    @api.delete("/queue/{ticket:path}", status_code=202, tags=["queue"])
    async def expire(request: Request, ticket: TicketId) -> dict[str, Any]:
        """End the wait of a request: its client gets 408, from the replica that holds it."""
        entry = found(ticket)
        note_change(request, detail={"replica": entry.replica, "flow": entry.flow})
        log.publish(Expire(log.now_us(), log.replica, ticket))
        shared = log.status().connected
        return {"ticket": ticket, "status": "accepted", "shared": shared, "replica": entry.replica}

    def found(ticket: str) -> Ticket:
        entry = gateway.fleet.tickets.get(ticket)
        if entry is None:
            raise ClientError(
                f"No request waits under {ticket[:256]!r}; GET /queue/tickets lists those that do.",
                code="ticket_not_found",
                status=404,
            )
        return entry


def _ticket(gateway: Gateway, ticket: Ticket, now_us: int) -> dict[str, Any]:
    model, length = model_and_length(ticket.lane)
    name, _, owner = ticket.flow.partition("/")
    local = gateway.registry.found(ticket.slot) if ticket.slot >= 0 else None
    return {
        "ticket": ticket.request_id,
        "replica": ticket.replica,
        "class": name,
        "tenant": owner,
        "lane": ticket.lane,
        "model": model,
        "bucket": None if length.bucket == ANY_BUCKET else length.bucket,
        "worker": None if local is None else local.worker.worker_id,
        "link": ticket.link or None,
        "waited_s": round(max(now_us - ticket.arrived_us, 0) / 1e6, 3),
        "service_s": round(ticket.service_us / 1e6, 3),
        "uncached_tokens": ticket.uncached_tokens,
        "context_tokens": ticket.context_tokens,
    }
