"""Presets: numbers of users over time, and the promises of a run.

    smoke     ───────     a minute of a few: does it work at all?
    steady    /──────     ten minutes at one level
    spike     ──▲▲───     five times as many for a fifth of the time, at once
    soak      /──────     four hours: does anything grow?
    overload  ──██───     ten times as many for a third of the time: none may be cut, many may be rejected

Users are closed loop, so their number is the demanded load, not the served one. ``--users`` scales and
``--run-time`` stretches `users_at`.
"""

from dataclasses import dataclass
from itertools import pairwise

Steps = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """One kind of run.

    Attributes:
        users: Default number.
        run_s: Default length, seconds.
        steps: ``(share of the run, share of the users)``, ascending; between two of them in a straight line.
        completed_min: Least share of the requests not rejected that must complete.
        rejected_max: Greatest share of requests that may be rejected.
    """

    purpose: str
    users: int
    run_s: float
    steps: Steps
    completed_min: float = 0.999
    rejected_max: float = 0.0


_FLAT: Steps = ((0.0, 1.0), (1.0, 1.0))
_RAMPED: Steps = ((0.0, 0.1), (0.1, 1.0), (1.0, 1.0))

PRESETS = {
    "smoke": Preset("a minute of a few users: does it work at all?", 10, 60.0, _FLAT),
    "steady": Preset("one level for long enough to compare", 50, 600.0, _RAMPED, rejected_max=0.01),
    "spike": Preset(
        "five times as many at once, then calm again",
        *(40, 300.0, ((0.0, 0.2), (0.4, 0.2), (0.4, 1.0), (0.6, 1.0), (0.6, 0.2), (1.0, 0.2))),
        rejected_max=1.0,
    ),
    "soak": Preset("hours at one level: does anything grow?", 30, 4 * 3600.0, _RAMPED, rejected_max=0.01),
    "overload": Preset(
        "ten times as many: many may be rejected, none cut",
        *(200, 300.0, ((0.0, 0.1), (0.2, 0.1), (0.2, 1.0), (0.55, 1.0), (0.55, 0.1), (1.0, 0.1))),
        rejected_max=1.0,
    ),
}


def users_at(preset: Preset, elapsed_s: float, users: int, run_s: float) -> int | None:
    """Number of users ``elapsed_s`` >= 0 after the start of a run of ``run_s`` > 0; None when it is over.

    ``users`` > 0 is the most there are.
    """
    at = elapsed_s / run_s
    if at >= 1.0:
        return None
    for (begin, low), (end, high) in pairwise(preset.steps):
        if at < end:
            share = low + (high - low) * (at - begin) / (end - begin)
            return max(1, round(share * users))
    raise AssertionError("the last step of a preset ends at 1")
