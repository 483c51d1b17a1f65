"""The fuzz suite: random and grammar-based attacks on real gateways (`loadtest.fuzz`).

    python -m loadtest.fuzz --seconds 180 --seed 7
    python -m loadtest.fuzz --seed 7 --only 1234             one case again; --show prints its bytes
    python -m loadtest.fuzz --kinds bodies,entries           some kinds of cases

The same seed makes the same cases. The status is 1 if anything was found; each finding names the cases that
it may come from.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.fuzz.campaign import Finding, Plan, Report, run
from loadtest.fuzz.cases import GENERATORS, case
from loadtest.fuzz.unmended import UNMENDED

FOUND = 1
INTERRUPTED = 130
SUSPECTS_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the status is 1 if anything was found."""
    options = _parser().parse_args(arguments)
    seed = int(time.time()) if options.seed is None else options.seed
    if options.show:
        for number in options.only:
            print(
                case(seed, number, options.kinds), case(seed, number, options.kinds).shown(1 << 40), sep="\n"
            )
        return 0
    plan = Plan(
        *(seed, options.seconds, options.cases, options.only, options.kinds, options.without),
        until=None if options.go_on else "",
    )
    with tempfile.TemporaryDirectory(prefix="cw-fuzz-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            report = asyncio.run(run(plan, folder, _told))
        except KeyboardInterrupt:
            print("interrupted; everything has ended", file=sys.stderr)
            return INTERRUPTED
    print("\n".join(lines(report)))
    return FOUND if report.findings else 0


def lines(report: Report) -> list[str]:
    """A run in words."""
    found = [line for finding in report.findings for line in of_finding(finding)]
    found.append(
        f"seed {report.seed}: {report.cases} cases in {report.rounds} rounds, {report.seconds:.0f} s; "
        f"{report.served} requests of bystanders served, longest gap {report.gap_s:.2f} s; "
        f"memory grew by {report.grown_bytes / 2**20:.0f} MiB; {len(report.findings)} findings"
    )
    return found


def of_finding(finding: Finding) -> list[str]:
    """A finding in words: what, of which cases, and how to see it again."""
    text = [f"FOUND: {finding.what}"]
    for suspect in finding.suspects[:SUSPECTS_SHOWN]:
        text += [f"  {suspect}; again: {suspect.replay}", f"    {suspect.shown()}"]
    if (left_out := len(finding.suspects) - SUSPECTS_SHOWN) > 0:
        numbers = ",".join(str(each.number) for each in finding.suspects)
        text.append(f"  or {left_out} others; all again: --only {numbers}")
    return text


def _told(report: Report) -> None:
    counts = f"{report.cases} cases, {report.seconds:.0f} s, {len(report.findings)} findings"
    print(f"round {report.rounds}: {counts}", file=sys.stderr)


def _kinds(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := set(names) - set(GENERATORS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(GENERATORS)}")
    return names


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.fuzz", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="no round begins later [%(default)s]")
    parser.add_argument("--cases", type=int, default=1 << 30, help="how many at most [no bound]")
    parser.add_argument("--seed", type=int, help="of the cases [the time]")
    parser.add_argument("--only", type=_numbers, default=(), help="numbers of cases, with commas [all]")
    parser.add_argument("--show", action="store_true", help="print the cases that --only names, and end")
    parser.add_argument(
        "--kinds", type=_kinds, default=tuple(GENERATORS), help=f"of {', '.join(GENERATORS)} [all]"
    )
    parser.add_argument(
        "--without", default="", choices=("", *UNMENDED), help="take a mend out of the gateways"
    )
    parser.add_argument(
        "--go-on", action="store_true", help="do not end with the first round that finds something"
    )
    parser.add_argument("--keep", type=Path, help="folder for the logs of all processes [they are dropped]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
