"""Match of a path with the blocks that each worker holds.

A walk down the tree finds *where sets of workers part from the path* (`radix.bitmask`), a handful even among
a thousand workers; columns and single matches follow from that.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from radix.bitmask import scatter
from radix.windows import AttentionProfile, retained_blocks

PARTS_SEARCHED_MAX = 8
"""Sets searched for one worker's match, at 0.05 µs each; with more the column is made."""


class Match(msgspec.Struct, gc=False, eq=False):
    """Prefix match of every worker.

    Attributes:
        blocks: Length of the path.
        slots: Length of the columns.
        parts: Disjoint sets of workers, each with the depth at which their match ends, in blocks, ascending,
            1 to ``blocks``. All other workers have none.
    """

    blocks: int
    slots: int
    parts: list[tuple[int, int]]
    _matched: NDArray[np.int32] | None = None
    _safe: NDArray[np.int32] | None = None

    @property
    def matched(self) -> NDArray[np.int32]:
        """Prefix match by slot, in blocks, 0 to ``blocks``."""
        if self._matched is None:
            self._matched = np.zeros(self.slots, dtype=np.int32)
            scatter(self._matched, self.parts)
        return self._matched

    @property
    def safe(self) -> NDArray[np.int32]:
        """Window-safe prefix match by slot, in blocks.

        0 to ``matched``; beyond, to ``blocks`` at most, where there is a reach (`radix.reaches`).
        """
        return self.matched if self._safe is None else self._safe

    def matched_at(self, slot: int) -> int:
        """Prefix match of one worker, in blocks."""
        if self._matched is not None:
            return self._matched.item(slot)
        for workers, depth in self.parts:
            if workers >> slot & 1:
                return depth
        return 0

    def safe_at(self, slot: int) -> int:
        """Window-safe prefix match of one worker, in blocks."""
        return self.matched_at(slot) if self._safe is None else self._safe.item(slot)

    def add_safe(self, blocks: list[int], slots: Sequence[int]) -> None:
        """Add the window-safe prefix match of each of a few workers, in blocks."""
        if self._safe is not None or len(self.parts) > PARTS_SEARCHED_MAX:
            safe = self.safe
            for row, slot in enumerate(slots):
                blocks[row] += safe.item(slot)
            return
        for workers, depth in self.parts:
            for row, slot in enumerate(slots):
                if workers >> slot & 1:
                    blocks[row] += depth

    def keep_safe(self, ends: NDArray[np.int32], profile: AttentionProfile, block_tokens: int) -> None:
        """Keep the window-safe part of the match, for a model where that is not all.

        ``ends`` is by slot the deepest block within the match at which a request ended, or the reach behind
        it; 0 if there is neither.
        """
        retained = retained_blocks(self.matched, profile, block_tokens)
        self._safe = np.maximum(retained.astype(np.int32), ends)
