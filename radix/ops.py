"""Changes to the prefix tree, as values and (through msgspec) as bytes.

Replicas send these to each other, so they commute and repeat harmlessly: every operation carries the *log
time* at which it became true, and every held block has the latest time it was used. Removals are remembered
for a while, so that an older ``Insert`` that arrives late does not undo them.

Log time is Redis server time in integer microseconds since the epoch: exact and equal on all replicas.
"""

from typing import assert_never

import msgspec

from radix.blocks import words_of
from radix.bounds import Count, LogTime, Path, WorkerId
from radix.tree import PrefixTree


class Insert(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A worker holds all blocks of a path (packed hashes, `radix.blocks`).

    Attributes:
        at_us: Log time of last use.
        end: True if a request ended here: a window or a linear state is valid at the end of the path
            (`radix.windows`).
        ends: With ``end``: boundaries that are valid, counted back from the end of the path. One operation
            reports a whole run of an engine (`radix.residency`).
    """

    worker: WorkerId
    path: Path
    at_us: LogTime
    end: bool = True
    ends: Count = 1


class Trim(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A worker no longer holds the last block of ``path``, nor anything below it, unless used since.

    Attributes:
        path: Packed hashes down to and including the first block that is gone; not empty.
        before_us: Blocks last used strictly before this log time are removed.
    """

    worker: WorkerId
    path: Path
    before_us: LogTime


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A worker lost its whole cache (restart, flush): drop everything last used before ``before_us``."""

    worker: WorkerId
    before_us: LogTime


class EndGone(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Windows or states that were valid at the end of a path are no longer; the blocks stay.

    Attributes:
        path: Packed hashes; not empty.
        before_us: Reports of these boundaries strictly before this log time no longer count.
        ends: Boundaries, counted back from the end of the path.
    """

    worker: WorkerId
    path: Path
    before_us: LogTime
    ends: Count = 1


class EndReach(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """A worker can go on behind a block that it holds, if a prompt continues it (`radix.reaches`).

    Attributes:
        path: Packed hashes up to the last block of the worker's prefix that the gateway knows; only that
            one counts, so the others may be left out.
        at_us: Log time of its last use.
        blocks: Blocks behind it from which the engine can go on.
    """

    worker: WorkerId
    path: Path
    at_us: LogTime
    blocks: Count = 0


TreeOp = Insert | Trim | Forget | EndGone | EndReach


def apply(tree: PrefixTree, op: TreeOp, slot: int) -> None:
    """Apply an operation to a tree, with the slot that stands for ``op.worker`` there.

    Raises:
        ValueError: Its path or time is not one; nothing was changed.
    """
    match op:
        case Insert(path=path, at_us=at_us, end=end, ends=ends):
            tree.insert(slot, path, at_us, end=end, ends=ends)
        case Trim(path=path, before_us=before_us):
            tree.trim(slot, path, before_us)
        case Forget(before_us=before_us):
            tree.forget(slot, before_us)
        case EndGone(path=path, before_us=before_us, ends=ends):
            tree.end_gone(slot, path, before_us, ends=ends)
        case EndReach(path=path, at_us=at_us, blocks=blocks):
            words = words_of(path)
            if not len(words):
                raise ValueError("a reach needs the block that it lies behind")
            tree.end_reach(slot, words[-1], at_us, blocks)
        case never:
            assert_never(never)
