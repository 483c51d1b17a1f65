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
    """State of a request."""

    READING = 0
    """Being parsed, tokenized, charged."""
    QUEUED = 1
    """Waiting for its turn (`policies.RequestQueue`)."""
    SENT = 2
    """At its workers; the client has seen nothing."""
    BETWEEN = 3
    """After a failed attempt or a vain wait, before the next step or in a pause."""
    ANSWERING = 4
    """The client has the head of the answer."""
    DONE = 5
    """Counted out; the client has its answer or has left."""


class Step(IntEnum):
    """Event of a request."""

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


class PairStep(IntEnum):
    """Event of a pair of reservations."""

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
