"""Further endpoints for a request, for a proxy that gets no answer of the first.

    the decision, rehearsed without the chosen worker ──prices──> the cheapest others, best first

They are named and not reserved: the reservation moves when the proxy reports which endpoint answered
(`router.picker.exchange.PickedExchange.served_by`).
"""

from math import inf

import msgspec
import numpy as np

from policies import ScoredRequest, priced
from router.errors import RouterError
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.gateway.choosing import choose
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord


class _Notes:
    """Keeps the prices of the request."""

    def __init__(self) -> None:
        self.scored: ScoredRequest | None = None

    def weighed(self, weighed: ScoredRequest) -> None:
        self.scored = weighed


def fallbacks(
    gateway: Gateway, record: RequestRecord, parsed: ParsedRequest, chosen: LocalWorker, count: int
) -> list[LocalWorker]:
    """Return the next best workers after the chosen one, at most ``count``; none where pairs serve.

    They have as many ranks as the chosen one: the request names a rank.
    """
    registry, notes = gateway.registry, _Notes()
    if not count or registry.pairs.active:
        return []
    decider = gateway.placing.decider.rehearsing(notes)
    try:
        # As a new request: one that waited or was sent before is not weighed for a witness.
        choose(gateway, decider, msgspec.structs.replace(record, attempts=0), parsed, chosen.slots)
    except RouterError:
        return []
    scored = notes.scored
    if scored is None:
        return []
    candidates, costs, _ = priced(scored.view, scored.candidates, scored.policy)
    slots = candidates.slow.slots
    found = {chosen.worker.worker_id: chosen}
    for row in np.argsort(np.asarray(costs), kind="stable").tolist():
        local = registry.at_slot(slots.item(row))
        if costs[row] < inf and len(local.places) == len(chosen.places):
            found.setdefault(local.worker.worker_id, local)
        if len(found) > count:
            break
    return list(found.values())[1:]
