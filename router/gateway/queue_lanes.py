"""Lanes of the waiting queue: which workers may take which of the requests that wait.

A *lane* is a model and a length bucket, ``MODEL|BUCKET``: all requests of one lane may go to the same
workers. Whoever looks at a worker that has room asks for the lanes that it serves, thousands of times a
second, and the answer changes only when workers or the waiting models do: so it is kept,
and `Lanes.follow` looks whether it still holds.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from policies import ANY_BUCKET, Slots

NO_SLOTS: Slots = np.zeros(0, dtype=np.intp)


def lane_of(model: str | None, bucket: int = ANY_BUCKET) -> str:
    """The name of a lane; without a bucket's number while lengths do not matter."""
    return f"{model or ''}|{'' if bucket == ANY_BUCKET else bucket}"


def model_and_bucket(lane: str) -> tuple[str | None, int]:
    """What a lane was named after; a model's name may hold anything. What is no number is no bucket."""
    model, _, bucket = lane.rpartition("|")
    return model or None, int(bucket) if bucket.isascii() and bucket.isdigit() else ANY_BUCKET


class Lanes:
    """The lanes in which somebody waits, and who serves them.

    Args:
        slots_of: Who may take the requests of a lane now; the same array as long as that does not change.

    Attributes:
        slots: Everybody who serves one of them.
    """

    def __init__(self, slots_of: Callable[[str], Slots]) -> None:
        self._slots_of = slots_of
        self._known: dict[str, Slots] = {}
        self._of: dict[int, list[str]] = {}
        self.slots: Slots = NO_SLOTS

    def serving(self, lane: str) -> Slots:
        """Who may take the requests of a lane now."""
        return self._slots_of(lane)

    def of(self, slot: int) -> Sequence[str]:
        """The lanes that the worker in a slot serves, as of the last `follow`."""
        return self._of.get(slot, ())

    def knows(self, lane: str) -> bool:
        """Whether a lane was among those of the last `follow`."""
        return lane in self._known

    def follow(self, waiting: Iterable[str]) -> None:
        """See whether something has changed.

        Args:
            waiting: The lanes in which somebody waits.
        """
        lanes = {lane: self._slots_of(lane) for lane in waiting}
        known = self._known
        if len(lanes) == len(known) and all(known.get(lane) is slots for lane, slots in lanes.items()):
            return
        self._known = lanes
        self._of = {}
        for lane in sorted(lanes):
            for slot in lanes[lane].tolist():
                self._of.setdefault(slot, []).append(lane)
        self.slots = np.array(sorted(self._of), dtype=np.intp)
