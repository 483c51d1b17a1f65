"""The states of one request, and the only ways between them.

    READING ──┬──────────> SENT ──> ANSWERING ──> DONE
              │            ^ │ ^
              └─> QUEUED ──┘ v │
                     ^────BETWEEN        each of them may also end: DONE

A step that a state does not know is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class Phase(IntEnum):
    """Where a request stands."""

    READING = 0
    """It is parsed, tokenized, charged; nothing is decided."""
    QUEUED = 1
    """It waits for its turn (`router.gateway.waiting_room`)."""
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
