"""The chaos suite: real processes under load, while everything around them fails.

    python -m loadtest.chaos --minutes 30 --seed 7
    python -m loadtest.chaos --plan                           the schedule alone
    python -m loadtest.chaos --only worker,redis              some groups of faults
    python -m loadtest.chaos --report chaos.html              a page with the timeline; .json for figures
    python -m loadtest.chaos overload|sites                   a play: see there

The same seed plans the same run. The status is 1 if a promise was broken (`loadtest.chaos.verdict`), and the
lines say which, when, and under which faults. Everything ends by itself, on Ctrl-C too. Replicas have network
namespaces where the system allows them; elsewhere two workers are behind proxies, and the end says so.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from loadtest.chaos import overload, sites
from loadtest.chaos.campaign import Campaign, run_campaign
from loadtest.chaos.fault_injector import GROUPS, MISCHIEF, FaultInjector
from loadtest.chaos.namespace import INSIDE_FLAG, furnish, go_inside, way_in
from loadtest.chaos.record import Record
from loadtest.chaos.report import as_json, as_page, lines
from loadtest.chaos.schedule import printed, schedule
from loadtest.processes import ChildFailed

PLAYS = {"overload": overload.main, "sites": sites.main}

INTERRUPTED = 130
BROKEN = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the status is 1 if a promise was broken."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in PLAYS:
        return PLAYS[given[0]](given[1:])
    options = _parser().parse_args(given)
    chosen = _chosen(options.only)
    way = None if options.plan or options.inside or options.no_cables else way_in()
    if way is not None:
        go_inside(way, given)
    injector = [each for each in chosen if options.inside or options.plan or not each.cabled]
    seconds = options.minutes * 60
    acts = schedule([each.kind for each in injector], seconds, options.seed)
    if options.plan:
        print("\n".join(printed(acts)))
        return 0
    if options.inside:
        furnish()
    campaign = Campaign(acts, seconds, options.seed, options.inside, options.clients)
    with tempfile.TemporaryDirectory(prefix="cw-chaos-") as temporary:
        directory = Path(temporary) if options.keep is None else options.keep
        directory.mkdir(parents=True, exist_ok=True)
        try:
            record = uvloop.run(run_campaign(campaign, directory, _Line().told))
        except ChildFailed as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return BROKEN
        except KeyboardInterrupt:
            print("interrupted; everything has ended", file=sys.stderr)
            return INTERRUPTED
    print("\n".join(lines(record)))
    if options.report is not None:
        render = as_json if options.report.suffix == ".json" else as_page
        options.report.write_text(render(record))
    return BROKEN if record.all_broken else 0


class _Line:
    """Progress in one line of a terminal that is written again; else a line each."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._broken = 0

    def told(self, record: Record, what: str) -> None:
        broken = record.all_broken
        for each in broken[self._broken :]:
            at_s = each.at_s - record.began_s if each.at_s else 0.0
            self._console.print(f"BROKEN at {at_s:.1f} s, seed {record.seed}: {each.promise}: {each.seen}")
        self._broken = len(broken)
        number = record.acts[-1].act.number if record.acts else 0
        asked = sum(act.ends.total() for act in record.acts)
        counts = f"{asked} requests looked at, {record.faults.total()} faults, {len(broken)} broken"
        text = f"act {number}: {what}; {counts}"
        self._console.print(text, end="\r" if self._console.is_terminal else "\n", soft_wrap=True)


def _chosen(only: str) -> list[FaultInjector]:
    groups = [name.strip() for name in only.split(",") if name.strip()] or GROUPS
    return [each for each in MISCHIEF if each.kind.group in groups or each.kind.name in groups]


def _groups(text: str) -> str:
    names = {*GROUPS, *(each.kind.name for each in MISCHIEF)}
    unknown = {name.strip() for name in text.split(",")} - names - {""}
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(GROUPS)}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.chaos", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=7, help="of plan, load and loss [%(default)s]")
    parser.add_argument(
        "--only", type=_groups, default="", help=f"groups or names of faults, of {', '.join(GROUPS)} [all]"
    )
    parser.add_argument("--clients", type=int, default=0, help="how many ask [what the machine can do]")
    parser.add_argument("--report", type=Path, help="file for the report, .html or .json")
    parser.add_argument("--keep", type=Path, help="folder for the logs of all processes [they are dropped]")
    parser.add_argument("--plan", action="store_true", help="print what would strike when, and end")
    parser.add_argument("--no-cables", action="store_true", help="no namespaces; two workers behind proxies")
    parser.add_argument(INSIDE_FLAG, action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
