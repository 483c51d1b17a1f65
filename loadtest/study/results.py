"""Results of cells, kept as JSON lines so that an interrupted study goes on where it was.

    {"code": "5f2c...", "cell": {...}, "figures": {...}}

A line is good for the code that made it: ``code`` is a digest of everything that a figure depends on. What
other code made is simulated again; until then it is shown, and the page says how much of it there is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from loadtest.study.design import Cell

ROOT = Path(__file__).parents[2]

DECIDING = ("radix", "policies", "router/gateway", "loadtest/engine", "loadtest/simulator", "loadtest/study")
"""Folders whose code a figure depends on."""

SHOWING = ("report.py", "chart.py", "__main__.py", "claims.py", "verdict.py", "tables.py", "queue_page.py")
"""Files of this folder that only show figures."""

Figure = float | int | str | None


@dataclass(frozen=True, slots=True)
class Row:
    """What one cell gave.

    Attributes:
        code: Digest of the code.
        cell: What was simulated.
        figures: See `loadtest.simulator.records.Result.summary`, and `loadtest.study.runs`.
    """

    code: str
    cell: Cell
    figures: dict[str, Figure]

    def number(self, name: str) -> float:
        """A figure that is a number; NaN if it was not measured."""
        value = self.figures.get(name)
        return float(value) if isinstance(value, int | float) else float("nan")


def code_digest(root: Path = ROOT) -> str:
    """Digest of all code that a figure depends on."""
    digest = blake2b(digest_size=8)
    for folder in DECIDING:
        for path in sorted((root / folder).rglob("*.py")):
            if folder == "loadtest/study" and path.name in SHOWING:
                continue
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class Store:
    """A file of results.

    Attributes:
        code: Digest of the present code.
    """

    def __init__(self, path: Path, code: str) -> None:
        """Read what is there.

        Raises:
            OSError: It cannot be read or written.
            msgspec.MsgspecError: It is not a file of results.
        """
        self.code = code
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        rows = [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"}")]
        self._rows = {row.cell: row for row in rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(map(_line, self._rows.values())))

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that have no result of this code yet, each once."""
        done = {cell for cell, row in self._rows.items() if row.code == self.code}
        return [cell for cell in dict.fromkeys(cells) if cell not in done]

    def add(self, row: Row) -> None:
        """Keep a result at once."""
        self._rows[row.cell] = row
        with self._path.open("ab") as file:
            file.write(_line(row))

    def rows(self, cells: Iterable[Cell]) -> list[Row]:
        """Newest results of those cells that have one, of whatever code, in their order."""
        return [self._rows[cell] for cell in dict.fromkeys(cells) if cell in self._rows]


def _line(row: Row) -> bytes:
    return msgspec.json.encode(row) + b"\n"


def by_scenario(rows: Iterable[Row]) -> Mapping[Cell, dict[str, Row]]:
    """Rows by scenario, then by the label of the policy, in their order."""
    found: dict[Cell, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.cell.scenario, {})[row.cell.label] = row
    return found
