"""Pools of decode workers, found once for each list of workers that may begin requests.

A *pool* is the decode workers that take over from the same prefill workers: of one protocol and length
bucket, in their site or behind one link (`policies.disaggregation.candidate_sites`). A request looks at each
pool once. *By slot* means a column of all slots of the fleet.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.disaggregation.candidate_sites import SiteMap
from policies.estimates.costs import Floats
from policies.fleet.fleet import FleetState
from policies.fleet.pairing import ALONE, KEEPS_PREFIXES_LABEL, HandOver, Pairing, Partners
from policies.pricing.views import Slots
from policies.state.links import site_after


class DecodePool(msgspec.Struct, frozen=True, eq=False):
    """Decode workers that take over from the same prefill workers, one row each; may be empty.

    Attributes:
        link: Link that the KV crosses; empty if they stand in the site of the prefill workers.
        keeps: True for workers that keep the prefixes handed to them, and are sent only the rest.
        classes: Worker classes, and the rows of each.
    """

    hand_over: HandOver
    link: str
    slots: Slots
    worker_hash: NDArray[np.uint64]
    keeps: NDArray[np.bool_]
    classes: tuple[tuple[str, NDArray[np.intp]], ...]


class DecodePools(msgspec.Struct, frozen=True, eq=False):
    """Cached facts of one `Pairing`, at a revision of the fleet.

    By slot: the number of the pool, or `ALONE`; ``splits`` as in `disaggregation.ships`; ``decodes``
    is 1 for decode workers, which take requests whole, else 0.
    """

    pairing: Pairing
    revision: int
    pools: tuple[DecodePool, ...]
    pool_of: NDArray[np.intp]
    splits: Floats
    decodes: Floats
    sites: SiteMap


def decode_pools(fleet: FleetState, pairing: Pairing) -> DecodePools:
    """Find the pools of a pairing."""
    rows = len(fleet.loads.prefill_us)
    pool_of = np.full(rows, ALONE, dtype=np.intp)
    splits, decodes = np.zeros(rows), np.zeros(rows)
    sites = SiteMap(fleet.links, rows)
    numbers: dict[tuple[int, int, str], int] = {}
    pools: list[DecodePool] = []
    for slot, group in zip(pairing.slots.tolist(), pairing.groups.tolist(), strict=True):
        worker = fleet.at_slot(slot)
        if group == ALONE:
            decodes[slot] = worker.role == "decode"
            continue
        splits[slot] = 1.0
        number = numbers.setdefault((group, fleet.buckets.of(slot), worker.site), len(pools))
        if number == len(pools):
            pools.append(_reached(fleet, pairing.partners[group], slot, sites))
        pool_of[slot] = number
        pool = pools[number]
        sites.put(slot, worker.site, pool.link if len(pool.slots) else None)
    return DecodePools(pairing, fleet.revision, tuple(pools), pool_of, splits, decodes, sites)


def _reached(fleet: FleetState, partners: Partners, slot: int, sites: SiteMap) -> DecodePool:
    """Pool of the decode workers that the prefill worker in a slot may hand over to."""
    slots, site = fleet.buckets.together_with(partners.slots, slot), fleet.at_slot(slot).site
    stand = np.array([fleet.at_slot(each).site for each in slots.tolist()])
    link = sites.way(site, sorted(set(stand.tolist())))
    if link is None:
        slots = slots[:0]
    elif fleet.links.rules:
        slots = slots[stand == (site_after(link) if link else site)]
    classes: dict[str, list[int]] = {}
    for row, each in enumerate(slots.tolist()):
        classes.setdefault(fleet.at_slot(each).worker_class, []).append(row)
    labelled = [fleet.at_slot(each).labels.get(KEEPS_PREFIXES_LABEL) == "true" for each in slots.tolist()]
    return DecodePool(
        partners.hand_over,
        link or "",
        slots,
        fleet.columns.hashes(slots),
        np.array(labelled, dtype=np.bool_) | partners.hand_over.keeps_prefixes,
        tuple((name, np.array(rows, dtype=np.intp)) for name, rows in classes.items()),
    )
