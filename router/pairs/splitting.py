"""Pairs whose hand-over protocol can split a request."""

from collections.abc import Mapping

import numpy as np

from policies import Pairing, Slots
from router.errors import NoWorker
from router.gateway.endpoints import WITHOUT_CACHE
from router.gateway.parsing import ParsedRequest
from router.handover import Handover


def splitting(
    handovers: Mapping[str, Handover], slots: Slots, pairing: Pairing, parsed: ParsedRequest
) -> tuple[Slots, Pairing | None]:
    """Leave out the pairs whose hand-over protocol cannot split a request; `NoWorker` if no other is left.

    A request that computes nothing may go to either half of a pair; ranks and scores are computed, by one
    worker.
    """
    whole = [
        number for number, each in enumerate(pairing.partners) if not handovers[each.protocol].splits(parsed)
    ]
    if not whole:
        return slots, pairing
    if parsed.endpoint in WITHOUT_CACHE:
        return slots, None
    left = slots[~np.isin(pairing.groups_of(slots), whole)]
    if not len(left):
        protocols = ", ".join(pairing.partners[number].protocol for number in whole)
        raise NoWorker(
            f"Requests like this one to {parsed.endpoint} cannot be shared by a prefill and a decode worker "
            f"({protocols}): they need a plain worker.",
            retry_after_s=1.0,
        )
    return left, pairing
