"""Which worker belongs to which length bucket, as a part of the fold.

    labels      a worker's label ``bucket`` names its bucket; without one it takes any length
    automatic   the newest `policies.ops.BucketPlan` says bounds and members; a label still wins

While nobody belongs to a bucket, lengths do not matter, and nothing here costs anything.

A worker that a plan moves *drains first*: until what was placed there before has been prefilled, it takes
nothing new if anybody else can (`may_take`). Its decodes go on; they do not drag a prefill. Nothing is
dropped, and the move takes no longer than the last old prefill, however that ends.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.buckets import ANY_BUCKET, LengthBuckets, exceeded_tokens
from policies.ops import BucketPlan

KEPT_MAX = 100
"""Lists of slots (one per model and bucket) that are kept without those that drain."""

PLANS_KEPT = 8
"""Newest plans that are remembered, with their reasons; all but the newest without their members."""


class BucketMembers:
    """The buckets of all workers.

    Args:
        lengths: Bounds of the settings; None: there are no buckets.
        automatic: Whether plans count.

    Attributes:
        lengths: Bounds now; None: there are no buckets, or nobody belongs to one.
        automatic: As given.
        plans: The newest ones, the newest last.
        moving: Slots of workers that drain first, with the log time of their move.
        watched: Whether somebody belongs to a bucket, or may come to.
        placed: Requests seen placed since the start, by their bucket and their worker's.
    """

    def __init__(self, lengths: LengthBuckets | None, *, automatic: bool) -> None:
        self.automatic = self.watched = automatic and lengths is not None
        self.plans: list[BucketPlan] = []
        self.moving: dict[int, int] = {}
        self.lengths: LengthBuckets | None = None
        self.placed: Counter[tuple[int, int]] = Counter()
        self._configured = lengths
        self._bounds = lengths
        self._labels: dict[int, tuple[str, str]] = {}
        self._members: dict[int, int] = {}
        self._settled: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}

    @property
    def bounds(self) -> LengthBuckets | None:
        """Bounds now, also while nobody belongs to a bucket; None if there are none."""
        return self._bounds

    # The fold.

    def put(self, slot: int, worker_id: str, label: str) -> None:
        """A worker is in a slot, with this label (empty: none)."""
        self._labels[slot] = worker_id, label
        self._settle_in((slot,))

    def gone(self, slot: int) -> None:
        """The worker of a slot is no more."""
        if self._labels.pop(slot, None) is not None:
            self._settle_in((slot,))

    def planned(self, op: BucketPlan) -> bool:
        """Take in a plan; the newest counts. One that other settings made is none.

        Returns:
            Whether members changed.
        """
        if not self._fits(op) or any(
            (op.at_us, op.replica) == (known.at_us, known.replica) for known in self.plans
        ):
            return False
        newest = self.newest
        self.plans.append(op)
        self.plans.sort(key=lambda plan: (plan.at_us, plan.replica))
        del self.plans[:-PLANS_KEPT]
        self.plans[:-1] = [msgspec.structs.replace(plan, workers={}) for plan in self.plans[:-1]]
        if self.newest is newest:
            return False
        self._bounds = LengthBuckets(op.tokens_max)
        self._settled.clear()
        self.moving = {slot: op.at_us for slot, (name, _) in self._labels.items() if name in op.moved}
        self._settle_in(tuple(self._labels))
        return True

    def dump(self) -> Iterator[BucketPlan]:
        """All that is remembered of plans, as operations."""
        yield from self.plans

    # Questions.

    @property
    def newest(self) -> BucketPlan | None:
        """The plan that counts, if plans do; None if nobody has planned yet."""
        return self.plans[-1] if self.plans else None

    def of_length(self, tokens: float) -> int:
        """Number of the bucket for a length.

        Returns:
            `ANY_BUCKET` while nobody belongs to one; the number behind the last for a length beyond it.
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
        configured = self._configured
        if configured is None:
            return {}
        return {
            worker_id: label
            for worker_id, label in sorted(self._labels.values())
            if label and configured.labelled(label) == ANY_BUCKET
        }

    def pinned(self, slot: int) -> bool:
        """Whether a label says where a worker belongs."""
        label = self._labels.get(slot, ("", ""))[1]
        return self._configured is not None and self._configured.labelled(label) != ANY_BUCKET

    def fitting(
        self, slots: NDArray[np.intp], bucket: int, holds_tokens: Callable[[int], int]
    ) -> NDArray[np.intp]:
        """Of some workers, those that may take requests of a bucket, at home or visited.

        Nobody doubts that a worker at home can hold them. Of the others those can that hold the longest of
        the bucket, or as much as any at home says it holds. What exceeds the last bucket is for those that
        take any length.

        Args:
            slots: Who is asked for.
            bucket: See `of_length`; or a limit that is exceeded (`policies.buckets.beyond`).
            holds_tokens: Longest prompt and answer that the worker in a slot says it can hold, or 0.
        """
        lengths = self.lengths
        if exceeded := exceeded_tokens(bucket):
            held = np.array([holds_tokens(slot) for slot in slots.tolist()], dtype=np.int64)
            fits: NDArray[np.bool_] = (held == 0) | (held > exceeded)
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

    def may_take(self, slots: NDArray[np.intp], oldest_prefill_us: Callable[[int], int]) -> NDArray[np.intp]:
        """Of some workers, those that do not drain for a move, all of them if all do; the same array again.

        Args:
            slots: Who is asked for.
            oldest_prefill_us: See `policies.loads.Loads.oldest_prefill_us`.
        """
        settled = [slot for slot, moved_us in self.moving.items() if oldest_prefill_us(slot) > moved_us]
        for slot in settled:
            del self.moving[slot]
        if settled:
            self._settled.clear()
        kept = self._settled.get(id(slots))
        if kept is None or kept[0] is not slots:
            if len(self._settled) >= KEPT_MAX:
                self._settled.clear()
            others = slots[~np.isin(slots, list(self.moving))]
            kept = self._settled[id(slots)] = slots, others if len(others) else slots
        return kept[1]

    def together_with(self, slots: NDArray[np.intp], partner: int) -> NDArray[np.intp]:
        """Of some workers, those that may share a request with one: prefill and decode of one bucket.

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

    # Inside.

    def _fits(self, op: BucketPlan) -> bool:
        """Whether plans count, and this one has as many buckets as the settings, and their last bound."""
        configured = self._configured
        return (
            self.automatic
            and configured is not None
            and len(op.tokens_max) == len(configured)
            and op.tokens_max[-1] == configured.tokens_max[-1]
            and all(low < high for low, high in pairwise((0, *op.tokens_max)))
        )

    def _settle_in(self, slots: Sequence[int]) -> None:
        """Find out anew where these belong, and whether anybody belongs anywhere."""
        configured, bounds = self._configured, self._bounds
        if configured is None or bounds is None:
            return
        planned = self.newest.workers if self.newest is not None else {}
        for slot in slots:
            worker_id, label = self._labels.get(slot, ("", ""))
            number = configured.labelled(label)
            if number == ANY_BUCKET:
                number = planned.get(worker_id, ANY_BUCKET)
            if 0 <= number < len(bounds):
                self._members[slot] = number
            else:
                self._members.pop(slot, None)
                self.moving.pop(slot, None)
        self.lengths = bounds if self._members else None
        self.watched = self.automatic or self.lengths is not None
