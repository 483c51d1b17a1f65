"""Rendezvous hashing: every replica ranks the same workers in the same order for one key, without talking.

Each (key, worker) pair gets a 64-bit weight; the worker with the highest weight wins. Removing a worker moves
only the keys it had won, adding one moves only the keys it wins, and the order of the workers does not matter
(Thaler and Ravishankar, 1998). It breaks ties in `policies.scoring.placement` and is the whole of the hashing
and random policies.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from policies.estimates.costs import Floats

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio, odd: multiplying by it spreads small and consecutive keys."""

_M1, _M2 = 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB

Word = TypeVar("Word", int, NDArray[np.uint64])


def weights(key: int, worker_hash: Word) -> Word:
    """Return the weight of each worker (64-bit hashes of ids) for one unsigned 64-bit key.

    Mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit flips every
    output bit with a chance of about one half.
    """
    word: Any = worker_hash ^ (key * _GOLDEN & _MASK)
    word = (word ^ word >> 30) * _M1 & _MASK
    word = (word ^ word >> 27) * _M2 & _MASK
    weight: Word = word ^ word >> 31
    return weight


def turn_key(key: int, sequence: int) -> int:
    """Derive another key for each turn, so that the same prompt draws again every time."""
    return (key ^ (sequence + 1) * _GOLDEN) * _GOLDEN & _MASK


def turn_of(worker: str, replica: str, replicas: Sequence[str]) -> int:
    """Return the rank of a replica among those alive for acting on a worker; 0 acts, and all agree on it."""
    names = (replica, *replicas)
    hashes = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], dtype=np.uint64)
    drawn = weights(xxhash.xxh3_64_intdigest(worker.encode()), hashes)
    return int((drawn > drawn[0]).sum())


def rank_costs(key: int, worker_hash: NDArray[np.uint64]) -> Floats:
    """Weights as costs in [0, 1): the lowest wins."""
    costs: Floats = np.invert(weights(key, worker_hash)) * 2.0**-64
    return costs


def bounded_costs(
    key: int, worker_hash: NDArray[np.uint64], inflight_requests: Floats, load_factor: float
) -> Floats:
    """Rank by weight, +inf for workers that are full; costs are in [0, 1).

    Bounded-load hashing (Mirrokni, Thorup and Zadimoghaddam, 2016; theory D, "CHWBL"): with m requests in
    flight on n workers, a worker takes one more only while it holds fewer than ``ceil(load_factor * (m + 1) /
    n)``. For a load factor of at least 1 some worker always may.
    """
    requests_max = np.ceil(load_factor * (inflight_requests.sum() + 1.0) / len(inflight_requests))
    return np.where(inflight_requests < requests_max, rank_costs(key, worker_hash), np.inf)
