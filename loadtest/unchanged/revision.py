"""Revision of the code behind a result, as two fingerprints.

``decisions`` covers `policies` and `radix`: a published table of other decision code is stale, and a test
fails. ``model`` covers the engines and the simulator: a run of the study renews results of another model, but
no test asks for it.

A fingerprint is taken of the syntax without comments, docstrings and layout, so a pure refactoring changes
it. If it decides as the recorded baseline, `loadtest.unchanged` adds its fingerprints to ``same.txt``, and
figures of any code listed there stay published.

    5f2c0e93ab4d1f00 90ab17c2d3e4f566         decisions and model of one revision
    77aa0e93ab4d1f00 90ab17c2d3e4f566 alone   one that decides as the baseline with one replica only
"""

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).parents[2]

SAME = Path(__file__).with_name("same.txt")
"""The revisions that decide as the baseline."""

ALONE = "alone"
"""Mark of a revision that decides as the baseline with one replica, and otherwise with several."""

DECIDING = ("policies", "radix")
"""Folders of the code that places requests."""

MODEL = ("loadtest/engine", "loadtest/simulator", "loadtest/study")
"""Folders of the code that decisions are simulated with."""

SHOWING = (
    "__main__.py",
    "chart.py",
    "claims.py",
    "design.py",
    "queue_page.py",
    "report.py",
    "tables.py",
    "verdict.py",
)
"""Files of `loadtest.study` that no figure depends on: they show figures, or name cells."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Fingerprints of `DECIDING` and `MODEL`."""

    decisions: str
    model: str


def present(root: Path = ROOT) -> Revision:
    """Fingerprints of the code as it is."""
    showing = {root / "loadtest" / "study" / name for name in SHOWING}
    return Revision(_fingerprint(root, DECIDING, ()), _fingerprint(root, MODEL, showing))


def same_decisions(one: str, other: str, listed: Collection[Revision] | None = None) -> bool:
    """True if two fingerprints of `DECIDING` decide the same, by ``listed`` code or that of `SAME`."""
    equal = {revision.decisions for revision in (confirmed() if listed is None else listed)}
    return one == other or {one, other} <= equal


def confirmed(path: Path = SAME, *, replicas: int = 1) -> list[Revision]:
    """Read the revisions that decide the same with ``replicas``; none without a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    listed = [line.split() for line in lines]
    return [Revision(*words[:2]) for words in listed if replicas == 1 or ALONE not in words]


def confirm(revisions: Iterable[Revision], path: Path = SAME, *, alone: Iterable[Revision] = ()) -> None:
    """Write the revisions that decide the same, and those that do with one replica; may raise `OSError`."""
    lines = dict.fromkeys(alone, f" {ALONE}") | dict.fromkeys(revisions, "")
    path.write_text("".join(f"{one.decisions} {one.model}{word}\n" for one, word in lines.items()))


def _fingerprint(root: Path, folders: Iterable[str], without: Iterable[Path]) -> str:
    digest = blake2b(digest_size=8)
    skipped = set(without)
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if path not in skipped:
                digest.update(f"{path.relative_to(root)}\0{syntax_of(path.read_text())}\0".encode())
    return digest.hexdigest()


def syntax_of(source: str) -> str:
    """Syntax of a module without comments, docstrings and layout; the same under every version of Python."""
    return _written(ast.parse(source))


def _written(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(_written(one) for one in value if not _is_docstring(one))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    # Fields that newer versions of Python add are empty where the syntax is not used.
    fields = (f"{name}={_written(one)}" for name, one in ast.iter_fields(value) if one not in (None, []))
    return f"{type(value).__name__}({','.join(fields)})"


def _is_docstring(value: object) -> bool:
    """True for a string that stands alone: a docstring, also one below a constant or a field."""
    return (
        isinstance(value, ast.Expr)
        and isinstance(value.value, ast.Constant)
        and isinstance(value.value.value, str)
    )
