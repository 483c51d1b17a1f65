"""The page in Markdown: aims and answers, how it was measured, and a table of every cell."""

from collections import Counter
from collections.abc import Iterable, Sequence

from loadtest.bench.fleet.aims import CellRuns, Figure, hit_ratio, judge, mean_s, p90_s
from loadtest.bench.fleet.cells import CELLS, Router
from loadtest.bench.fleet.interval import Interval
from loadtest.bench.fleet.results import LATE_RATIO_MAX, Outcome
from loadtest.bench.markdown import table
from loadtest.bench.peers.machine import Machine

OLDER = "of earlier decision code"
"""Row that names the cells to measure again."""

_METHOD = f"""\
Written by `make bench-fleet`; `python -m loadtest.bench.fleet --report-only` makes it again from the results.

Eight workers on sockets have an LRU cache of 512-token blocks and prefill one request at a time, in order
of arrival: 0.03 s plus the uncached tokens at 6,000 tokens/s. An output token takes 0.02 s. Agents are
recorded coding sessions in a closed loop: each sends its next request when it has its answer and the recorded
pause (0.5 to 60 s) is over; prompts have up to 131,072 tokens. Conversations arrive as recorded; each
repetition takes another window of the recording. Answers have up to 64 tokens. All times are trace time: the
machine plays it faster by the factor below, and what a router computes weighs as much more.

Cacheway runs with its defaults; four replicas share one Valkey. The Rust routers run with the policy
`cache_aware`, as their documentation starts them, and their replicas share nothing. Requests go to replicas
in turn. Workers, router and load are fresh in every run. All routers of a repetition get the same requests,
and repetitions begin with another router each. A ratio is formed in each repetition; the mean of the ratios
has a 95 % interval (Student's t). The best peer of a figure is the one with the better mean in that cell.
An answer is *undecided* where the interval holds the limit.

A run is invalid, and left out, if a request failed, or if the bench delayed requests or first tokens by more
than {LATE_RATIO_MAX:.0%} of the mean TTFT. Several runs share the machine; each needs a tenth of a core."""


def markdown(outcomes: Sequence[Outcome], machine: Machine, folder: str, older: Sequence[str] = ()) -> str:
    """Write the page of one revision; ``folder`` beside it holds chart and results.

    ``older`` names cells whose runs are of code that decided otherwise than the present one.
    """
    cells = [runs for cell in CELLS if (runs := CellRuns(cell, outcomes)).all]
    sections = [
        "# Cacheway beside cache-aware routers, on sockets",
        f"![Mean TTFT of all routers in all cells]({folder}/fleet.png)",
        _origin(outcomes, machine, older),
        "## Aims",
        _summary(cells),
        _verdicts(cells),
        "## How it was measured",
        _METHOD,
        "## All cells",
        "Means over the repetitions, with 95 % intervals in brackets.",
        _cells(cells),
    ]
    return "\n\n".join(sections) + "\n"


def _origin(outcomes: Sequence[Outcome], machine: Machine, older: Sequence[str]) -> str:
    last = outcomes[-1]
    rows = [
        ("date", last.date),
        ("machine", f"{machine.cpu}, {machine.cpus} CPUs, {machine.kernel}"),
        ("Python", machine.python),
        ("sources", f"`{last.revision}` (digest)"),
        ("a run", f"{last.seconds:g} s of trace time, {last.speed:g} times faster"),
        ("runs", f"{len(outcomes)}, {sum(not outcome.valid for outcome in outcomes)} of them invalid"),
        *((OLDER, ", ".join(older)) for _ in older[:1]),
    ]
    return table(("run", ""), rows, left=2)


def _summary(cells: Iterable[CellRuns]) -> str:
    counts = Counter((verdict.aim, verdict.answer) for runs in cells for verdict in judge(runs))
    aims = dict.fromkeys(aim for aim, _ in counts)
    answers = ("yes", "no", "undecided")
    rows = [(aim, *(str(counts[aim, answer]) for answer in answers)) for aim in aims]  # type: ignore[index]
    return table(("aim", *answers), rows)


def _verdicts(cells: Iterable[CellRuns]) -> str:
    rows = [
        (
            runs.cell.key,
            verdict.aim,
            verdict.rival,
            f"{verdict.limit:g}",
            _interval(verdict.seen, 3),
            str(verdict.answer) if verdict.answer == "yes" else f"**{verdict.answer}**",
        )
        for runs in cells
        for verdict in judge(runs)
    ]
    return table(("cell", "aim", "beside", "limit", "seen", "reached?"), rows, left=3)


def _cells(cells: Iterable[CellRuns]) -> str:
    rows = []
    for runs in cells:
        for router in Router:
            if not (valid := runs.of(router)):
                continue

            def seen(figure: Figure, digits: int, valid: list[Outcome] = valid) -> str:
                return _interval(Interval.of([figure(outcome) for outcome in valid]), digits)

            rows.append(
                (
                    runs.cell.key,
                    f"**{router}**" if router is Router.CACHEWAY else router,
                    seen(mean_s, 2),
                    seen(p90_s, 2),
                    seen(lambda outcome: outcome.ttft_p99_s, 1),
                    seen(hit_ratio, 3),
                    f"{sum(outcome.ideal_hit_ratio for outcome in valid) / len(valid):.3f}",
                    f"{sum(outcome.imbalance for outcome in valid) / len(valid):.2f}",
                    f"{1e3 * sum(o.router_cpu_s / o.requests for o in valid) / len(valid):.2f}",
                    str(len(valid)),
                )
            )
    heads = ("cell", "router", "mean TTFT s", "P90 s", "P99 s", "hit rate", "ideal", "busiest / mean")
    return table((*heads, "CPU ms/request", "runs"), rows, left=2)


def _interval(seen: Interval, digits: int) -> str:
    if seen.count < 2:
        return f"{seen.mean:.{digits}f}"
    return f"{seen.mean:.{digits}f} ({seen.low:.{digits}f}–{seen.high:.{digits}f})"
