"""Roles of workers that share requests, and the outcome of an engine's switch to another role."""

from enum import StrEnum

PREFILL, DECODE = "prefill", "decode"


class Switched(StrEnum):
    """Outcome of an engine's switch to a role.

    DONE: it has it, and kept its cache. EMPTIED: with an empty cache. LATER: not yet, or unknown. REFUSED: it
    keeps its role. BROKEN: it has none.
    """

    DONE = "done"
    EMPTIED = "emptied"
    LATER = "later"
    REFUSED = "refused"
    BROKEN = "broken"
