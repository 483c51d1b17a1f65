"""The states of a request with two legs (`router.handover.pair_exchange`), and the only ways between them.

    SENT ───┬──> PREFILLED ──> SHIPPED ──> ANSWERING          each of them may also end: OVER
     ^ v    │         │           │
    HELD    ├─────────┴───────────┴──────> DECODE_REFUSED
            └────────────────────────────> PREFILL_REFUSED

Any other way is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class Course(IntEnum):
    """State of a request with two legs. From `ANSWERING` on the sink has heard something."""

    SENT = 0
    """The prefill leg is under way, or not yet sent."""
    HELD = 1
    """The same as SENT, but the decode engine has failed, perhaps for want of its partner."""
    PREFILLED = 2
    """The prefill leg has ended well; the KV may not have arrived."""
    SHIPPED = 3
    """The KV is at the decode worker."""
    ANSWERING = 4
    """The decode leg's answer is passed on."""
    DECODE_REFUSED = 5
    """An error answer of the decode leg is passed on."""
    PREFILL_REFUSED = 6
    """An error answer of the prefill leg is passed on."""
    OVER = 7
    """The sink hears nothing more. A prefill leg may still be answering."""


_WAYS = {
    Course.SENT: (Course.HELD, Course.PREFILLED, Course.DECODE_REFUSED, Course.PREFILL_REFUSED, Course.OVER),
    Course.HELD: (Course.SENT, Course.OVER),
    Course.PREFILLED: (Course.SHIPPED, Course.DECODE_REFUSED, Course.OVER),
    Course.SHIPPED: (Course.ANSWERING, Course.DECODE_REFUSED, Course.OVER),
    Course.ANSWERING: (Course.OVER,),
    Course.DECODE_REFUSED: (Course.OVER,),
    Course.PREFILL_REFUSED: (Course.OVER,),
    Course.OVER: (Course.OVER,),
}
NEXT_COURSE: dict[Course, dict[Course, Course]] = {
    before: {after: after for after in ways} for before, ways in _WAYS.items()
}
"""``NEXT_COURSE[before][after]`` is ``after``, where a way leads there. To end again changes nothing."""
