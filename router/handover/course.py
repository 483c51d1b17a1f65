"""The states of a request with two legs (`router.handover.pair_exchange`), and the only ways between them.

    SENT ───┬──> PREFILLED ──> SHIPPED ──> ANSWERING          each of them may also end: OVER
     ^ v    │         │           │
    HELD    ├─────────┴───────────┴──────> DECODE_REFUSED
            └────────────────────────────> PREFILL_REFUSED

A step that a state does not know is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class Course(IntEnum):
    """State of a request with two legs. From `ANSWERING` on the sink has heard something."""

    SENT = 0
    """The prefill leg is under way, or not yet sent."""
    HELD = 1
    """As SENT, and the decode engine has failed, perhaps for want of its partner."""
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


class CourseStep(IntEnum):
    """Event of a request with two legs."""

    HOLD = 0
    SPEAK = 1
    PREFILL = 2
    SHIP = 3
    ANSWER = 4
    DECODE_REFUSE = 5
    PREFILL_REFUSE = 6
    END = 7


NEXT_COURSE: dict[Course, dict[CourseStep, Course]] = {
    Course.SENT: {
        CourseStep.HOLD: Course.HELD,
        CourseStep.PREFILL: Course.PREFILLED,
        CourseStep.DECODE_REFUSE: Course.DECODE_REFUSED,
        CourseStep.PREFILL_REFUSE: Course.PREFILL_REFUSED,
        CourseStep.END: Course.OVER,
    },
    Course.HELD: {CourseStep.SPEAK: Course.SENT, CourseStep.END: Course.OVER},
    Course.PREFILLED: {
        CourseStep.SHIP: Course.SHIPPED,
        CourseStep.DECODE_REFUSE: Course.DECODE_REFUSED,
        CourseStep.END: Course.OVER,
    },
    Course.SHIPPED: {
        CourseStep.ANSWER: Course.ANSWERING,
        CourseStep.DECODE_REFUSE: Course.DECODE_REFUSED,
        CourseStep.END: Course.OVER,
    },
    Course.ANSWERING: {CourseStep.END: Course.OVER},
    Course.DECODE_REFUSED: {CourseStep.END: Course.OVER},
    Course.PREFILL_REFUSED: {CourseStep.END: Course.OVER},
    Course.OVER: {CourseStep.END: Course.OVER},
}
"""To end again changes nothing."""
