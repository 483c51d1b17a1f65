"""``GET /discovery``: which pods were found, what became of each, and how well this replica can look."""

from typing import Any

from fastapi import FastAPI

from router.discovery import Discovery
from router.fleet import worker_id_of


def add_discovery_view(api: FastAPI, discovery: Discovery | None) -> None:
    """Serve the view."""

    @api.get("/discovery", tags=["workers"])
    async def pods_and_workers() -> dict[str, Any]:
        """Pods of the cluster that are selected: their workers, or why they have none; and the lists.

        Every replica looks by itself, so this is what the one that is asked sees.
        """
        return {"enabled": False} if discovery is None else described(discovery)


def described(discovery: Discovery) -> dict[str, Any]:
    """What the view says."""
    clock_s, age_s = discovery.clock(), discovery.list_age_s()
    return {
        "enabled": True,
        "problem": discovery.problem,
        "list_age_s": None if age_s is None else round(age_s, 1),
        "states": dict(sorted(discovery.states().items())),
        "selections": [
            {
                "namespace": watch.selection.namespace,
                "role": watch.selection.role or None,
                "selector": watch.selection.selector,
                "pods": len(watch.pods),
                "list_age_s": None if watch.listed_s is None else round(clock_s - watch.listed_s, 1),
                "problem": watch.problem,
                "failures": {trouble.value: count for trouble, count in sorted(watch.failures.items())},
                "watch_restarts": watch.restarts,
                "missed": watch.missed,
            }
            for watch in discovery.watches
        ],
        "pods": [
            {
                "namespace": sighting.pod.metadata.namespace,
                "name": sighting.pod.metadata.name,
                "uid": sighting.pod.uid,
                "ip": sighting.pod.status.pod_ip or None,
                "phase": sighting.pod.status.phase,
                "ready": sighting.pod.ready,
                "roles": sorted(selection.role or "by label" for selection in sighting.selections),
                "workers": sorted(worker_id_of(url) for url in sighting.claims),
                "failures": sighting.failures,
                "not_used": None if sighting.refused is None else sighting.refused.reason.value,
                "detail": None if sighting.refused is None else sighting.refused.detail,
            }
            for sighting in sorted(
                discovery.sightings.values(), key=lambda seen: (seen.pod.name, seen.pod.uid)
            )
        ],
    }
