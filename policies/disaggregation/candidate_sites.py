"""The two sides of a request: workers whose KV stays in its site, and those from which it crosses a link.

A prefill worker needs a decode worker in its own site, else in one that a configured link leads to; otherwise
no worker decodes its own prefills. Workers that need no partner hand nothing over and are local. Without
configured links sites mean nothing.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.pricing.views import Slots
from policies.state.links import Links, link_name

LOCAL, UNREACHABLE = 0, -1
"""Numbers for no link, and for a link that would be needed and does not exist."""

CACHED_MAX = 100
"""Lists of candidates whose sides are cached."""


class SiteCandidates(msgspec.Struct, frozen=True, eq=False):
    """Workers of one site behind one link; not empty, in rising order."""

    site: str
    link: str
    slots: Slots


class CandidatesBySite(msgspec.Struct, frozen=True, eq=False):
    """Candidates by the link that their KV crosses; those without any decode worker are only in ``every``."""

    every: Slots
    local: Slots
    remote: tuple[SiteCandidates, ...]


class SiteMap:
    """Link that the KV of each of ``rows`` slots crosses, for one list of workers."""

    def __init__(self, links: Links, rows: int) -> None:
        self._links = links
        self._sites: list[tuple[str, str]] = [("", "")]
        self._numbers = np.zeros(rows, dtype=np.intp)
        self._cached: dict[int, CandidatesBySite] = {}

    def way(self, site: str, decode_sites: list[str]) -> str | None:
        """Widest link from a site to the decode workers; empty if they are there, None if there is no way."""
        if not self._links.rules or site in decode_sites:
            return ""
        rules = self._links.rules
        links = [name for each in decode_sites if (name := link_name(site, each)) in rules]
        return min(links, key=lambda name: (-rules[name].bytes_per_s, name), default=None)

    def put(self, slot: int, site: str, link: str | None) -> None:
        """The KV of the worker in a slot crosses this link."""
        if not link:
            self._numbers[slot] = LOCAL if link is not None else UNREACHABLE
            return
        if (site, link) not in self._sites:
            self._sites.append((site, link))
        self._numbers[slot] = self._sites.index((site, link))

    def link(self, slot: int) -> str:
        """Link that the KV of the worker in a slot crosses; empty for none."""
        number: int = self._numbers.item(slot)
        return "" if number == UNREACHABLE else self._sites[number][1]

    def by_site(self, slots: Slots) -> CandidatesBySite | None:
        """Split candidates by site, cached by array; None if all KV stays in its site."""
        if not self._links.rules:
            return None
        cached = self._cached.get(id(slots))  # see `policies.fleet.columns`
        if cached is None or cached.every is not slots:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            cached = self._cached[id(slots)] = self._part(slots)
        return None if cached.local is slots else cached

    def _part(self, slots: Slots) -> CandidatesBySite:
        numbers: NDArray[np.intp] = self._numbers[slots]
        if not numbers.any():
            return CandidatesBySite(slots, slots, ())
        remote = [
            SiteCandidates(*self._sites[number], slots[numbers == number])
            for number in range(1, len(self._sites))
            if (numbers == number).any()
        ]
        return CandidatesBySite(slots, slots[numbers == LOCAL], tuple(remote))
