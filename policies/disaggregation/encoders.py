"""Choice of the encoder for media: the one that has encoded them before, unless it is overloaded.

Encoders keep the embeddings of media, so the same medium should reach the same one (MiMo-V2.5,
arXiv:2607.13095, 4.2: +30 % hits by consistent hashing on the media key). So that one popular medium does not
fill one encoder while the others idle, none gets more than `LOAD_FACTOR` times the mean load (Mirrokni,
Thorup and Zadimoghaddam, 2016; theory D, "CHWBL"), once it has more than one batch.
"""

import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.state.rendezvous import rank_costs, weights

LOAD_FACTOR = 1.25
"""1 + epsilon: bound of an encoder's load over the mean. CacheRoute's value, as of the policy
``consistent_hash``."""

BATCH = 8
"""Requests that an encoder encodes together (SGLang, ``SGLANG_ENCODER_MAX_BATCH_SIZE``): with fewer in flight
it is never full."""


def choose_encoder(key: int, worker_hash: NDArray[np.uint64], inflight_requests: Floats) -> tuple[int, bool]:
    """Choose an encoder by the 64-bit hash of the media.

    Returns:
        Its row, and True if the load diverted the request from the row that the hash prefers.
    """
    counted = np.where(inflight_requests < BATCH, 0.0, inflight_requests)
    mean = (inflight_requests.sum() + 1.0) / len(inflight_requests)
    costs = np.where(counted < np.ceil(LOAD_FACTOR * mean), rank_costs(key, worker_hash), np.inf)
    row = int(costs.argmin())
    return row, row != weights(key, worker_hash).argmax()
