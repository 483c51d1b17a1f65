"""Data-parallel ranks of a worker: each is a place with a cache and a queue of its own.

    WorkerPut(host:port, ranks=2)  ──fold──>  host:port    described, drained, ejected, removed; no candidate
                                              host:port@0  a row each: match, load, capacity, events
                                              host:port@1

The log describes the worker alone. The fold derives the rows of its ranks, so a drain, a label or a removal
counts for all of them at once, and another number of ranks is one field. Operations on requests and caches
name a rank; `Forget`, `Started` and circuits name the worker.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from radix import RANKS_MAX, parsed_whole

if TYPE_CHECKING:
    from policies.fleet.fleet import Worker

MARK = "@"


def rank_id(worker_id: str, rank: int) -> str:
    """Return the id of a worker's rank."""
    return f"{worker_id}{MARK}{rank}"


def rank_of(place_id: str) -> tuple[str, int]:
    """Return the worker and the rank that an id names; rank -1 for an id of a whole worker."""
    if MARK not in place_id:
        return place_id, -1
    worker_id, _, digits = place_id.rpartition(MARK)
    rank = parsed_whole(digits, RANKS_MAX - 1)
    return (place_id, -1) if rank is None or not worker_id else (worker_id, rank)


def place_of(worker: "Worker", rank: int, slot: int) -> "Worker":
    """Return the row of a worker's rank: everything but the capacity is the worker's."""
    return replace(
        worker,
        worker_id=rank_id(worker.worker_id, rank),
        slot=slot,
        capacity_tokens=worker.capacity_tokens // worker.ranks,
        leaving=False,
        entry=None,
        rank=rank,
        base=worker.worker_id,
    )
