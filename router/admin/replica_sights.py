"""What the console sees of replicas: their vitals, and how busy each was since the look before.

A replica whose word does not reach us is listed with nothing but its id; its counters are not counted, so
that its return is no leap (`router.console.pulse`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from router.console import Counters, ReplicaSight
from router.shared import Vitals

WORKERS_FAULT = frozenset(("worker_error", "handover_failed", "kv_transfer_failed"))
"""Outcomes of requests that workers failed, beside those that begin with ``upstream_``."""


class ReplicaSights:
    """Looks at replicas.

    Args:
        vitals: Asks for the vitals of all that are alive; None of one whose word does not reach us.
    """

    def __init__(self, vitals: Callable[[], Awaitable[Mapping[str, Vitals | None]]]) -> None:
        self._vitals = vitals
        self._before: Mapping[str, Vitals | None] = {}

    async def look(self) -> Sequence[ReplicaSight]:
        """All replicas that can be seen, in order of their ids."""
        found = await self._vitals()
        sights = [
            ReplicaSight(replica, None if said is None else counters(said), self._shown(replica, said))
            for replica, said in sorted(found.items())
        ]
        self._before = found
        return sights

    def _shown(self, replica: str, said: Vitals | None) -> dict[str, Any]:
        if said is None:
            return {"known": False}
        return {
            "known": True,
            "version": said.version,
            "admin_address": said.admin_address,
            "started_unix_s": said.started_unix_s,
            "ready": said.ready,
            "inflight": said.inflight,
            "waiting": said.waiting,
            "lag_s": round(said.lag_s, 4),
            "loop_lag_s": round(said.loop_lag_s, 4),
            "cpu_ratio": _busy(self._before.get(replica), said),
            "rss_bytes": said.rss_bytes,
            "writes_snapshots": said.holds_snapshot_lease,
            "degraded": said.degraded,
        }


def counters(said: Vitals) -> Counters:
    """What rates are made of. Times to first token are counted up to bounds there, between them here."""
    upto = said.ttft_counts
    return Counters(
        requests=sum(said.requests.values()),
        failed=sum(
            count
            for outcome, count in said.requests.items()
            if outcome in WORKERS_FAULT or outcome.startswith("upstream_")
        ),
        rejected=said.rejected,
        prompt_tokens=said.reported_prompt_tokens,
        cached_tokens=said.cached_tokens,
        ttft_counts=tuple(now - before for now, before in zip(upto, (0, *upto), strict=False)),
        ttft_bounds_s=said.ttft_bounds_s,
    )


def _busy(before: Vitals | None, now: Vitals) -> float | None:
    """Share of a core since the look before; None if that is not known."""
    if before is None or before.started_unix_s != now.started_unix_s:
        return None
    elapsed_s = now.at_unix_s - before.at_unix_s
    return round((now.cpu_s - before.cpu_s) / elapsed_s, 3) if elapsed_s > 0 else None
