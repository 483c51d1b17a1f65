"""Common promises of plays, and their lines on a terminal (`loadtest.chaos.play`)."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.chaos.crowd import Served
from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.play import Play, Seen, run_play
from loadtest.chaos.visitor import End
from loadtest.processes import ChildFailed
from loadtest.report import milliseconds, percentile


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise; with ``timed`` a slow machine or a short run may break it as well."""

    name: str
    kept: bool
    seen: str
    timed: bool = False


def always(seen: Seen) -> list[Promise]:
    """Judge what every play promises."""
    return [
        Promise(
            "every client is accounted for",
            len(seen.served) == seen.sent and not seen.unsent,
            f"{seen.sent} sent, {len(seen.served)} ended, {seen.unsent} not sent for want of connections",
        ),
        Promise("nothing is left behind", not seen.left, first(seen.left, "all empty")),
        Promise("no replica logs an error", not seen.errors, first(seen.errors)),
    ]


def lost_with_its_replica(run: Seen, one: Served, within_s: float) -> bool:
    """True if a request lost its answer because its replica was killed at most ``within_s`` before."""
    return one.visit.end in (End.CUT, End.REFUSED) and any(
        each.blame is Blame.REPLICA
        and each.strike.target == one.replica
        and each.overlaps(one.visit.sent_s, one.visit.ended_s, within_s)
        for each in run.struck
    )


def first(lines: Sequence[str], none: str = "none") -> str:
    """Number of lines, and the first."""
    return f"{len(lines)}: {lines[0][:300]}" if lines else none


def ttft_s(served: Iterable[Served]) -> list[float]:
    """Times to first token of answered streams, in ascending order."""
    return sorted(
        one.visit.ttft_s
        for one in served
        if one.streamed and one.visit.end is End.ANSWERED and one.visit.ttft_s is not None
    )


def times(seen: Seen, groups: Iterable[tuple[str, list[Served]]]) -> Table:
    """A table of times to first token: a row for each group, a column for each scene."""
    scenes = [scene.name for scene in seen.play.scenes]
    table = Table("", *scenes, box=SIMPLE_HEAD, title="TTFT of answered streams, P50 / P90 / P99")
    for name, served in groups:
        columns = (ttft_s(one for one in served if one.phase == scene) for scene in scenes)
        table.add_row(
            name,
            *(
                " / ".join(milliseconds(percentile(column, share)) for share in (0.5, 0.9, 0.99))
                for column in columns
            ),
        )
    return table


def perform(
    play: Play, judge: Callable[[Seen], list[Promise]], shown: Callable[[Seen], Iterator[Table | str]]
) -> int:
    """Run a play and print its observations; the status is 1 if a promise was broken."""
    try:
        seen = uvloop.run(run_play(play))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    console = Console(width=120, highlight=False)
    verdict = Table("promise", "", "seen", box=SIMPLE_HEAD)
    promises = judge(seen)
    for promise in promises:
        verdict.add_row(promise.name, "kept" if promise.kept else "BROKEN", promise.seen)
    for each in (*shown(seen), verdict):
        console.print(each, soft_wrap=isinstance(each, str), markup=False)
    return 0 if all(promise.kept for promise in promises) else 1
