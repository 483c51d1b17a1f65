"""Whom of those who are well a request may go to, for reasons of its own.

    pairs                      not for a request that its hand-over protocol cannot split
    those who failed it        last of all: only if nobody else is left
    engines that overlook      never, for a tenant whose cache is kept apart

A worker that needs a partner is an option as long as one of its partners is.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies import Pairing, Partners, Slots
from router.errors import ClientError, NoWorker
from router.fleet import Registry
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.gateway.salting import OVERLOOKED_BY
from router.handover import Handover

_COMPUTES_NOTHING = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})


def untried(
    slots: Slots, pairing: Pairing | None, tried: Sequence[int]
) -> tuple[Slots, Pairing | None, bool]:
    """Leave out those who failed a request, if anybody else is left.

    Args:
        slots: Who may begin it.
        pairing: With whom.
        tried: Slots of those who failed.

    Returns:
        The same without those who failed, and whether somebody else is left; if not, all of them.
    """
    fresh = slots[~np.isin(slots, tried)]
    if pairing is None:
        return (fresh, None, True) if len(fresh) else (slots, None, False)
    ending = [each.slots[~np.isin(each.slots, tried)] for each in pairing.partners]
    spent = [number for number, left in enumerate(ending) if not len(left)]
    fresh = fresh[~np.isin(_groups(fresh, pairing), spent)]
    if not len(fresh):
        return slots, pairing, False
    partners = tuple(
        Partners(each.protocol, left) if len(left) else each
        for each, left in zip(pairing.partners, ending, strict=True)
    )
    return fresh, msgspec.structs.replace(pairing, partners=partners), True


def splitting(
    slots: Slots, pairing: Pairing, handovers: Mapping[str, Handover], parsed: ParsedRequest
) -> tuple[Slots, Pairing | None]:
    """Leave out the pairs that cannot share a request.

    What computes nothing may go to either half of a pair; ranks and scores are computed, by one worker.

    Args:
        slots: Who may begin it.
        pairing: With whom.
        handovers: By protocol, how.
        parsed: The request.

    Raises:
        NoWorker: If only they were left.
    """
    whole = [
        number for number, each in enumerate(pairing.partners) if not handovers[each.protocol].splits(parsed)
    ]
    if not whole:
        return slots, pairing
    if parsed.endpoint in _COMPUTES_NOTHING:
        return slots, None
    kept = slots[~np.isin(_groups(slots, pairing), whole)]
    if not len(kept):
        protocols = ", ".join(pairing.partners[number].protocol for number in whole)
        raise NoWorker(
            f"Requests like this one to {parsed.endpoint} cannot be shared by a prefill and a decode worker "
            f"({protocols}): they need a plain worker.",
            retry_after_s=1.0,
        )
    return kept, pairing


def keeping_apart(registry: Registry, slots: Slots, endpoint: Endpoint) -> Slots:
    """Of some workers, those whose engines hear a tenant's salt.

    Raises:
        ClientError: If none does: a cache shared in silence is not what the tenant asked for.
    """
    engines = OVERLOOKED_BY.get(endpoint)
    if engines is None:
        return slots
    kept = registry.without(slots, engines)
    if not len(kept):
        raise ClientError(
            f"Your cache is kept apart, which {', '.join(engines)} cannot do at {endpoint}.",
            code="isolation_unsupported",
        )
    return kept


def _groups(slots: Slots, pairing: Pairing) -> NDArray[np.intp]:
    """The group of each of some workers of a pairing's list."""
    return pairing.groups[np.searchsorted(pairing.slots, slots)]
