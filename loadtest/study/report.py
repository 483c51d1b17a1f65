"""docs/policy-study.md: the text is written by people, the figures in it by the study.

A part of the document between ``<!-- study: NAME -->`` and ``<!-- end -->`` is replaced by what the results
say, so that no figure is ever typed; without Dynamo's results the comparison with it stays as it is. In the
folder of the document's name lie its charts, and ``tables.md`` with every figure of every policy.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.study import chart, claims, tables
from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.design import AGENTIC, MIDDLE, OURS
from loadtest.study.results import Row
from loadtest.study.verdict import Verdict, verdicts

_PART = re.compile(r"(<!-- study: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

COMPARED = ("main", "dense", "l3", "replicas", "corner", "seeds")
"""Parts in which policies are compared."""

SWEEPS = {
    "match_weight": "",
    "prefill_load_scale": "",
    "congestion_max_per_s": "1/s",
    "block_tokens": "tokens",
    "prices": "",
    "aging": "s of waiting per s of work",
}
"""Parameters by name, with their units."""


def parts(rows: Sequence[Row], theirs: Sequence[CrossRow], code: str) -> dict[str, str | None]:
    """Generated parts of the document by name; None: it stays as it is."""
    of = _by_part(rows)
    compared = [row for name in COMPARED for row in of.get(name, [])]
    found = verdicts(compared)
    made: dict[str, str | None] = {"verdict": tables.verdict_table(found), "summary": summary(found)}
    made["code"] = tables.code_table(rows, code)
    for name in SWEEPS:
        made[f"sweep-{name}"] = tables.sweep_table(of.get(f"sweep-{name}", []))
    made["claims"] = claims.table_of(of.get("claims", []))
    check = of.get("cross-check", [])
    ideal = check[0].number("ideal_hit_ratio") if check else float("nan")
    made["cross-check"] = tables.cross_table(theirs, check, ideal) if theirs else None
    return made


def summary(found: Sequence[Verdict]) -> str:
    """The aims beside what was reached."""
    if not found:
        return "Nothing was compared.\n"
    worst = max(found, key=lambda one: max(one.mean.ratio, one.p90.ratio))
    worst_ratio = max(worst.mean.ratio, worst.p90.ratio)
    lines = []
    aimed = [
        one
        for one in found
        if one.scenario.part == "main"
        and one.scenario.traffic == AGENTIC
        and one.scenario.utilisation == MIDDLE
    ]
    for one in aimed:
        lines += [
            [
                "share of the pooled-LRU bound, agentic-64, 80 %",
                ">= 95 %",
                tables.percent(one.share_of_pooled),
            ],
            ["mean TTFT over the best peer's, agentic-64, 80 %", "<= 0.85", f"{one.mean.ratio:.2f}"],
            ["P90 TTFT over the best peer's, agentic-64, 80 %", "<= 0.85", f"{one.p90.ratio:.2f}"],
        ]
    lines.append(
        [f"worst scenario ({tables.title(worst.scenario)}), mean or P90", "<= 1.03", f"{worst_ratio:.2f}"]
    )
    behind = sum(max(one.mean.ratio, one.p90.ratio) > 1.03 for one in found)
    lines.append(["scenarios more than 3 % behind the best peer", "0", f"{behind} of {len(found)}"])
    return tables.table([f"aim for {OURS}", "wanted", "reached"], lines)


def fill(document: str, made: Mapping[str, str | None]) -> str:
    """Replace the generated parts of a document, except those that are None.

    Raises:
        KeyError: It names a part that the study does not make.
    """

    def filled(match: re.Match[str]) -> str:
        text = made[match[2]]
        return match[0] if text is None else f"{match[1]}\n{text}\n{match[3]}"

    return _PART.sub(filled, document)


def write(document: Path, rows: Sequence[Row], theirs: Sequence[CrossRow], code: str) -> None:
    """Fill in the document and draw its charts.

    Args:
        document: Markdown with the places for the parts.
        rows: Results of the study.
        theirs: Results of Dynamo; none if it was not there.
        code: Digest of the present code.

    Raises:
        OSError: Something cannot be read or written.
        KeyError: The document names a part that the study does not make.
    """
    document.write_text(fill(document.read_text(), parts(rows, theirs, code)))
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
    for name, unit in SWEEPS.items():
        if swept := of.get(f"sweep-{name}", []):
            chart.draw_sweep(swept, folder / f"sweep-{name}.png", name=name, unit=unit)


def _by_part(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell.part, []).append(row)
    return found
