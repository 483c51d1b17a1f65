"""docs/policy-study.md: text by people, figures by the study.

Results replace a part between ``<!-- study: NAME -->`` and ``<!-- end -->``. The folder of the document's
name has its charts, and ``tables.md`` with every figure of every rule.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.study import chart, claims, tables
from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.design import BARE, MIDDLE, OURS, Cell
from loadtest.study.results import Row
from loadtest.study.verdict import Told, Verdict, verdicts

_PART = re.compile(r"(<!-- study: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

COMPARED = ("main", "dense", "l3")
"""Parts in which rules are compared."""


def parts(rows: Sequence[Row], wanted: Sequence[Cell], theirs: Sequence[CrossRow]) -> dict[str, str]:
    """Generated parts of the document by name."""
    of = _by_part(rows)
    compared = [row for name in COMPARED for row in of.get(name, [])]
    found, bare = verdicts(compared), verdicts(compared, BARE)
    made = {
        "verdict": tables.verdict_table(found),
        "verdict-bare": tables.verdict_table(bare),
        "summary": summary({OURS: found, BARE: bare}),
        "code": tables.code_table(rows, wanted),
        "claims": claims.table_of(of.get("claims", [])),
    }
    check = of.get("cross-check", [])
    ideal = check[0].number("ideal_hit_ratio") if check else float("nan")
    made["cross-check"] = tables.cross_table(theirs, check, ideal)
    return made


def summary(found: Mapping[str, Sequence[Verdict]]) -> str:
    """Number of scenarios with each verdict, for the default as it ships and without its queue."""
    lines = []
    for label, verdicts_of in found.items():
        for figure, verdict_kinds in (
            ("mean", [one.mean.told for one in verdicts_of]),
            ("P90", [one.p90.told for one in verdicts_of]),
        ):
            lines.append([f"{label}: {figure} TTFT", *(str(verdict_kinds.count(kind)) for kind in Told)])
    return tables.table(["of the scenarios", *(kind.value for kind in Told)], lines)


def fill(document: str, made: Mapping[str, str]) -> str:
    """Replace the generated parts of a document; `KeyError` for an unknown part."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n{made[match[2]]}\n{match[3]}"

    return _PART.sub(filled, document)


def write(document: Path, rows: Sequence[Row], wanted: Sequence[Cell], theirs: Sequence[CrossRow]) -> None:
    """Fill in the document and draw its charts; ``theirs`` are Dynamo's results.

    Raises:
        OSError: Something cannot be read or written.
        KeyError: The document names a part that the study does not make.
    """
    document.write_text(fill(document.read_text(), parts(rows, wanted, theirs)))
    folder = document.with_suffix("")
    folder.mkdir(exist_ok=True)
    of = _by_part(rows)
    compared = [row for name in COMPARED for row in of.get(name, [])]
    (folder / "tables.md").write_text(f"# The policy study: all tables\n\n{tables.scenario_tables(compared)}")
    if found := verdicts(compared):
        chart.draw_verdict(found, folder / "verdict.png")
    if main := of.get("main", []):
        chart.draw_loads(main, folder / "loads.png")
    if middle := [row for row in main if row.cell.utilisation == MIDDLE]:
        chart.draw_reuse(middle, folder / "reuse.png")
    if shared := of.get("l3", []):
        chart.draw_reuse(shared, folder / "reuse-l3.png")


def _by_part(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell.part, []).append(row)
    return found
