"""A rate that is planned over time, as steps: the load that transfers will put on a link.

    rate  ┌──────┐                      times   10   20   30   40
      3   │      └───┐                  rates    3    2    0
      1 ──┘          └────              before the first and behind the last step it is 0

Adding an interval makes at most two steps, removing it takes them away; a step that changes nothing is none.
So the steps follow from the plans, not from their order, as long as rates are whole numbers (exact in float64
up to 2**53). A change costs two binary searches and a copy with C speed, a query a dozen vector operations.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

Piece = tuple[int, int, int]
"""Begin, end and rate."""


class Timetable:
    """The sum of planned rates. Times are whole microseconds of log time, rates whole numbers >= 0."""

    def __init__(self) -> None:
        self._times: NDArray[np.float64] = np.zeros(16)
        self._rates: NDArray[np.float64] = np.zeros(16)
        self._steps = 0
        self._floor = -inf

    def __len__(self) -> int:
        return self._steps

    def add(self, start_us: int, end_us: int, rate: int) -> None:
        """Plan a rate from one time to another, or, if negative, remove a planned one.

        Times before the last `forget` are left out.
        """
        start = max(float(start_us), self._floor)
        end = float(end_us)
        if start >= end or not rate:
            return
        first = self._split(start)
        last = self._split(end)
        self._rates[first:last] += rate
        self._join(last)
        self._join(first)

    def forget(self, before_us: int) -> None:
        """Drop plans before a time."""
        self._floor = max(self._floor, float(before_us))
        done = self._after(self._floor) - 1
        if done < 0:
            return
        steps = self._steps - done
        for column in (self._times, self._rates):
            column[:steps] = column[done : self._steps]
        self._times[0] = self._floor
        self._steps = steps
        self._join(0)

    def at(self, now_us: int) -> float:
        """The rate at a time."""
        step = self._after(float(now_us)) - 1
        return self._rates.item(step) if step >= 0 else 0.0

    def peak(self, start_us: int, end_us: int) -> float:
        """The highest rate from one time to a later one."""
        first = max(self._after(float(start_us)) - 1, 0)
        last = int(self._times[: self._steps].searchsorted(float(end_us)))
        return float(self._rates[first:last].max(initial=0.0))

    def changes(self, from_us: int) -> NDArray[np.float64]:
        """Times later than a given one at which the rate changes."""
        return self._times[self._after(float(from_us)) : self._steps]

    def most_within(self, width_us: int, pieces: Sequence[Piece]) -> float:
        """Greatest rate x seconds, with these pieces, of any stretch of ``width_us`` that overlaps some.

        The sum of a stretch is linear in its beginning between the times at which it begins or ends with a
        step. So only those are tried.
        """
        begin = min(piece[0] for piece in pieces) - width_us
        end = max(piece[1] for piece in pieces)
        first = max(self._after(float(begin)) - 1, 0)
        last = int(self._times[: self._steps].searchsorted(float(end + width_us), "right"))
        # Counted from there, so that sums of microseconds stay exact.
        times, rates = self._times[first:last] - begin, self._rates[first:last]
        edges = np.array([edge - begin for piece in pieces for edge in piece[:2]], dtype=np.float64)
        breaks = np.concatenate([times, edges])
        froms = np.concatenate([breaks, breaks - width_us])
        froms = froms[(froms >= 0) & (froms <= end - begin)]
        ends = froms + width_us
        seen = np.zeros(len(froms))
        if len(times):
            total = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])
            # The last step looked at may go on behind all stretches.
            times, total = (
                np.append(times, times[-1] + 2 * (end - begin + width_us)),
                np.append(total, total[-1] + rates[-1] * 2 * (end - begin + width_us)),
            )
            seen = np.interp(ends, times, total) - np.interp(froms, times, total)
        for start_us, until_us, rate in pieces:
            start, until = float(start_us - begin), float(until_us - begin)
            seen += rate * (np.clip(ends, start, until) - np.clip(froms, start, until))
        return float(seen.max()) / 1e6

    def _after(self, time: float) -> int:
        return int(self._times[: self._steps].searchsorted(time, "right"))

    def _split(self, time: float) -> int:
        """The step that begins at a time, made if there is none."""
        steps = self._steps
        step = int(self._times[:steps].searchsorted(time))
        if step < steps and self._times[step] == time:
            return step
        if steps == len(self._times):
            self._times = np.concatenate([self._times, np.zeros(steps)])
            self._rates = np.concatenate([self._rates, np.zeros(steps)])
        for column in (self._times, self._rates):
            column[step + 1 : steps + 1] = column[step:steps]
        self._times[step] = time
        self._rates[step] = self._rates[step - 1] if step else 0.0
        self._steps = steps + 1
        return step

    def _join(self, step: int) -> None:
        """Remove a step that changes nothing."""
        if self._rates[step] != (self._rates[step - 1] if step else 0.0):
            return
        for column in (self._times, self._rates):
            column[step : self._steps - 1] = column[step + 1 : self._steps]
        self._steps -= 1
