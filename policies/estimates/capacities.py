"""Capacity of a worker's cache for reuse, learned from answers.

Engines may not report their size, and keep less for reuse than it: running requests and the unused rest of
sessions take room. Too large a belief keeps sessions at workers that have lost them; too small a one drives
them from workers that hold them.

Engines evict what was not used for longest. So the *distance* of a prompt is known before it is sent: the
blocks that the worker has used since it last used this prompt's own (stack distance, Mattson et al., IBM
Systems Journal 9(2), 1970: an LRU cache of C blocks has it if the distance is at most C).

    less cached than predicted   C < distance: come down half of the way, by `FALL_MAX` at most
    much more than predicted     a block that the tree had evicted is there: go up by `RISE`
    as predicted                 unchanged

One answer proves little (the block may have gone for another reason), so the steps are small. Where both
happen equally often they balance, a little below the real capacity.
"""

from typing import NamedTuple

FALL_MAX = 0.15
"""Largest share by which one answer lowers the capacity."""

RISE = 0.03
"""Share by which one answer raises it."""

SHORTFALL_MIN = 2
"""Blocks; a smaller shortfall is the rounding of text to tokens."""

SURPLUS_MIN, SURPLUS_RATIO = 4, 0.25
"""Blocks, and share of the prompt, beyond which more was cached than predicted: answers of earlier turns,
which the tree does not know, are less."""


class Reuse(NamedTuple):
    """Blocks of a prompt that were predicted to be cached, and were cached.

    ``distance`` counts the blocks of the worker used since it last used the predicted ones, those included.
    """

    prompt: int
    predicted: int
    cached: int
    distance: int

    @property
    def is_short(self) -> bool:
        """True if so much less was cached that something was evicted."""
        return self.cached + SHORTFALL_MIN < self.predicted

    @property
    def is_more(self) -> bool:
        """True if something was cached that was believed to be evicted."""
        return self.cached > self.predicted + SURPLUS_MIN + SURPLUS_RATIO * self.prompt


def learned_blocks(capacity_blocks: float, reuse: Reuse) -> float:
    """Capacity in blocks after an answer, as before (+inf if unknown) if the answer shows nothing new."""
    if reuse.is_more:
        return capacity_blocks * (1.0 + RISE)
    if not reuse.is_short:
        return capacity_blocks
    lost = reuse.predicted - reuse.cached
    # An engine that has lost the head of a prompt cannot use the rest, at any length.
    limit = float(reuse.distance - (lost if reuse.cached else lost // 2))
    if limit < reuse.prompt or limit >= capacity_blocks:
        return capacity_blocks
    if capacity_blocks == float("inf"):
        return limit
    return max((capacity_blocks + limit) / 2.0, capacity_blocks * (1.0 - FALL_MAX))
