"""Results of cells, kept as JSON lines so that an interrupted study resumes.

    {"code": {"decisions": "5f2c...", "model": "90ab..."}, "cell": {...}, "figures": {...}}

A line is valid for the code that made it, and for code that decides the same (`loadtest.unchanged.revision`).
The study renews results of other code, and forgets cells that its design no longer has.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from loadtest.study.design import Cell
from loadtest.unchanged.revision import Revision, confirmed

Figure = float | int | str | None


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one cell by a revision of the code.

    Attributes:
        figures: See `loadtest.simulator.records.Result.summary`, and `loadtest.study.runs`.
    """

    code: Revision
    cell: Cell
    figures: dict[str, Figure]

    def number(self, name: str) -> float:
        """A figure that is a number; NaN if it was not measured."""
        value = self.figures.get(name)
        return float(value) if isinstance(value, int | float) else float("nan")


CellT_co = TypeVar("CellT_co", bound=Hashable, covariant=True)


class Kept(Protocol[CellT_co]):
    """Record of one cell in a file of results, with the code that made it."""

    @property
    def code(self) -> Revision:
        """Revision of the code."""

    @property
    def cell(self) -> CellT_co:
        """The simulated cell."""


CellT = TypeVar("CellT", bound=Hashable)
RowT = TypeVar("RowT", bound=Kept[Hashable])


class Store(Generic[CellT, RowT]):
    """A file of results; ``code`` is the present revision."""

    def __init__(self, path: Path, code: Revision, kind: type[RowT]) -> None:
        """Read existing results of one kind; `OSError` or `msgspec.MsgspecError` if the file is bad."""
        self.code = code
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        rows = [msgspec.json.decode(line, type=kind) for line in lines if line.endswith(b"}")]
        self._rows: dict[Hashable, RowT] = {row.cell: row for row in rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def missing(self, cells: Iterable[CellT]) -> list[CellT]:
        """Those that have no result of this code yet, each once."""
        done = {
            cell
            for cell, row in self._rows.items()
            if row.code == self.code
            or {row.code, self.code} <= set(confirmed(replicas=getattr(cell, "replicas", 1)))
        }
        return [cell for cell in dict.fromkeys(cells) if cell not in done]

    def add(self, row: RowT) -> None:
        """Keep a result at once."""
        self._rows[row.cell] = row
        with self._path.open("ab") as file:
            file.write(_line(row))

    def keep(self, cells: Iterable[CellT]) -> None:
        """Forget the results of all other cells."""
        wanted = set(cells)
        self._rows = {cell: row for cell, row in self._rows.items() if cell in wanted}
        self._write()

    def _write(self) -> None:
        self._path.write_bytes(b"".join(map(_line, self._rows.values())))

    def rows(self, cells: Iterable[CellT]) -> list[RowT]:
        """Newest results of those cells that have one, of any code, in their order."""
        return [self._rows[cell] for cell in dict.fromkeys(cells) if cell in self._rows]


def _line(row: object) -> bytes:
    return msgspec.json.encode(row) + b"\n"


Seeds = tuple[Row, ...]
"""The results of one rule on one scenario, one for each seed, in the order of seeds."""


def by_scenario(rows: Iterable[Row]) -> Mapping[Cell, dict[str, Seeds]]:
    """Rows by scenario, then by the label of the rule, in their order."""
    found: dict[Cell, dict[str, Seeds]] = {}
    for row in sorted(rows, key=lambda row: row.cell.seed):
        by_label = found.setdefault(row.cell.scenario, {})
        by_label[row.cell.label] = (*by_label.get(row.cell.label, ()), row)
    return found
