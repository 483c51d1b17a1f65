"""The worker's length bucket, as a part of the fold.

A worker's label ``bucket`` names its bucket; without one it takes any length. While no worker belongs to a
bucket, lengths do not matter, and nothing here costs anything.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from policies.state.buckets import ANY_BUCKET, LengthBuckets, LengthClass


class BucketMembers:
    """The buckets of all workers.

    Args:
        bounds: Bounds of the settings; None: there are no buckets.

    Attributes:
        bounds: As given.
        lengths: The same, while a worker belongs to a bucket; else None.
        placed: Requests seen placed since the start, by their bucket and their worker's.
    """

    def __init__(self, bounds: LengthBuckets | None) -> None:
        self.bounds = bounds
        self.lengths: LengthBuckets | None = None
        self.placed: Counter[tuple[int, int]] = Counter()
        self._labels: dict[int, tuple[str, str]] = {}
        self._members: dict[int, int] = {}

    # The fold.

    def put(self, slot: int, worker_id: str, label: str) -> None:
        """A worker is in a slot, with this label (empty: none)."""
        if self.bounds is None:
            return
        self._labels[slot] = worker_id, label
        self._belongs(slot, self.bounds.labelled(label))

    def gone(self, slot: int) -> None:
        """The worker of a slot is no more."""
        if self._labels.pop(slot, None) is not None:
            self._belongs(slot, ANY_BUCKET)

    def _belongs(self, slot: int, number: int) -> None:
        """A worker belongs to this bucket from now on."""
        if number == ANY_BUCKET:
            self._members.pop(slot, None)
        else:
            self._members[slot] = number
        self.lengths = self.bounds if self._members else None

    # Questions.

    def of_length(self, tokens: float) -> int:
        """Number of the bucket for a length.

        Returns:
            `ANY_BUCKET` while no worker belongs to one; the number behind the last for a length beyond it.
        """
        lengths = self.lengths
        return ANY_BUCKET if lengths is None else bisect_left(lengths.tokens_max, tokens)

    def of(self, slot: int) -> int:
        """Number of the bucket that a worker belongs to; `ANY_BUCKET` if it takes any length."""
        return self._members.get(slot, ANY_BUCKET)

    def count(self, tokens: float, slot: int) -> None:
        """Count a request of this length that was placed on a worker; bounds are those of now."""
        if self.lengths is not None:
            self.placed[self.of_length(tokens), self.of(slot)] += 1

    def strangers(self) -> dict[str, str]:
        """Labels that name no bucket, by worker: these take any length."""
        bounds = self.bounds
        if bounds is None:
            return {}
        return {
            worker_id: label
            for worker_id, label in sorted(self._labels.values())
            if label and bounds.labelled(label) == ANY_BUCKET
        }

    def fitting(
        self, slots: NDArray[np.intp], length: LengthClass, holds_tokens: Callable[[int], int]
    ) -> NDArray[np.intp]:
        """Return those of some workers that may take requests of a bucket, at home or visited.

        A worker at home is assumed to hold them. Another worker may take them if it can hold the longest of
        the bucket, or as much as any at home says it holds. Requests beyond the last bucket are for workers
        that take any length.

        Args:
            slots: Slots of the workers to choose from.
            length: Length class of the requests.
            holds_tokens: Longest prompt and answer that the worker in a slot says it can hold, or 0.
        """
        lengths, bucket = self.lengths, length.bucket
        if length.exceeds_tokens:
            held = np.array([holds_tokens(slot) for slot in slots.tolist()], dtype=np.int64)
            fits: NDArray[np.bool_] = (held == 0) | (held > length.exceeds_tokens)
            return slots[fits]
        if bucket == ANY_BUCKET or lengths is None:
            return slots
        members = self.column(slots)
        home: NDArray[np.bool_] = (members == bucket) | (members == ANY_BUCKET)
        if bucket >= len(lengths):
            return slots[home]
        longest = lengths.tokens_max[bucket]
        held = np.array([holds_tokens(slot) or longest for slot in slots.tolist()], dtype=np.int64)
        needed = min(longest, int(held[home if home.any() else ~home].max(initial=0)))
        home |= held >= needed
        return slots[home]

    def together_with(self, slots: NDArray[np.intp], partner: int) -> NDArray[np.intp]:
        """Return those of some workers that may share a request with one: prefill and decode of one bucket.

        Args:
            slots: Not empty.
            partner: Slot of the worker that has been chosen for the other half.

        Returns:
            Those of its bucket and those of none; all of them if there are none, or if it belongs to none.
        """
        own = self.of(partner)
        if self.lengths is None or own == ANY_BUCKET:
            return slots
        numbers = self.column(slots)
        fitting = slots[(numbers == own) | (numbers == ANY_BUCKET)]
        return fitting if len(fitting) else slots

    def column(self, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        """The bucket of each of some workers."""
        return np.array([self.of(slot) for slot in slots.tolist()], dtype=np.intp)
