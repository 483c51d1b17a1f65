"""The states of the reservations of a pair, and the only ways between them.

    UNMADE ──> PREFILLING ──> SHIPPING ──> DECODING      from each but the first: RELEASED

Any other way is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class PairPhase(IntEnum):
    """State of the reservations of a request that a prefill and a decode worker share."""

    UNMADE = 0
    """Nothing is reserved yet."""
    PREFILLING = 1
    """Both workers and the link are reserved."""
    SHIPPING = 2
    """The prefill worker is free."""
    DECODING = 3
    """The KV is at the decode worker, and the link is free."""
    RELEASED = 4


_PAIR_WAYS = {
    PairPhase.UNMADE: (PairPhase.PREFILLING,),
    PairPhase.PREFILLING: (PairPhase.SHIPPING, PairPhase.RELEASED),
    PairPhase.SHIPPING: (PairPhase.DECODING, PairPhase.RELEASED),
    PairPhase.DECODING: (PairPhase.RELEASED,),
    PairPhase.RELEASED: (),
}
NEXT_OF_PAIR: dict[PairPhase, dict[PairPhase, PairPhase]] = {
    before: {after: after for after in ways} for before, ways in _PAIR_WAYS.items()
}
