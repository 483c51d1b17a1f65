"""``GET /kv_events``: by what each worker's cache is known, and how well its events are followed."""

from typing import Any

from fastapi import FastAPI

from policies import FleetState
from router.fleet import Registry
from router.fleet.kv_events import Follower, KvEvents

WORKERS_MAX = 1000
"""Workers that are listed."""


def add_kv_events_view(
    api: FastAPI, registry: Registry, fleet: FleetState, kv_events: KvEvents | None
) -> None:
    """Serve the view."""

    @api.get("/kv_events", tags=["workers"])
    async def followed() -> dict[str, Any]:
        """Workers whose KV events this replica follows, and by what the cache of each worker is known.

        Each worker is followed by one replica. What that one sees of it (``followed``) only it can tell;
        ``evidence`` is the same everywhere.
        """
        if kv_events is None or not kv_events.on:
            return {"enabled": False}
        counts = kv_events.counts()
        return {
            "enabled": True,
            "replica": kv_events.replica,
            "counts": {name: counts[name] for name in sorted(counts)},
            "workers": [
                {
                    "worker_id": (worker_id := local.worker.worker_id),
                    **evidence(fleet, worker_id),
                    "followed": described(kv_events.followers.get(worker_id)),
                }
                for local in registry.all()[:WORKERS_MAX]
            ],
        }


def evidence(fleet: FleetState, worker_id: str) -> dict[str, Any]:
    """By what a worker's cache is known: ``events`` or ``history``, and who said so."""
    word = fleet.evidence.get(worker_id)
    return {
        "evidence": "events" if fleet.tracks(worker_id) else "history",
        "evidence_by": None if word is None else word.replica,
    }


def described(follower: Follower | None) -> dict[str, Any] | None:
    """How well this replica follows a worker; None if another one does, or nobody."""
    if follower is None:
        return None
    lag_s, counts = follower.lag_s, follower.counts()
    return {
        "state": follower.state.value,
        "detail": follower.detail or None,
        "kv_blocks": follower.blocks,
        "opaque_kv_blocks": follower.opaque_blocks,
        "lag_s": None if lag_s is None else round(lag_s, 3),
        "counts": {name: counts[name] for name in sorted(counts) if counts[name]},
        "sources": [
            {
                "rank": feed.source.rank,
                "endpoint": feed.source.endpoint,
                "replay_endpoint": feed.source.replay,
                "listens": feed.source.listens,
                "connected": feed.connected,
                "complete": feed.sequence.complete,
                "next_batch": feed.sequence.next,
                "asked_from": feed.sequence.asked,
            }
            for feed in follower.feeds
        ],
    }
