"""The prefix tree as columns, and the check that columns are a snapshot.

Nodes come parents first, in a canonical form: children sorted by their first hash, runs that nothing divides
joined. So equal states give equal bytes. Workers are positions in the sequence that the snapshot was taken
with.

A million blocks are 8 to 14 MB: too much to copy, join or read in one go in a serving process. So the columns
come in *pages* of some `PAGE_BYTES`, each row whole in one of them, and writing, checking and reading pause
in between:

    pages   [rows 0 .. 4000] [rows 4001 .. 8100] ... [.. last row, tombstones]
    marks   without a row: watermarks, floors, the newest time; known when the walk has ended
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from radix.blocks import HASH_BYTES
from radix.bounds import SHARED
from radix.eviction import Key

PAGE_BYTES = 256 * 1024
"""Size at which a page is closed: 0.1 ms to copy, far below what stalls a Redis."""

T = TypeVar("T")


class TreePage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some rows of a snapshot, packed little-endian.

    Attributes:
        parents: Per node the row of its parent, counted over all pages; -1 for the root (``i32``).
        sizes: Blocks per node (``u32``).
        hashes: Runs of all nodes (``u64``).
        holders: Number of holders per node (``u32``).
        slots: Holders of all nodes, ascending in each (``u32``).
        used_us: Time of last use, for each of ``slots`` (``i64``).
        ends: Request ends: row in this page, worker, blocks of the run up to there, log time (``i64`` x 4).
        trims: Tombstones: worker, hash, watermark (``u64`` x 3).
        owners: Owner of each node's blocks (``u64``, `radix.node`); empty if none is known.
    """

    parents: bytes
    sizes: bytes
    hashes: bytes
    holders: bytes
    slots: bytes
    used_us: bytes
    ends: bytes
    trims: bytes
    owners: bytes = b""


class TreeMarks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Newest time, the tree's floor (`radix.eviction`), and the forget watermark and floor per worker."""

    newest_us: int
    floor: Key
    workers: list[tuple[int, Key]]


class TreeSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Holdings of some workers."""

    marks: TreeMarks
    pages: list[TreePage]


@dataclass(frozen=True, slots=True)
class Rows:
    """A snapshot that does not contradict itself, with its number of rows and blocks."""

    snapshot: TreeSnapshot
    count: int
    blocks: int


def finished(steps: Generator[object, None, T]) -> T:
    """Take all steps at once; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def gathered(steps: Generator[TreePage | None, None, TreeMarks]) -> TreeSnapshot:
    """Take all steps of a walk at once."""
    pages: list[TreePage] = []
    while True:
        try:
            page = next(steps)
        except StopIteration as end:
            marks: TreeMarks = end.value
            return TreeSnapshot(marks, pages)
        if page is not None:
            pages.append(page)


def check_steps(snapshot: TreeSnapshot, workers: int) -> Generator[float, None, Rows]:
    """Check page by page that a snapshot's columns do not contradict each other; yield 0.0 after each.

    Raises:
        ValueError: They do, or name a worker that does not exist.
    """
    marks = snapshot.marks
    watermarks = [marks.floor[0], *(at for forgot_us, floor in marks.workers for at in (forgot_us, floor[0]))]
    if (
        not 0 <= marks.newest_us <= 1 << 62
        or len(marks.workers) != workers
        or not all(-1 <= at_us <= marks.newest_us for at_us in watermarks)
    ):
        raise ValueError(_REASON)
    columns = _Checked(workers, marks.newest_us)
    for page in snapshot.pages:
        try:
            columns.add(page)
        except (ValueError, IndexError) as error:
            raise ValueError(_REASON) from error
        yield 0.0
    return Rows(snapshot, columns.rows, columns.blocks)


_REASON = "not a snapshot of a prefix tree: its columns contradict each other"


class _Checked:
    """Columns of the sound pages so far that later pages refer to."""

    def __init__(self, workers: int, newest_us: int) -> None:
        self._workers = workers
        self._newest_us = newest_us
        self._keys: list[NDArray[np.int64]] = []
        self._used_us: list[NDArray[np.int64]] = []
        self._first_rows: list[int] = []
        self.rows = 0
        self.blocks = 0

    def add(self, page: TreePage) -> None:
        """Check one page; raise ValueError if its columns contradict each other, or earlier ones.

        A holder's key is ``row x workers + worker``: ascending, so that a parent's is found by bisection.
        """
        parents = np.frombuffer(page.parents, dtype="<i4")
        sizes = np.frombuffer(page.sizes, dtype="<u4")
        counts = np.frombuffer(page.holders, dtype="<u4")
        holders = np.frombuffer(page.slots, dtype="<u4")
        used_us = np.frombuffer(page.used_us, dtype="<i8")
        ends = np.frombuffer(page.ends, dtype="<i8").reshape(-1, 4)
        trims = np.frombuffer(page.trims, dtype="<u8").reshape(-1, 3)
        owners = np.frombuffer(page.owners, dtype="<u8")
        nodes, blocks = len(parents), int(sizes.sum())
        rows = np.arange(self.rows, self.rows + nodes)
        _demand(
            len(sizes) == len(counts) == nodes,
            len(holders) == len(used_us) == int(counts.sum()),
            len(page.hashes) == blocks * HASH_BYTES,
            (sizes > 0).all() and (counts > 0).all(),
            (parents >= -1).all() and (parents < rows).all(),
            (holders < self._workers).all() and (trims[:, 0] < self._workers).all(),
            (used_us >= 0).all() and (used_us <= self._newest_us).all(),
            (trims[:, 2] <= self._newest_us).all(),
            len(owners) in (0, nodes) and (owners <= SHARED).all(),
            (ends >= 0).all() and (ends[:, 0] < nodes).all() and (ends[:, 1] < self._workers).all(),
        )
        keys = np.repeat(rows, counts) * self._workers + holders
        _demand((keys[1:] > keys[:-1]).all())
        self._keys.append(keys)
        self._used_us.append(used_us)
        self._first_rows.append(self.rows)
        self.rows += nodes
        self.blocks += blocks
        above = np.repeat(parents, counts)
        inner = above >= 0
        self._demand_used(above[inner], holders[inner], used_us[inner])
        self._demand_used(ends[:, 0] + rows[0] if nodes else ends[:, 0], ends[:, 1], ends[:, 3])
        _demand((ends[:, 2] > 0).all() and (ends[:, 2] <= sizes[ends[:, 0]]).all())

    def _demand_used(self, rows: NDArray[Any], workers: NDArray[Any], used_us: NDArray[np.int64]) -> None:
        """Demand that the workers hold these rows, and have used them no earlier."""
        pages = np.searchsorted(self._first_rows, rows, side="right") - 1
        for page in set(pages.tolist()):  # np.unique would import for 8 ms, the first time
            here = pages == page
            wanted = rows[here].astype(np.int64) * self._workers + workers[here]
            at = np.searchsorted(self._keys[page], wanted)
            _demand((self._keys[page][at] == wanted).all(), (self._used_us[page][at] >= used_us[here]).all())


def _demand(*conditions: object) -> None:
    if not all(conditions):
        raise ValueError(_REASON)
