"""The states of one request and of a pair of reservations, and the only ways between them.

    READING ──┬──────────> SENT ──> ANSWERING ──> DONE
              │            ^ │ ^
              └─> QUEUED ──┘ v │
                     ^────BETWEEN        each of them may also end: DONE

    UNMADE ──> PREFILLING ──> SHIPPING ──> DECODING      of a pair; from each but the first: RELEASED

A step that a state does not know is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class Phase(IntEnum):
    """Where a request stands."""

    READING = 0
    """It is parsed, tokenized, charged; nothing is decided."""
    QUEUED = 1
    """It waits for its turn (`policies.RequestQueue`)."""
    SENT = 2
    """It is at its workers, and its client has seen nothing."""
    BETWEEN = 3
    """An attempt has failed, or its wait was for nothing; what follows is not decided, or a pause is."""
    ANSWERING = 4
    """Its client has the head of its answer."""
    DONE = 5
    """It is counted out, and its client has an answer or has left."""


class Step(IntEnum):
    """What happens to a request."""

    QUEUE = 0
    SEND = 1
    FAIL = 2
    ANSWER = 3
    END = 4


NEXT: dict[Phase, dict[Step, Phase]] = {
    Phase.READING: {Step.QUEUE: Phase.QUEUED, Step.SEND: Phase.SENT, Step.END: Phase.DONE},
    Phase.QUEUED: {Step.SEND: Phase.SENT, Step.FAIL: Phase.BETWEEN, Step.END: Phase.DONE},
    Phase.SENT: {Step.FAIL: Phase.BETWEEN, Step.ANSWER: Phase.ANSWERING, Step.END: Phase.DONE},
    Phase.BETWEEN: {Step.QUEUE: Phase.QUEUED, Step.SEND: Phase.SENT, Step.END: Phase.DONE},
    Phase.ANSWERING: {Step.END: Phase.DONE},
    Phase.DONE: {},
}
"""The state that follows, by state and step."""


class PairPhase(IntEnum):
    """Where a request stands that a prefill and a decode worker share."""

    UNMADE = 0
    """Nothing is reserved yet."""
    PREFILLING = 1
    """Both workers and the link are reserved."""
    SHIPPING = 2
    """The prefill worker has done its part, and is free."""
    DECODING = 3
    """The KV is at the decode worker, and the link is free."""
    RELEASED = 4
    """Nothing is reserved any more."""


class PairStep(IntEnum):
    """What happens to it."""

    MAKE = 0
    PREFILL = 1
    SHIP = 2
    RELEASE = 3


NEXT_OF_PAIR: dict[PairPhase, dict[PairStep, PairPhase]] = {
    PairPhase.UNMADE: {PairStep.MAKE: PairPhase.PREFILLING},
    PairPhase.PREFILLING: {PairStep.PREFILL: PairPhase.SHIPPING, PairStep.RELEASE: PairPhase.RELEASED},
    PairPhase.SHIPPING: {PairStep.SHIP: PairPhase.DECODING, PairStep.RELEASE: PairPhase.RELEASED},
    PairPhase.DECODING: {PairStep.RELEASE: PairPhase.RELEASED},
    PairPhase.RELEASED: {},
}
"""The state that follows, by state and step."""
