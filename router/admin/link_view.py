"""``GET /links`` and ``GET /offload``: links between sites, and the requests that are prefilled over them.

All replicas share reservations and measurements. Only ``state`` is the asked replica's own, since it has a
memory (`policies.disaggregation.link_states`), and so are decisions about remote prefill, since its start;
the metrics count for all. Only requests with a choice of sites are counted.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from policies.disaggregation import NEVER_TOKENS, Offloading, PastVerdict
from router.admin.parts import AdminParts
from router.explaining import explained
from router.gateway import Gateway
from router.samples import link_state

AHEAD_S = 5
"""Seconds that are looked ahead: most transfers are over then."""


def add_link_view(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes."""

    @api.get("/links", tags=["links"])
    async def links() -> dict[str, Any]:
        """Links between sites: capacity, round trip, goodput, failures, and the part that KV takes.

        ``ahead`` counts the bytes that are reserved in each of the coming seconds, by all replicas.
        """
        return described(parts.gateway, parts.pairs.offloading)

    @api.get("/offload", tags=["links"])
    async def offload() -> dict[str, Any]:
        """The threshold of remote prefill, counts of decisions by result, and the latest decisions.

        ``local`` and ``far`` give the predicted time of either side for that request.
        """
        return offloaded(parts)


def described(gateway: Gateway, offloading: Offloading) -> dict[str, Any]:
    """Return the links as JSON."""
    links, now_us = gateway.fleet.links, gateway.log.now_us()
    planned: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    kv_bytes: defaultdict[str, int] = defaultdict(int)
    for transfer in links.transfers.values():
        said = transfer.shipping
        planned[said.link].append((said.start_us, transfer.until_us, transfer.rate))
        kv_bytes[said.link] += said.kv_bytes
    return {
        "links": [
            {
                **_link(gateway, offloading, link, now_us),
                "under_way": {"transfers": len(planned[link]), "kv_bytes": kv_bytes[link]},
                "ahead": _ahead(planned[link], links.cap_bytes_per_s(link, now_us), now_us),
            }
            for link in sorted(links.rules)
        ]
    }


def _link(gateway: Gateway, offloading: Offloading, link: str, now_us: int) -> dict[str, Any]:
    links, rules = gateway.fleet.links, gateway.fleet.links.rules[link]
    measured = links.measurement(link)
    from_site, _, to_site = link.partition(">")
    return {
        "link": link,
        "from": from_site,
        "to": to_site,
        "state": link_state(offloading, link, now_us),
        "configured_bytes_per_s": round(rules.bytes_per_s),
        "capacity_bytes_per_s": round(links.capacity_bytes_per_s(link, now_us)),
        "cap_bytes_per_s": round(links.cap_bytes_per_s(link, now_us)),
        "reserved_bytes_per_s": round(links.reserved_bytes_per_s(link, now_us)),
        "utilisation": round(links.utilisation(link, now_us), 4),
        "rtt_s": links.rtt_s(link),
        "loss_ratio": round(links.loss_ratio(link), 4),
        "loss_ratio_max": rules.loss_ratio_max,
        "measured": None
        if measured is None
        else {
            "age_s": round(max(now_us - measured.at_us, 0) / 1e6, 3),
            "replica": measured.replica,
            "goodput_bytes_per_s": round(measured.bytes_per_s) or None,
            "rtt_s": measured.rtt_s or None,
            "loss_ratio": round(measured.loss_ratio, 4),
        },
    }


def _ahead(
    planned: Sequence[tuple[int, int, int]], cap_bytes_per_s: float, now_us: int
) -> list[dict[str, Any]]:
    """Return the bytes reserved in each of the coming seconds."""
    seconds = []
    for second in range(AHEAD_S):
        from_us = now_us + second * 1_000_000
        to_us = from_us + 1_000_000
        reserved = sum(
            rate * max(min(until_us, to_us) - max(start_us, from_us), 0)
            for start_us, until_us, rate in planned
        )
        seconds.append(
            {
                "second": second,
                "reserved_bytes": reserved // 1_000_000,
                "cap_ratio": round(reserved / 1e6 / cap_bytes_per_s, 4) if cap_bytes_per_s else None,
            }
        )
    return seconds


def offloaded(parts: AdminParts) -> dict[str, Any]:
    """Return remote prefill as JSON."""
    gateway, settings = parts.gateway, parts.live.current.offload
    offloading, now_us = parts.pairs.offloading, gateway.log.now_us()
    threshold_tokens = offloading.threshold_tokens
    by = "settings" if settings.threshold_tokens else "slow_loop"
    return {
        "enabled": bool(gateway.fleet.rules.links) and not settings.disable_remote_prefill,
        "threshold_tokens": threshold_tokens if threshold_tokens != NEVER_TOKENS else None,
        "threshold_by": None if threshold_tokens is None else by,
        "nothing_remote": threshold_tokens == NEVER_TOKENS,
        "decided": {reason.value: count for reason, count in sorted(offloading.counts.items())},
        "above_cap": dict(sorted(offloading.above_cap.items())),
        "latest": [_decision(past, now_us) for past in reversed(offloading.latest)],
    }


def _decision(past: PastVerdict, now_us: int) -> dict[str, Any]:
    verdict = past.verdict
    return {
        "age_s": round(max(now_us - past.at_us, 0) / 1e6, 3),
        "attempt": past.request_id,
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
