"""``python -m loadtest.chaos overload``: several times a fleet's capacity, and its promises.

    python -m loadtest.chaos overload                  2 minutes of 3 times the capacity, then 20 s of calm
    python -m loadtest.chaos overload --disaster       the same with Valkey and a replica killed in the middle
    python -m loadtest.chaos overload --overload-s 20  shorter; flags of ``cacheway serve`` may follow --

    load       calm          times of capacity                    calm
    disaster                    Valkey killed ── a replica killed ── Valkey back, empty
                                40 %             50 %                60 % of the overload

Capacity is the number of engines over the mean service time of the crowd's requests; the calm load is less
than half of it. The killed replica comes back when the last request was sent. Prints times to first token by
class and kind, ends of requests, and every promise (`loadtest.chaos.overload_promises`); the status is 1 if
one was broken. All processes share the machine: compare the phases, not machines.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.chaos.crowd import KINDS, PRIORITIES, Served, mean_service_s
from loadtest.chaos.fault_injector import ALL
from loadtest.chaos.overload_promises import judge_overload
from loadtest.chaos.play import Play, Scene, Seen
from loadtest.chaos.promises import perform, times
from loadtest.chaos.schedule import Strike
from loadtest.chaos.testbed import Part, Tenant, Troupe
from loadtest.chaos.visitor import End
from loadtest.engine import EngineSettings
from loadtest.workload import MODEL

ENGINE = EngineSettings(
    models=(MODEL,), prefill_tokens_per_s=12_000, prefill_base_ms=10, tpot_ms=5, chunk_tokens=4096
)
"""Slow enough for a test machine to send several times what four of them can do."""

CALM_RATIO = 0.4

TENANTS = (
    Tenant("gold", load=2, weight=4),
    Tenant("silver", load=2, weight=2),
    Tenant("noisy", load=5, weight=1),
    Tenant("capped", load=1, requests_per_minute=120),
)
"""The noisy one asks for more than the fleet can do, and weighs least."""

QUEUE = ("--queue-size", "100", "--queue-timeout-secs", "6")
"""Some three seconds of work for the engines, twice that beside the calm load: times are soon normal."""

ENDS = (End.ANSWERED, End.REJECTED, End.EXPIRED, End.LEFT, End.CUT)


@dataclass(frozen=True, slots=True)
class OverloadPlan:
    """Amounts of processes and load."""

    replicas: int = 4
    engines: int = 4
    times: float = 3.0
    before_s: float = 15.0
    overload_s: float = 120.0
    after_s: float = 20.0
    disaster: bool = False
    flags: Sequence[str] = QUEUE
    seed: int = 1

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the engines can prefill."""
        return self.engines / mean_service_s(ENGINE)

    @property
    def play(self) -> Play:
        """The play of this plan."""
        calm = CALM_RATIO * self.capacity_per_s
        over_s = self.before_s + self.overload_s
        seconds, last = over_s + self.after_s, f"r{self.replicas}"
        killed_s = self.before_s + 0.5 * self.overload_s
        strikes = (
            Strike(self.before_s + 0.4 * self.overload_s, "Valkey killed", ALL, 0.2 * self.overload_s),
            Strike(killed_s, "replica killed", last, seconds - killed_s),
        )
        return Play(
            Troupe(
                [Part(f"e{number + 1}", "plain", ENGINE) for number in range(self.engines)],
                {f"r{number + 1}": 1 for number in range(self.replicas)},
                TENANTS,
                (*self.flags, "--log-level", "warning"),
            ),
            [
                Scene("before", 0.0, calm),
                Scene("overload", self.before_s, self.times * self.capacity_per_s),
                Scene("after", over_s, calm),
            ],
            seconds,
            strikes if self.disaster else (),
            seed=self.seed,
        )


def main(arguments: Sequence[str]) -> int:
    """Run it and print the tables; the status is 1 if a promise was broken."""
    defaults = OverloadPlan()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.chaos overload",
        description=(__doc__ or "").split(": ", maxsplit=1)[1].split("\n", maxsplit=1)[0],
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
    return perform(OverloadPlan(**vars(parser.parse_args(arguments))).play, judge_overload, shown)


def shown(seen: Seen) -> Iterator[Table | str]:
    """Tables and figures of a run."""
    yield times(seen, _groups(seen.served))
    yield _ends(seen)
    overload = [sample for sample in seen.samples if sample.scene == "overload"]
    looks = [count for sample in overload for count in sample.idle_workers]
    waiting = [max(sample.waiting, default=0) for sample in seen.samples]
    apart = [max(sample.waiting) - min(sample.waiting) for sample in overload if sample.waiting]
    yield f"CPU of the replicas: {seen.cpu_us('overload'):.0f} us a request in the overload"
    yield (
        f"waiting at most {max(waiting, default=0)}, replicas at most {max(apart, default=0)} apart; "
        f"in {sum(count > 0 for count in looks)} of {len(looks)} looks an idle worker while requests waited"
    )
    for name, value in sorted(seen.metrics.items()):
        if "inversion" in name and value:
            yield f"{name} {value:g}"


def _groups(served: list[Served]) -> Iterator[tuple[str, list[Served]]]:
    yield "all", served
    for name in PRIORITIES:
        yield f"class {name}", [one for one in served if one.priority == name]
    for name in KINDS:
        yield name, [one for one in served if one.kind == name]
    for name in sorted({one.tenant for one in served}):
        yield f"tenant {name}", [one for one in served if one.tenant == name]


def _ends(seen: Seen) -> Table:
    table = Table("", "sent", *ENDS, "codes", box=SIMPLE_HEAD, title="How requests ended")
    for scene in (scene.name for scene in seen.play.scenes):
        for name, served in _groups([one for one in seen.served if one.phase == scene]):
            if scene != "overload" and name != "all":
                continue
            ends = Counter(one.visit.end for one in served)
            codes = Counter(one.visit.code for one in served if one.visit.code)
            table.add_row(
                scene if name == "all" else f"  {name}",
                str(len(served)),
                *(f"{ends[end] / max(len(served), 1):.1%}" for end in ENDS),
                ", ".join(f"{count} {code}" for code, count in codes.most_common(4)),
            )
    return table
