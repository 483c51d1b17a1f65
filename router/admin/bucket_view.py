"""``GET /buckets``: how lengths are divided among the workers, and how that goes.

Every replica folds the same log, so any of them may be asked; only ``placed`` and ``spilled`` count from its
own start.
"""

from typing import Any

from fastapi import FastAPI

from policies import ANY_BUCKET, LengthBuckets
from router.admin.queue_view import QueuePorts


def add_bucket_view(api: FastAPI, ports: QueuePorts) -> None:
    """Serve the view."""

    @api.get("/buckets", tags=["workers"])
    async def buckets() -> dict[str, Any]:
        """Length buckets: bounds, workers, load, spills, and what came lately."""
        return described(ports)


def described(ports: QueuePorts) -> dict[str, Any]:
    """What the view says."""
    known = ports.fleet.buckets
    if known.bounds is None:
        return {"mode": "off"}
    demand = ports.fleet.lengths.demand(ports.now_us())
    rows = [
        {"tokens_max": tokens_max, "requests": requests, "service_s": round(service_s, 3)}
        for tokens_max, requests, service_s in demand.rows()
    ]
    by_slot = {local.worker.slot: local.worker.worker_id for local in ports.registry.all()}
    return {
        "mode": "labels",
        "in_use": known.lengths is not None,
        "buckets": bucket_rows(ports, known.bounds),
        "any_length": [worker for slot, worker in by_slot.items() if known.of(slot) == ANY_BUCKET],
        "unknown_labels": known.strangers(),
        "spilled": {
            "up": sum(count for (own, taker), count in known.placed.items() if taker > own),
            "down": sum(count for (own, taker), count in known.placed.items() if -1 < taker < own),
        },
        "histogram": {"window_s": round(demand.window_s, 1), "rows": rows},
    }


def bucket_rows(ports: QueuePorts, bounds: LengthBuckets) -> list[dict[str, Any]]:
    """Each bucket: its workers, what they have to do, and where its requests went."""
    known, loads, now_us = ports.fleet.buckets, ports.fleet.loads, ports.now_us()
    by_slot = {local.worker.slot: local.worker.worker_id for local in ports.registry.all()}
    demand = ports.fleet.lengths.demand(now_us)
    works = demand.within(bounds.tokens_max)
    listed = []
    for number, (name, tokens_max) in enumerate(zip(bounds.names, bounds.tokens_max, strict=True)):
        slots = [slot for slot in by_slot if known.of(slot) == number]
        requests, load = works[number]
        listed.append(
            {
                "number": number,
                "name": name,
                "tokens_max": tokens_max,
                "workers": [by_slot[slot] for slot in slots],
                "requests": requests,
                "load": round(load / len(slots), 4) if slots else None,
                "load_share": round(load / demand.load, 4) if demand.load else 0.0,
                "backlog_s": round(sum(loads.backlog_at_s(slot, now_us) for slot in slots), 3),
                "inflight_requests": int(sum(loads.inflight_requests[slot] for slot in slots)),
                "placed": {
                    "any_length" if taker == ANY_BUCKET else bounds.names[taker]: count
                    for (own, taker), count in sorted(known.placed.items())
                    if own == number and taker < len(bounds)
                },
            }
        )
    return listed
