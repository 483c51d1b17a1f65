"""``GET /offload``: which requests are prefilled in another site, and why, in tokens, seconds and bytes.

Of the replica that is asked, since its start; the metrics count for all. Only requests that had a choice of
sites are counted: in a fleet of one site there are none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from policies import NEVER_TOKENS, Offloading, PastVerdict
from router.gateway.plain_words import explained
from router.settings import OffloadSettings


@dataclass(frozen=True, slots=True)
class OffloadPorts:
    """What the view may see.

    Attributes:
        offloading: Decides.
        settings: How it is told to, now.
        links: Names of the links that there are.
        now_us: Log time.
    """

    offloading: Offloading
    settings: Callable[[], OffloadSettings]
    links: tuple[str, ...]
    now_us: Callable[[], int]


def add_offload_view(api: FastAPI, ports: OffloadPorts) -> None:
    """Add the route."""

    @api.get("/offload", tags=["links"])
    async def offload() -> dict[str, Any]:
        """The threshold of remote prefill, how often what was decided, and the latest decisions.

        ``local`` and ``far`` say what either side would have taken for that request.
        """
        return described(ports)


def described(ports: OffloadPorts) -> dict[str, Any]:
    """What the view says."""
    offloading, settings, now_us = ports.offloading, ports.settings(), ports.now_us()
    threshold_tokens = offloading.threshold_tokens
    by = "settings" if settings.threshold_tokens else "slow_loop"
    return {
        "enabled": bool(ports.links) and not settings.disable_remote_prefill,
        "threshold_tokens": threshold_tokens if threshold_tokens != NEVER_TOKENS else None,
        "threshold_by": None if threshold_tokens is None else by,
        "nothing_remote": threshold_tokens == NEVER_TOKENS,
        "decided": {reason.value: count for reason, count in sorted(offloading.counts.items())},
        "above_cap": dict(sorted(offloading.above_cap.items())),
        "latest": [_described(told, now_us) for told in reversed(offloading.latest)],
    }


def _described(told: PastVerdict, now_us: int) -> dict[str, Any]:
    verdict = told.verdict
    return {
        "age_s": round(max(now_us - told.at_us, 0) / 1e6, 3),
        "attempt": told.request_id,
        "remote": verdict.remote,
        "site": verdict.site or None,
        "reason": verdict.reason.value,
        "why": explained(verdict),
        "threshold_tokens": verdict.threshold_tokens or None,
        "local": None
        if verdict.local_s < 0
        else {
            "uncached_tokens": verdict.uncached_local,
            "ttft_s": round(verdict.local_s, 4),
            "others_lose_s": round(verdict.local_others_s, 4),
        },
        "far": {
            "link": verdict.link,
            "link_state": verdict.state.value,
            "utilisation": round(verdict.utilisation, 4),
            "uncached_tokens": verdict.uncached_remote,
            "kv_bytes": verdict.kv_bytes if verdict.kv_bytes >= 0 else None,
            "ttft_s": round(verdict.remote_s, 4),
            "link_s": round(verdict.link_s, 4),
            "wait_s": round(verdict.wait_s, 4),
            "above_cap": verdict.above_cap,
            "others_lose_s": round(verdict.remote_others_s, 4),
        },
    }
