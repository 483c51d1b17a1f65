"""The states of one request, and the only ways between them.

    READING ──┬──────────> SENT ──> ANSWERING ──> DONE
              │            ^ │ ^
              └─> QUEUED ──┘ v │
                     ^────BETWEEN        each of them may also end: DONE
                     ^────────ANSWERING    a stream that another worker continues (`router.continuing`)

Any other way is a mistake of ours, and raises `KeyError`.
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


_WAYS = {
    Phase.READING: (Phase.QUEUED, Phase.SENT, Phase.DONE),
    Phase.QUEUED: (Phase.SENT, Phase.BETWEEN, Phase.DONE),
    Phase.SENT: (Phase.BETWEEN, Phase.ANSWERING, Phase.DONE),
    Phase.BETWEEN: (Phase.QUEUED, Phase.SENT, Phase.DONE),
    Phase.ANSWERING: (Phase.BETWEEN, Phase.DONE),
    Phase.DONE: (),
}
NEXT: dict[Phase, dict[Phase, Phase]] = {
    before: {after: after for after in ways} for before, ways in _WAYS.items()
}
"""``NEXT[before][after]`` is ``after``, where a way leads there."""

# A plain request's ways, looked up once: a member of an enum costs ten times a name.
SENT, ANSWERING, DONE = Phase.SENT, Phase.ANSWERING, Phase.DONE
TO_SENT, TO_ANSWERING, TO_DONE = (
    {before: after for before, ways in NEXT.items() if after in ways} for after in (SENT, ANSWERING, DONE)
)
