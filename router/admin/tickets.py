"""``/queue/tickets``: the requests that wait, one by one, and ending the wait of one.

Every replica folds everybody's tickets, so any of them may be asked. A wait is ended by whoever holds the
request: the wish goes through the log (`policies.Expire`). Tickets are looked at in steps between which the
event loop goes on, as in `router.admin.queue_view`.
"""

import asyncio
import heapq
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request

from policies import ANY_BUCKET, Expire, Ticket, model_and_bucket
from router.admin.audit import note_change
from router.admin.ports import AdminPorts
from router.admin.queue_view import STEP
from router.errors import ClientError

LISTED_MAX = 1000

TicketId = Annotated[
    str, Path(description="As GET /queue/tickets names it.", max_length=256, examples=["gw-1-7f3a"])
]


def add_tickets(api: FastAPI, ports: AdminPorts) -> None:
    """Add the routes."""

    @api.get("/queue/tickets", tags=["queue"])
    async def tickets(
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX, description="How many at most.")] = 100,
        class_name: Annotated[str, Query(alias="class", description="Only those of this class.")] = "",
        tenant: Annotated[str, Query(description="Only those of this tenant.")] = "",
        lane: Annotated[str, Query(description="Only those of this lane, as ``GET /queue`` names it.")] = "",
        replica: Annotated[str, Query(description="Only those that wait at this replica.")] = "",
    ) -> dict[str, Any]:
        """The requests that wait, at all replicas, in the order in which those of one flow go.

        Between tenants and classes their shares decide.
        """
        now_us, listed = ports.now_us(), list[Ticket]()
        for number, ticket in enumerate(list(ports.fleet.tickets)):
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
        return {"tickets": [_ticket(ports, each, now_us) for each in first], "total": len(listed)}

    @api.get("/queue/{ticket:path}", tags=["queue"])
    async def one_ticket(ticket: TicketId) -> dict[str, Any]:
        """One request that waits."""
        return _ticket(ports, found(ticket), ports.now_us())

    @api.delete("/queue/{ticket:path}", status_code=202, tags=["queue"])
    async def expire(request: Request, ticket: TicketId) -> dict[str, Any]:
        """End the wait of a request: its client gets 408, from whichever replica holds it."""
        known = found(ticket)
        note_change(request, detail={"replica": known.replica, "flow": known.flow})
        ports.publish(Expire(ports.now_us(), ports.replica, ticket))
        shared = ports.log_status().connected
        return {"ticket": ticket, "status": "accepted", "shared": shared, "replica": known.replica}

    def found(ticket: str) -> Ticket:
        known = ports.fleet.tickets.get(ticket)
        if known is None:
            raise ClientError(
                f"No request waits under {ticket[:256]!r}; GET /queue/tickets lists those that do.",
                code="ticket_not_found",
                status=404,
            )
        return known


def _ticket(ports: AdminPorts, ticket: Ticket, now_us: int) -> dict[str, Any]:
    model, bucket = model_and_bucket(ticket.lane)
    name, _, owner = ticket.flow.partition("/")
    local = ports.registry.found(ticket.slot) if ticket.slot >= 0 else None
    return {
        "ticket": ticket.request_id,
        "replica": ticket.replica,
        "class": name,
        "tenant": owner,
        "lane": ticket.lane,
        "model": model,
        "bucket": None if bucket <= ANY_BUCKET else bucket,
        "worker": None if local is None else local.worker.worker_id,
        "link": ticket.link or None,
        "waited_s": round(max(now_us - ticket.arrived_us, 0) / 1e6, 3),
        "service_s": round(ticket.service_us / 1e6, 3),
        "uncached_tokens": ticket.uncached_tokens,
        "context_tokens": ticket.context_tokens,
    }
