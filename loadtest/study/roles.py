"""``python -m loadtest.study.roles``: roles that follow the load, beside fixed roles of the same workers.

    day      long prompts, short answers: prefill is scarce         ┐
    night    short prompts, long answers: decode is scarce          ┘ in turns, each for `PHASE_S`
    mixed    both at once, each at half of its rate: nothing shifts, so nothing should change for long

Each phase asks `LOAD` of what the best split for it serves, and more than an even split does. Prompts share
nothing, so only roles matter. The slow loop runs as ``roles.mode: apply`` does, with a switch of a minute and
an empty cache behind it (`loadtest.simulator.simulation`). Requests wait in the gateway, at most a minute.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from loadtest.engine.job import Role
from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.simulator.arguments import count, positive
from loadtest.simulator.fleet import WorkerGroup
from loadtest.simulator.identity import FreshBlocks
from loadtest.simulator.queueing import PATIENT, QueueRules
from loadtest.simulator.records import Result
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from policies.disaggregation import RoleRules

WORKERS = 6

PHASE_S = 7_200.0
"""Half of a day in small: several times the window of 16 minutes and the dwell of 10 that the loop has."""

PHASES = 2

FIXED = (2, 3, 4)
"""Workers that prefill in the fixed splits."""

SPEED = 0.25
"""Share of the profile's machines: a quarter of the GPUs have a quarter of the requests to simulate."""

LOAD = 0.75
"""Share of the best split's capacity for a phase. [guess] an operator's reserve."""

RUNNING_MAX = 32
"""Requests that a worker runs together; small, so that decode is scarce without millions of requests."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests of one kind, and the workers that prefill in the best split for them."""

    name: str
    prompt_tokens: int
    output_tokens: int
    best_prefill: int


DAY = Phase("day", 16_384, 100, 5)
NIGHT = Phase("night", 1_024, 3_000, 1)


def engine() -> EngineProfile:
    """The dense model of `PROFILES` on a part of the GPUs, with a batch of `RUNNING_MAX`."""
    return replace(PROFILES["dense-70b"].faster(SPEED), max_running=RUNNING_MAX)


def capacity_per_s(phase: Phase, prefill: int, decode: int) -> float:
    """Requests a second that ``prefill`` and ``decode`` workers serve: the smaller of both stages."""
    profile = engine()
    prefill_s = profile.prefill.prompt_s(phase.prompt_tokens, 0)
    context_tokens = RUNNING_MAX * (phase.prompt_tokens + phase.output_tokens / 2)
    batch_s = profile.decode.stretch(RUNNING_MAX, context_tokens).seconds(phase.output_tokens)
    return min(prefill / prefill_s, decode * RUNNING_MAX / batch_s)


def traffic(phase_s: float = PHASE_S, phases: int = PHASES, seed: int = 1) -> Workload:
    """Day and night in turns."""
    turns = [((DAY, NIGHT)[number % 2], number * phase_s) for number in range(phases)]
    return _drawn(
        "day and night", [_arrivals(phase, begin_s, phase_s, 1.0) for phase, begin_s in turns], seed
    )


def mixed(duration_s: float, seed: int = 1) -> Workload:
    """Day and night at once."""
    return _drawn("mixed", [_arrivals(phase, 0.0, duration_s, 0.5) for phase in (DAY, NIGHT)], seed)


_Arrivals = Callable[[random.Random], Iterator[tuple[float, Phase]]]


def _arrivals(phase: Phase, begin_s: float, duration_s: float, share: float) -> _Arrivals:
    """Poisson arrivals of a phase at a share of its rate."""
    best_per_s = capacity_per_s(phase, phase.best_prefill, WORKERS - phase.best_prefill)

    def drawn(chance: random.Random) -> Iterator[tuple[float, Phase]]:
        at_s = begin_s
        while (at_s := at_s + chance.expovariate(share * LOAD * best_per_s)) < begin_s + duration_s:
            yield at_s, phase

    return drawn


def _drawn(name: str, parts: Sequence[_Arrivals], seed: int) -> Workload:
    """All arrivals in order; no two prompts share a block."""
    chance, fresh = random.Random(f"{seed}/roles"), FreshBlocks("roles", seed)
    arrivals = sorted((one for part in parts for one in part(chance)), key=itemgetter(0))
    sessions = (
        Session(
            at_s,
            (
                SimRequest(
                    fresh.take(phase.prompt_tokens // ENGINE_BLOCK_TOKENS),
                    phase.prompt_tokens,
                    phase.output_tokens,
                ),
            ),
        )
        for at_s, phase in arrivals
    )
    return Workload(name, tuple(sessions))


def config(prefill: int, *, convertible: bool, seed: int = 1) -> SimulationConfig:
    """A fleet of `WORKERS` of which ``prefill`` prefill, at the start if they are convertible."""

    def group(role: Role, workers: int) -> WorkerGroup:
        return WorkerGroup(name=role, profile=engine(), count=workers, role=role, convertible=convertible)

    return SimulationConfig(
        engine=engine(),
        workers=prefill,
        decode_workers=WORKERS - prefill,
        groups=(group("prefill", prefill), group("decode", WORKERS - prefill)),
        roles=RoleRules(mode="apply"),
        queue=QueueRules(k=4.0, room=replace(PATIENT, timeout_s=60.0)),
        seed=seed,
    )


def row(label: str, result: Result) -> str:
    """A row of the table in Markdown."""
    summary = result.summary()
    names = ("ttft_p50_s", "ttft_p90_s", "ttft_mean_s")
    times = " | ".join(f"{float(summary[name] or 0.0):.2f} s" for name in names)
    share = float(summary["completed_share"] or 0.0)
    return f"| {label} | {share:.1%} | {times} | {len(result.role_changes)} |"


def main(argv: Sequence[str]) -> int:
    """Simulate all fleets, and print the table in Markdown and the changes."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.study.roles", description=__doc__)
    parser.add_argument("--phases", type=count, default=PHASES, metavar="N", help=f"[default {PHASES}]")
    parser.add_argument(
        "--phase-s", type=positive, default=PHASE_S, metavar="S", help=f"[default {PHASE_S:g}]"
    )
    parser.add_argument("--seed", type=count, default=1, metavar="N", help="[default 1]")
    options = parser.parse_args(argv)
    shifting = traffic(options.phase_s, options.phases, options.seed)
    steady = mixed(options.phase_s * options.phases, options.seed)
    even = config(WORKERS // 2, convertible=True, seed=options.seed)
    cases = [
        (
            f"{prefill} prefill and {WORKERS - prefill} decode",
            shifting,
            config(prefill, convertible=False, seed=options.seed),
        )
        for prefill in FIXED
    ]
    cases += [("convertible", shifting, even), ("convertible, mixed load", steady, even)]
    print("| workers | answered | TTFT P50 | TTFT P90 | TTFT mean | changes |")
    print("|---|---|---|---|---|---|")
    changes = []
    for label, workload, fleet in cases:
        result = simulate(workload, fleet)
        print(row(label, result), flush=True)
        changes += [f"{label}: {at_s:.0f} s, {name} to {role}" for at_s, name, role in result.role_changes]
    print(*changes, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
