"""Record the facts of the code, compare them, and confirm that decisions are equal.

    python -m loadtest.unchanged record
    python -m loadtest.unchanged compare [--quick]
    python -m loadtest.unchanged confirm

All of it takes about five minutes of one core. Simulated facts are kept in ``.unchanged/`` by the code that
made them, so an interrupted run resumes, and ``confirm`` after ``compare`` simulates nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtest.study.traffic import TRACES
from loadtest.traces import TraceError
from loadtest.unchanged import cells, surfaces, wire
from loadtest.unchanged.facts import Facts, append, differences, digest_of, read, write
from loadtest.unchanged.revision import ROOT, SAME, Revision, confirm, confirmed, present, syntax_of

BASELINE = Path(__file__).with_name("baseline.txt")

KEPT = ROOT / ".unchanged"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a fact differs or cannot be had."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        return {"record": _record, "compare": _compare, "confirm": _confirm}[options.do](options, console)
    except (OSError, TraceError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1


def _record(options: argparse.Namespace, console: Console) -> int:
    """Write the baseline. Confirmed code stays so if no decision changed, at least of one replica."""
    code, before, now = present(), read(options.baseline), _simulated(options, console)
    names = _decisions(before)
    same = bool(before) and not differences(before, now, names)
    alone = bool(before) and not differences(
        before, now, [name for name in names if ", 1 replicas, " in name]
    )
    now |= wire.facts() | surfaces.facts(counts_calls=True)
    write(options.baseline, now)
    confirm(
        [*(confirmed(options.same, replicas=8) if same else ()), code],
        options.same,
        alone=confirmed(options.same) if alone else (),
    )
    console.print(f"{options.baseline}: {len(now)} facts", markup=False)
    return 0


def _compare(options: argparse.Namespace, console: Console) -> int:
    before, now = read(options.baseline), _simulated(options, console)
    names = {**now, **({} if options.quick else dict.fromkeys(_decisions(before, options), ""))}
    now |= wire.facts() | surfaces.facts(counts_calls=not options.quick)
    others = {name: "" for name in before if not name.startswith("decisions ")}
    if options.quick:
        others = {name: "" for name in others if not name.startswith("calls ")}
    found = differences(before, now, {**names, **others, **now})
    for line in found:
        print(line)
    console.print(f"{len(found)} of {len({**names, **others, **now})} facts differ", markup=False)
    return 1 if found else 0


def _confirm(options: argparse.Namespace, console: Console) -> int:
    """Add the present code to those that decide the same, if all recorded decisions are equal."""
    code, before, now = present(), read(options.baseline), _simulated(options, console)
    found = differences(before, now, _decisions(before))
    for line in found:
        print(line)
    if found or not _decisions(before):
        console.print("not confirmed: decisions differ from the baseline, or are not there", style="red")
        return 1
    whole = confirmed(options.same, replicas=8)
    confirm([*whole, code], options.same, alone=confirmed(options.same))
    console.print(f"{options.same}: decides as the baseline", markup=False)
    return 0


def _decisions(facts: Facts, options: argparse.Namespace | None = None) -> list[str]:
    """Names of the recorded decisions; with options only of those whose traffic is there."""
    names = [name for name in facts if name.startswith("decisions ")]
    if options is None:
        return names
    wanted = cells.cells()
    absent = {cell.name for cell in wanted} - {cell.name for cell in cells.readable(wanted, options.traces)}
    return [name for name in names if name not in absent]


def _simulated(options: argparse.Namespace, console: Console) -> Facts:
    """Decisions of the present code, those that are kept included."""
    wanted = cells.cells(quick=options.quick)
    there = cells.readable(wanted, options.traces)
    if len(there) < len(wanted):
        console.print(f"{len(wanted) - len(there)} cells left out: no recorded traffic in {options.traces}")
    options.kept.mkdir(parents=True, exist_ok=True)
    path = options.kept / f"{_key(present())}.txt"
    facts = read(path)
    for number, (name, value) in enumerate(cells.decided(there, facts, options.traces), 1):
        append(path, name, value)
        facts[name] = value
        if number % 60 == 0:
            console.print(f"{number} simulated, {len(there)} in all")
    return {cell.name: facts[cell.name] for cell in there}


def _key(code: Revision) -> str:
    return digest_of(f"{code.decisions} {code.model} {syntax_of(Path(cells.__file__).read_text())}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.unchanged", description="Show that a refactoring changed nothing."
    )
    parser.add_argument("do", choices=("record", "compare", "confirm"))
    parser.add_argument("--quick", action="store_true", help="a few cells, and no calls per request")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="(%(default)s)")
    parser.add_argument("--same", type=Path, default=SAME, help="code that decides the same (%(default)s)")
    parser.add_argument("--kept", type=Path, default=KEPT, help="simulated facts (%(default)s)")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
