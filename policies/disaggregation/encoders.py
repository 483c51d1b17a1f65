"""Which encoder gets media: the one that has seen them, unless it has too much to do.

Encoders keep the embeddings of media that they have encoded, so the same medium should come to the same one
(MiMo-V2.5, arXiv:2607.13095, 4.2: +30 % hits by consistent hashing on the media key). One medium that
everybody asks for must not fill one encoder while the others idle, so nobody gets more than `LOAD_FACTOR`
times the mean of all (Mirrokni, Thorup and Zadimoghaddam, 2016; theory D, "CHWBL"), once it has more than
one batch.
"""

import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.state.rendezvous import rank_costs, weights

LOAD_FACTOR = 1.25
"""1 + epsilon: how far above the mean an encoder may go. CacheRoute's value, as of the policy
``consistent_hash``."""

BATCH = 8
"""With fewer in flight an encoder is never full: it encodes so many together (SGLang,
``SGLANG_ENCODER_MAX_BATCH_SIZE``)."""


def choose_encoder(key: int, worker_hash: NDArray[np.uint64], inflight_requests: Floats) -> tuple[int, bool]:
    """Choose an encoder.

    Args:
        key: 64-bit hash of the media.
        worker_hash: 64-bit hash of the worker id of each encoder; not empty.
        inflight_requests: What each has in flight, of all replicas.

    Returns:
        Its row, and whether it is another one than it would be without load.
    """
    counted = np.where(inflight_requests < BATCH, 0.0, inflight_requests)
    mean = (inflight_requests.sum() + 1.0) / len(inflight_requests)
    costs = np.where(counted < np.ceil(LOAD_FACTOR * mean), rank_costs(key, worker_hash), np.inf)
    row = int(costs.argmin())
    return row, row != weights(key, worker_hash).argmax()
