"""Slow start: a worker that returns takes a growing share of the requests.

    share
      1 ┤            ______
        │         .'
    0.1 ┤______.'
        └──────┬────┬───────> elapsed
         0.1 ramp   ramp

Rendezvous hashing draws, so that all replicas let the same requests through and no state is kept. The draw is
independent of the tie break in `policies.scoring.placement`, which would send every request let through
there.
"""

import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.state.rendezvous import rank_costs, turn_key

SHARE_MIN = 0.1
"""Share of a worker that has just returned: enough to see whether it is well."""

_DRAW = 0x51
"""Turn of a key that decides: any but those that policies count from 0."""


def shares(elapsed_us: Floats, ramp_us: float) -> Floats:
    """Share of the requests, in [0.1, 1], by the time since workers returned; 1 after ``ramp_us`` > 0."""
    grown: Floats = np.clip(elapsed_us / ramp_us, SHARE_MIN, 1.0)
    return grown


def admitted(
    key: int, worker_hash: NDArray[np.uint64], elapsed_us: Floats, ramp_us: float
) -> NDArray[np.bool_]:
    """Mask of the workers, by the hashes of their ids, that a request with a 64-bit key may go to."""
    mask: NDArray[np.bool_] = rank_costs(turn_key(key, _DRAW), worker_hash) < shares(elapsed_us, ramp_us)
    return mask
