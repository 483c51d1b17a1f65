"""``GET /links``: what each link between two sites can carry, what is reserved of it, and how it is.

Reservations and measurements are shared by all replicas, so any of them may be asked; of the one that is
asked alone is ``state``, which follows from them with a memory of its own (`policies.state.link_states`).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from policies import Links

AHEAD_S = 5
"""Seconds that are looked ahead: most transfers are over then."""


@dataclass(frozen=True, slots=True)
class LinkPorts:
    """What the view may see.

    Attributes:
        links: All links.
        state: Of a link at a log time, in one word.
        now_us: Log time.
    """

    links: Links
    state: Callable[[str, int], str]
    now_us: Callable[[], int]


def add_link_view(api: FastAPI, ports: LinkPorts) -> None:
    """Add the route."""

    @api.get("/links", tags=["links"])
    async def links() -> dict[str, Any]:
        """Links between sites: capacity, round trip, goodput, failures, and what KV takes of them.

        ``ahead`` counts the bytes that are reserved in each of the coming seconds, by all replicas.
        """
        return described(ports)


def described(ports: LinkPorts) -> dict[str, Any]:
    """What the view says."""
    links, now_us = ports.links, ports.now_us()
    planned: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    kv_bytes: defaultdict[str, int] = defaultdict(int)
    for transfer in links.transfers.values():
        said = transfer.said
        planned[said.link].append((said.start_us, transfer.until_us, transfer.rate))
        kv_bytes[said.link] += said.kv_bytes
    return {
        "links": [
            {
                **_described(ports, link, now_us),
                "under_way": {"transfers": len(planned[link]), "kv_bytes": kv_bytes[link]},
                "ahead": _ahead(planned[link], links.cap_bytes_per_s(link, now_us), now_us),
            }
            for link in sorted(links.rules)
        ]
    }


def _described(ports: LinkPorts, link: str, now_us: int) -> dict[str, Any]:
    links, rules = ports.links, ports.links.rules[link]
    known = links.measurement(link)
    from_site, _, to_site = link.partition(">")
    return {
        "link": link,
        "from": from_site,
        "to": to_site,
        "state": ports.state(link, now_us),
        "configured_bytes_per_s": round(rules.bytes_per_s),
        "capacity_bytes_per_s": round(links.capacity_bytes_per_s(link, now_us)),
        "cap_bytes_per_s": round(links.cap_bytes_per_s(link, now_us)),
        "reserved_bytes_per_s": round(links.reserved_bytes_per_s(link, now_us)),
        "utilisation": round(links.utilisation(link, now_us), 4),
        "rtt_s": links.rtt_s(link),
        "loss_ratio": round(links.loss_ratio(link), 4),
        "loss_ratio_max": rules.loss_ratio_max,
        "measured": None
        if known is None
        else {
            "age_s": round(max(now_us - known.at_us, 0) / 1e6, 3),
            "replica": known.replica,
            "goodput_bytes_per_s": round(known.bytes_per_s) or None,
            "rtt_s": known.rtt_s or None,
            "loss_ratio": round(known.loss_ratio, 4),
        },
    }


def _ahead(
    planned: Sequence[tuple[int, int, int]], cap_bytes_per_s: float, now_us: int
) -> list[dict[str, Any]]:
    """Bytes that are reserved in each of the coming seconds."""
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
