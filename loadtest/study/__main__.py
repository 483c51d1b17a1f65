"""Run the policy study and fill its figures into docs/policy-study.md.

    python -m loadtest.study                                  all of it, about 35 minutes on two cores
    python -m loadtest.study --quick                          two scenarios, figures on the terminal only
    python -m loadtest.study --report-only                    the document from existing results
    python -m loadtest.study --dynamo-python DIR/bin/python   with Dynamo's offline replay beside it

Results are kept as they come; an interrupted study resumes, and renews results of other code. Dynamo's
figures are kept beside them (``dynamo.json``), and shown until it is replayed again.
"""

import argparse
import gzip
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.study import cross_check, report, tables
from loadtest.study.design import Cell, cells
from loadtest.study.results import Row, Store
from loadtest.study.runs import run
from loadtest.study.traffic import CONVERSATION_FILE, TRACES
from loadtest.traces import TraceError
from loadtest.unchanged.revision import ROOT, present

DOCUMENT = ROOT / "docs" / "policy-study.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if something could not be read, run or written."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    wanted = cells(quick=options.quick)
    chosen = [cell for cell in wanted if not options.parts or cell.part in options.parts]
    try:
        store: Store[Cell, Row] = Store(options.results, present(), Row)
        if not options.report_only:
            _simulate(chosen, store, options, console)
        rows = store.rows(wanted)
        theirs = _dynamo(options, console)
        if options.quick:
            print(tables.scenario_tables(rows))
        else:
            store.keep(wanted)
            report.write(options.out, rows, wanted, theirs)
            console.print(f"{options.out}: {len(rows)} of {len(wanted)} cells")
    except (OSError, TraceError, msgspec.MsgspecError) as exc:
        console.print(f"error: {exc}", style="red", markup=False)
        return 1
    return 0


def _simulate(
    wanted: Sequence[Cell], store: Store[Cell, Row], options: argparse.Namespace, console: Console
) -> None:
    missing = store.missing(wanted)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("simulating", total=len(missing))

        def told(row: Row) -> None:
            progress.update(task, advance=1, description=f"{row.cell.traffic}, {row.cell.label}")

        run(missing, store, options.traces, jobs=options.jobs, told=told)


def _dynamo(options: argparse.Namespace, console: Console) -> list[cross_check.Row]:
    cached = options.results.with_name("dynamo.json")
    if options.dynamo_python is not None:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as plain:
            plain.write(gzip.decompress((options.traces / CONVERSATION_FILE).read_bytes()))
            plain.flush()
            try:
                rows = cross_check.replay(options.dynamo_python, Path(plain.name))
                cached.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
            except cross_check.DynamoFailed as exc:
                console.print(f"Dynamo left out: {exc}", style="yellow", markup=False)
    return msgspec.json.decode(cached.read_bytes(), type=list[cross_check.Row]) if cached.exists() else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.study", description="The policy study.")
    parser.add_argument("--quick", action="store_true", help="two scenarios, figures on the terminal only")
    parser.add_argument("--parts", nargs="+", help="simulate only these parts of the design")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--out", type=Path, default=DOCUMENT, help="document to fill in (%(default)s)")
    parser.add_argument(
        "--results",
        type=Path,
        default=DOCUMENT.with_suffix("") / "results.jsonl",
        help="results, kept and reused (%(default)s)",
    )
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces (%(default)s)")
    parser.add_argument("--report-only", action="store_true", help="simulate nothing")
    parser.add_argument("--dynamo-python", type=Path, help="Python of an environment with ai-dynamo")
    return parser


if __name__ == "__main__":
    sys.exit(main())
