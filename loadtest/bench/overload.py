"""What several times too much load does to a fleet, and whether it keeps its promises.

    python -m loadtest.bench.overload                  2 minutes of 3 times the capacity, then 20 s of calm
    python -m loadtest.bench.overload --disaster       the same with Valkey and a replica killed in the middle
    python -m loadtest.bench.overload --overload-s 20  shorter; flags of ``cacheway serve`` may follow --

Four replicas, a Valkey and four emulated engines as processes (`loadtest.chaos.overload`); the crowd has
classes, tenants, deadlines, long and short prompts, streams and others, and clients who leave
(`loadtest.chaos.crowd`). Prints times to first token by class and kind before, during and after, how requests
ended, and every promise (`loadtest.chaos.promises`); the status is 1 if one was broken.

Client, engines and gateways share the machine: compare the phases, not this machine with another.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.chaos.crowd import KINDS, PRIORITIES, Served
from loadtest.chaos.overload import OverloadPlan, OverloadRun, run_overload
from loadtest.chaos.promises import judge, ttft_s, verdict
from loadtest.chaos.visitor import End
from loadtest.processes import ChildFailed
from loadtest.report import milliseconds, percentile

PHASES = ("before", "overload", "after")
ENDS = (End.ANSWERED, End.REJECTED, End.EXPIRED, End.LEFT, End.CUT)


def main() -> int:
    """Run it and print the tables; the status is 1 if a promise was broken."""
    defaults = OverloadPlan()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.overload", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--times", type=float, default=defaults.times, help="of capacity [%(default)s]")
    parser.add_argument("--replicas", type=int, default=defaults.replicas, help="[%(default)s]")
    parser.add_argument("--before-s", type=float, default=defaults.before_s, help="calm [%(default)s]")
    parser.add_argument("--overload-s", type=float, default=defaults.overload_s, help="[%(default)s]")
    parser.add_argument("--after-s", type=float, default=defaults.after_s, help="calm [%(default)s]")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the crowd [%(default)s]")
    parser.add_argument("--disaster", action="store_true", help="kill Valkey and a replica in the middle")
    parser.add_argument(
        "flags",
        nargs="*",
        default=list(defaults.flags),
        help=f"flags of `cacheway serve`, behind -- [{' '.join(defaults.flags)}]",
    )
    plan = OverloadPlan(**vars(parser.parse_args()))
    try:
        run = uvloop.run(run_overload(plan))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    promises = judge(run)
    console = Console(width=120)
    console.print(_times(run))
    console.print(_ends(run))
    console.print(verdict(promises))
    print("\n".join(_figures(run)))
    return 0 if all(promise.kept for promise in promises) else 1


def _groups(served: list[Served]) -> Iterator[tuple[str, list[Served]]]:
    """All, then every class, kind and tenant."""
    yield "all", served
    for name in PRIORITIES:
        yield f"class {name}", [one for one in served if one.priority == name]
    for name in KINDS:
        yield name, [one for one in served if one.kind == name]
    for name in sorted({one.tenant for one in served}):
        yield f"tenant {name}", [one for one in served if one.tenant == name]


def _times(run: OverloadRun) -> Table:
    table = Table("", *PHASES, box=SIMPLE_HEAD, title="TTFT of answered streams, P50 / P90 / P99")
    for name, served in _groups(run.served):
        table.add_row(name, *(_ttft(one for one in served if one.phase == phase) for phase in PHASES))
    return table


def _ttft(served: Iterable[Served]) -> str:
    times = ttft_s(served)
    return " / ".join(milliseconds(percentile(times, share)) for share in (0.5, 0.9, 0.99))


def _ends(run: OverloadRun) -> Table:
    table = Table(
        "", "sent", *(end.value for end in ENDS), "codes", box=SIMPLE_HEAD, title="How requests ended"
    )
    for phase in PHASES:
        for name, served in _groups([one for one in run.served if one.phase == phase]):
            if phase != "overload" and name != "all":
                continue
            ends = Counter(one.visit.end for one in served)
            codes = Counter(one.visit.code for one in served if one.visit.code)
            table.add_row(
                phase if name == "all" else f"  {name}",
                str(len(served)),
                *(f"{ends[end] / max(len(served), 1):.1%}" for end in ENDS),
                ", ".join(f"{count} {code}" for code, count in codes.most_common(4)),
            )
    return table


def _figures(run: OverloadRun) -> Iterator[str]:
    overload = [sample for sample in run.samples if sample.phase == "overload"]
    looks = [count for sample in overload for count in sample.idle_workers]
    waiting = [max(sample.waiting, default=0) for sample in run.samples]
    apart = [max(sample.waiting) - min(sample.waiting) for sample in overload if sample.waiting]
    yield f"CPU of the replicas: {run.cpu_us:.0f} us a request in the overload"
    yield (
        f"waiting at most {max(waiting, default=0)}, replicas at most {max(apart, default=0)} apart; "
        f"in {sum(count > 0 for count in looks)} of {len(looks)} looks an idle worker while requests waited"
    )
    for name, value in sorted(run.metrics.items()):
        if "inversion" in name and value:
            yield f"{name} {value:g}"


if __name__ == "__main__":
    sys.exit(main())
