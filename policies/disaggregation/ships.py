"""Cost of splitting a request between two workers, by candidate."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.estimates.costs import Floats
from policies.pricing.views import Slots
from policies.state.loads import Loads


class Ships(msgspec.Struct, frozen=True, gc=False):
    """Cost of splitting a request between two workers, or of not splitting it.

    Candidates that would hand the request over to the same decode workers over the same link share a
    *route* (by slot; 0 for a worker that does all alone), and so a price
    (`policies.disaggregation.decode_selection`):

        V' = max(V', W)                      W: room_s, until a decode worker has room
        X = base + max(0, send - overlap·s)  s: the prefill, during which a share of the KV is sent already

    A candidate that decodes, plain or not (``splits`` is 0 in its slot), stalls its n decoding requests while
    it prefills, by up to s each: an engine prefills first, or does both in one longer step. So ``n·s`` is
    added to the price, as a loss of others (theory E2: kappa's term covers those that wait).
    """

    routes: NDArray[np.intp]
    room_s: Floats
    base_s: Floats
    send_s: Floats
    overlap_ratio: Floats
    splits: Floats

    def columns(self, loads: Loads, index: slice | Slots, prefill_s: Floats) -> tuple[Floats, Floats, Floats]:
        """W, X and the loss of others, of the candidates of an index."""
        routes = self.routes[index]
        exposed_s = np.maximum(self.send_s[routes] - self.overlap_ratio[routes] * prefill_s, 0.0)
        exposed_s += self.base_s[routes]
        decoding = loads.inflight_requests[index] - loads.prefill_requests[index]
        decoding *= 1.0 - self.splits[index]
        return self.room_s[routes], exposed_s, decoding * prefill_s

    def at(self, loads: Loads, slot: int, prefill_s: float) -> tuple[float, float, float]:
        """W, X and the loss of others, of one candidate."""
        route = self.routes.item(slot)
        if self.splits.item(slot):
            late_s = self.send_s.item(route) - self.overlap_ratio.item(route) * prefill_s
            return self.room_s.item(route), self.base_s.item(route) + max(late_s, 0.0), 0.0
        decoding = loads.inflight_requests.item(slot) - loads.prefill_requests.item(slot)
        return 0.0, 0.0, decoding * prefill_s
