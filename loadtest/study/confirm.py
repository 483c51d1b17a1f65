"""Show that code which changed decides the same: a few published cells, simulated again.

The cells are drawn by the fingerprint of the decisions, so nobody chooses them, and each change of the code
draws others. Equal hashes of all decisions (`loadtest.simulator.records.Result.decisions_digest`) mean that
every request of a cell went to the same worker. That is evidence for the other cells and no proof.
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TypeVar

from loadtest.study.results import Kept, Store
from loadtest.study.revision import Revision

CELLS = 6
"""Cells of one file of results that are simulated again: about a minute on two cores."""


@dataclass(frozen=True, slots=True)
class Again:
    """A cell that was simulated again.

    Attributes:
        cell: Which one.
        same: True if its decisions are those that were recorded.
    """

    cell: object
    same: bool


CellT = TypeVar("CellT", bound=Hashable)
RowT = TypeVar("RowT", bound=Kept[Hashable])


def again(
    store: Store[CellT, RowT],
    cells: Sequence[CellT],
    simulated: Callable[[CellT, Path, Revision], RowT],
    traces: Path,
    jobs: int,
) -> list[Again]:
    """Simulate some of the cells that have a result.

    Args:
        store: Results with their hashes of decisions.
        cells: Of the design; one without a result counts as other decisions.
        simulated: Simulates one.
        traces: Folder of the traces.
        jobs: Processes at a time.

    Raises:
        OSError: A trace cannot be read.
        loadtest.traces.TraceError: A trace is damaged.
    """
    missing = [Again(cell, same=False) for cell in cells if not store.rows([cell])]
    if missing:
        return missing
    drawn = Random(store.code.decisions).sample(list(cells), min(CELLS, len(cells)))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(simulated, cell, traces, store.code) for cell in drawn]
        digests = [future.result().digest for future in futures]
    before = [row.digest for row in store.rows(drawn)]
    return [
        Again(cell, same=bool(new) and new == old)
        for cell, new, old in zip(drawn, digests, before, strict=True)
    ]
