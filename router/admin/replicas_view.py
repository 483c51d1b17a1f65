"""``GET /replicas``: the copies of this gateway that share one log, as each of them says it is.

Vitals come with the heartbeats (`router.shared.vitals`); they are read when somebody asks, in one round trip.
Without Redis only the replica that is asked is known, which the answer says.
"""

from typing import Any

import msgspec
from fastapi import FastAPI

from router.admin.ports import AdminPorts
from router.shared import Vitals


def add_replicas_view(api: FastAPI, ports: AdminPorts) -> None:
    """Add the route."""

    @api.get("/replicas", tags=["replicas"])
    async def replicas() -> dict[str, Any]:
        """The replicas that are alive: version, addresses, lag, who writes snapshots, what is degraded.

        Counters count from each replica's own start. ``known`` is false for one whose word does not reach us,
        and all else of it is null.
        """
        found = await ports.replicas_vitals()
        status = ports.log_status()
        return {
            "asked": ports.replica,
            "shared": status.connected,
            "degraded": status.degraded_reason,
            "replicas": [_described(ports, replica, vitals) for replica, vitals in found.items()],
            "total": len(found),
        }


def _described(ports: AdminPorts, replica: str, vitals: Vitals | None) -> dict[str, Any]:
    if vitals is None:
        unknown = dict.fromkeys(("age_s", *Vitals.__struct_fields__))
        return {"replica": replica, "known": False, **unknown}
    return {
        "replica": replica,
        "known": True,
        "age_s": round(max(ports.now_unix_s() - vitals.at_unix_s, 0.0), 3),
        **msgspec.to_builtins(vitals),
    }
