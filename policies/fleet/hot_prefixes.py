"""Common starts of many prompts, and the saving by one more copy of each.

A prompt without a cache of its own goes where its start is held, or where the queue is short: by itself it
pays for a copy only once its wait is longer than that takes. Others would have waited less, too. So for each
start (the deepest part of a prompt from which at least `BRANCHES_MIN` prompts go on) the fold counts how long
requests wait at its n holders beyond the mean of all workers, and expects of one more copy

    saved seconds = wait at holders in a second · horizon / (n + 1)

A worker without the start is priced that much lower (`policies.scoring.expected_cost`), so the next request
that comes makes the copy, by prefill or by fetch from a pool, while the queue is still shorter than that
takes. With every copy the wait goes down and n goes up, until a copy no longer pays.

Requests that return to a session are not counted: they go where the session is. This is derived from the
log, no part of the fold: a new replica learns it within `WINDOW_S`.
"""

from collections.abc import Sequence
from math import exp

import msgspec

from policies.pricing.views import Copying, Slots
from policies.state.loads import Loads
from policies.state.ops import Placed
from radix import CommonStart, Match, PrefixTree, common_start

BRANCHES_MIN = 4
"""Ways to go on from a start that many prompts have. [guess] A session branches in two or three."""

SESSION_BLOCKS = 8
"""A longer match beyond the start is a session's: a copy of the start alone would not help it. [guess]"""

WINDOW_S = 60.0
"""Time constant of the waits counted."""

STARTS_MAX = 1000
"""Starts that are remembered; beyond it the oldest go."""


class _Start(msgspec.Struct, gc=False):
    """Seconds of wait at the holders of a start, fading, as of a log time."""

    wait_s: float
    at_us: int

    def at(self, now_us: int) -> float:
        return self.wait_s * exp(-max(now_us - self.at_us, 0) / (1e6 * WINDOW_S))


class HotPrefixes:
    """Waits for common starts. ``horizon_s`` is the expected use of a copy; 0: nothing is counted."""

    def __init__(self, tree: PrefixTree, loads: Loads, horizon_s: float) -> None:
        self._tree = tree
        self._loads = loads
        self.horizon_s = horizon_s
        self._starts: dict[int, _Start] = {}

    def placed(self, op: Placed, slot: int, slots: Slots) -> None:
        """Count a placement before it is applied; ``slots`` are all workers that prefill."""
        start = common_start(self._tree, op.paths[0], BRANCHES_MIN) if len(op.paths) == 1 else None
        if start is None or op.safe_blocks > start.blocks + SESSION_BLOCKS or not len(slots):
            return
        known = self._starts.pop(start.last_hash, None)
        waited_s = 0.0 if known is None else known.at(op.at_us)
        holders = start.holders.bit_count()
        if start.holders >> slot & 1:
            mean_s = float(self._loads.backlog_s(slots, op.at_us).mean())
            waited_s += max(self._loads.backlog_at_s(slot, op.at_us) - mean_s, 0.0)
        else:
            waited_s *= holders / (holders + 1)
        self._starts[start.last_hash] = _Start(waited_s, op.at_us)
        if len(self._starts) > STARTS_MAX:
            del self._starts[next(iter(self._starts))]

    def copying(
        self, paths: Sequence[bytes], matches: Sequence[Match], tokens_per_block: float, now_us: int
    ) -> Copying | None:
        """Saving of one more copy of a prompt's start; None without one, or if the prompt is a session's."""
        if len(paths) != 1 or not matches:
            return None
        start: CommonStart | None = common_start(self._tree, paths[0], BRANCHES_MIN)
        known = None if start is None else self._starts.get(start.last_hash)
        if start is None or known is None or matches[0].parts[-1][1] > start.blocks + SESSION_BLOCKS:
            return None
        saved_s = known.at(now_us) / WINDOW_S * self.horizon_s / (start.holders.bit_count() + 1)
        return Copying((start.blocks - 0.5) * tokens_per_block, saved_s)
