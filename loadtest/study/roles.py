"""``python -m loadtest.study.roles``: roles that follow the load, beside every fixed split of the same workers.

    day      long prompts, short answers: prefill is scarce         ┐
    night    short prompts, long answers: decode is scarce          ┘ in turns, each for `PHASE_S`

Each phase asks `LOAD` of what the best split for it serves, and more than an even split does. Prompts share
nothing, so only roles matter. The convertible workers run under the rules of ``roles.mode: apply`` as they
are, with a switch of a minute and an empty cache behind it. Requests wait in the gateway.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from loadtest.engine.job import Role
from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.simulator.arguments import add_jobs, count
from loadtest.simulator.fleet import WorkerGroup
from loadtest.simulator.identity import HASH_BYTES, FreshBlocks
from loadtest.simulator.parallel import Cell, simulate_all
from loadtest.simulator.queueing import PATIENT, QueueRules
from loadtest.simulator.records import Outcome, Result
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from policies.disaggregation import RoleRules

WORKERS = 6

PHASE_S = 7_200.0
"""Half of a day in small: several times the window of 16 minutes and the dwell of 10 that the loop has."""

PHASES = 6

LOAD = 0.75
"""Of the best split for a phase. [guess] what an operator leaves free."""

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
    """The dense model of `PROFILES`, with a batch of `RUNNING_MAX`."""
    return replace(PROFILES["dense-70b"], max_running=RUNNING_MAX)


def capacity_per_s(phase: Phase, prefill: int, decode: int) -> float:
    """Requests a second that so many workers of each role serve: the smaller of both stages."""
    profile = engine()
    prefill_s = profile.prefill.prompt_s(phase.prompt_tokens, 0)
    context_tokens = RUNNING_MAX * (phase.prompt_tokens + phase.output_tokens / 2)
    batch_s = profile.decode.stretch(RUNNING_MAX, context_tokens).seconds(phase.output_tokens)
    return min(prefill / prefill_s, decode * RUNNING_MAX / batch_s)


def traffic(phase_s: float = PHASE_S, phases: int = PHASES, seed: int = 1) -> Workload:
    """Poisson arrivals of day and night in turns; no two prompts share a block."""
    chance, fresh = random.Random(f"{seed}/roles"), FreshBlocks("roles", seed)

    def sessions() -> Iterator[Session]:
        for number in range(phases):
            phase = (DAY, NIGHT)[number % 2]
            rate_per_s = LOAD * capacity_per_s(phase, phase.best_prefill, WORKERS - phase.best_prefill)
            at_s = number * phase_s
            while (at_s := at_s + chance.expovariate(rate_per_s)) < (number + 1) * phase_s:
                blocks = fresh.take(phase.prompt_tokens // ENGINE_BLOCK_TOKENS)
                assert len(blocks) % HASH_BYTES == 0
                yield Session(at_s, (SimRequest(blocks, phase.prompt_tokens, phase.output_tokens),))

    return Workload("day and night", tuple(sessions()))


def config(prefill: int, *, convertible: bool, seed: int = 1) -> SimulationConfig:
    """So many of `WORKERS` prefill, at the start if they are convertible."""

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


def figures(result: Result) -> tuple[float, float, float, float]:
    """Share of the requests that were answered, and P50, P90 and mean of their time to first token."""
    summary = result.summary()
    names = ("completed_share", "ttft_p50_s", "ttft_p90_s", "ttft_mean_s")
    share, p50_s, p90_s, mean_s = (float(summary[name] or 0.0) for name in names)
    return share, p50_s, p90_s, mean_s


def rows(results: Sequence[tuple[str, Result]]) -> list[str]:
    """A table in Markdown."""
    lines = [
        "| workers | answered | TTFT P50 | TTFT P90 | TTFT mean | changes |",
        "|---|---|---|---|---|---|",
    ]
    for label, result in results:
        share, p50_s, p90_s, mean_s = figures(result)
        assert int((result.records.outcome == Outcome.FAILED).sum()) == 0
        times = " | ".join(f"{value:.2f} s" for value in (p50_s, p90_s, mean_s))
        lines.append(f"| {label} | {share:.1%} | {times} | {len(result.role_changes)} |")
    return lines


def main(argv: Sequence[str]) -> int:
    """Simulate all splits, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.study.roles")
    parser.add_argument("--phases", type=count, default=PHASES, metavar="N")
    parser.add_argument("--seed", type=count, default=1, metavar="N")
    add_jobs(parser)
    options = parser.parse_args(argv)
    workload = traffic(phases=options.phases, seed=options.seed)
    cases = [
        (f"{prefill} prefill, {WORKERS - prefill} decode, fixed", config(prefill, convertible=False))
        for prefill in range(1, WORKERS)
    ]
    cases.append(("convertible, 3 and 3 at the start", config(WORKERS // 2, convertible=True)))
    console = Console()
    found: dict[int, Result] = {}
    for number, result in simulate_all([Cell(workload, one) for _, one in cases], options.jobs):
        found[number] = result
    labelled = [(label, found[number]) for number, (label, _) in enumerate(cases)]
    console.print(f"{workload.request_count:,} requests", highlight=False)
    for line in rows(labelled):
        console.print(line, highlight=False, soft_wrap=True)
    for at_s, worker, role in labelled[-1][1].role_changes:
        console.print(f"{at_s:7.0f} s  {worker} to {role}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
