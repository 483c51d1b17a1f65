"""``python -m loadtest.plan.prfaas``: figures that PrfaaS publishes beside ours.

    --case-study    tables 3, 5 and 6 in closed form; status 1 if a figure that must come out does not
    --simulate      the same fleets with queues (`loadtest.plan.prfaas.simulate`), no status

Without either it prints usage.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.plan.prfaas.case_study import TOLERANCE_RATIO, Figure, Part, parts
from loadtest.plan.prfaas.simulate import add_simulate, simulate_study
from loadtest.simulator.arguments import new_file


def main(argv: list[str]) -> int:
    """Return 0 if every checked figure comes out, 1 if one does not, 2 for a wrong command line."""
    options = _parser().parse_args(argv)
    if options.simulate:
        simulate_study(Console(), options)
        return 0
    found = parts()
    holds = shown(Console(), found)
    if options.json is not None:
        options.json.write_bytes(_document(found))
    return 0 if holds else 1


def shown(console: Console, found: Sequence[Part]) -> bool:
    """Print figures, and say whether all that must come out do."""
    figures = [figure for part in found for figure in part.figures]
    off = [figure for figure in figures if figure.off]
    for part in found:
        console.print(_table(part))
        if part.caveat:
            console.print(f"· {part.caveat}\n", highlight=False, markup=False)
    checked = sum(figure.checked for figure in figures)
    farthest = max(abs(figure.difference_ratio or 0.0) for figure in figures if figure.checked)
    console.print(
        f"{checked - len(off)} of {checked} checked figures are within {TOLERANCE_RATIO:.0%} of the paper's, "
        f"the farthest off by {farthest:.1%}; {len(figures) - checked} are only shown.",
        style="bold",
        highlight=False,
    )
    return not off


def _table(part: Part) -> Table:
    table = Table(
        "figure",
        "paper",
        "here",
        "off by",
        "",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        title=part.title,
    )
    table.title_justify = "left"
    for column in table.columns[1:4]:
        column.justify = "right"
        column.no_wrap = True
    for figure in part.figures:
        table.add_row(*_row(figure), style="red" if figure.off else "" if figure.checked else "dim")
    return table


def _row(figure: Figure) -> Sequence[str]:
    difference = figure.difference_ratio
    return (
        figure.what,
        "" if figure.published is None else f"{_number(figure.published)} {figure.unit}",
        f"{_number(figure.computed)} {figure.unit}",
        "" if difference is None else f"{difference:+.1%}",
        figure.note if figure.checked or figure.published is None else f"not checked: {figure.note}",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:#.3g}"


def _document(found: Sequence[Part]) -> bytes:
    document = {
        "tolerance_ratio": TOLERANCE_RATIO,
        "parts": [
            {
                "title": part.title,
                "caveat": part.caveat,
                "figures": [
                    {**asdict(figure), "difference_ratio": figure.difference_ratio, "off": figure.off}
                    for figure in part.figures
                ],
            }
            for part in found
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.plan.prfaas",
        description="Compute the case study of PrfaaS (arXiv:2604.15039) again, beside what it publishes.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--case-study",
        action="store_true",
        help="tables 3, 5 and 6 by the throughput model that the gateway's slow loop solves",
    )
    what.add_argument(
        "--simulate", action="store_true", help="throughput, waiting and egress of the same fleets, simulated"
    )
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the figures as JSON")
    add_simulate(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
