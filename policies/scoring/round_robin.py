"""``round_robin``: every worker in turn.

    cost = (row - sequence) mod n      0 for the worker whose turn it is

Each replica counts its own turns. Rows are in the order of the fleet state.
"""

import numpy as np

from policies.estimates.costs import Floats
from policies.pricing.views import Candidates, RequestView


def round_robin(request: RequestView, candidates: Candidates) -> Floats:
    """Turns that each worker has to wait, 0 to n - 1."""
    n = len(candidates)
    turns: Floats = (np.arange(n, dtype=np.float64) - request.sequence % n) % n
    return turns
