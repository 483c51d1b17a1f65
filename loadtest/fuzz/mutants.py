"""Takes one mend after the other out of the gateway, and expects the fuzzer to find its bug.

    python -m loadtest.fuzz.mutants                  all of them, with the seed 7
    python -m loadtest.fuzz.mutants C5 C7 --seed 3

The status is 1 if one was not found within the time.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadtest.fuzz.campaign import Plan, Report, run
from loadtest.fuzz.unmended import UNMENDED

SECONDS = 120.0
NOT_FOUND = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Try them; the status is 1 if one was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.fuzz.mutants", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(UNMENDED)} [all]")
    parser.add_argument("--seed", type=int, default=7, help="of the cases [%(default)s]")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each of them [%(default)s]")
    options = parser.parse_args(arguments)
    names = options.names or list(UNMENDED)
    if unknown := set(names) - set(UNMENDED):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(UNMENDED)}")
    found = [tried(name, options.seed, options.seconds) for name in names]
    return 0 if all(found) else NOT_FOUND


def tried(name: str, seed: int, seconds: float) -> bool:
    """Take one mend out, and run until that is found; print the finding, and return True if there was one."""
    shows = UNMENDED[name].shows
    with tempfile.TemporaryDirectory(prefix="cw-fuzz-") as folder:
        report = asyncio.run(run(Plan(seed, seconds, without=name, until=shows), Path(folder)))
    print(verdict(name, report), flush=True)
    return bool(report.matching(shows))


def verdict(name: str, report: Report) -> str:
    """One mutant in words."""
    start = f"{name} ({UNMENDED[name].what}), seed {report.seed}:"
    found = report.matching(UNMENDED[name].shows)
    if not found:
        return f"{start} NOT FOUND in {report.cases} cases, {report.seconds:.0f} s"
    first = found[0]
    headline = f"{start} found within {report.cases} cases, {report.seconds:.0f} s: {first.what[:300]}"
    return "\n".join((headline, *(f"    likeliest: {each}; {each.replay}" for each in first.suspects[:1])))


if __name__ == "__main__":
    sys.exit(main())
