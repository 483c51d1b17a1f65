"""The report in Markdown: what was promised and seen, how it was measured, a table for each workload."""

import math
from collections.abc import Callable, Sequence

from loadtest.bench.markdown import table
from loadtest.bench.peers.field import CACHEWAY, PEERS, WORKLOADS, Figure, Kind, Workload
from loadtest.bench.peers.promises import Verdict, judge
from loadtest.bench.peers.results import Repetition, Results, Spread

UNITS = {
    Figure.CPU_PER_REQUEST: "µs",
    Figure.CPU_PER_CHUNK: "µs",
    Figure.ADDED_LATENCY: "ms",
    Figure.MEMORY: "MiB",
}
_NAMES = {peer.key: peer.name for peer in PEERS}
_Column = tuple[str, Callable[[str], str]]
"""A head, and the cell for a peer."""

_METHOD = """\
Written by `make bench-peers`. `python -m loadtest.bench.peers --report-only docs/benchmarks/peers.jsonl`
makes it again from [the figures](peers.jsonl).

**CPU** is user and system time of the router's whole process tree. Machines are shared and noisy, so
compare within one run only. Cacheway runs as its users start it: `cacheway serve` with the default
policy, one process, metrics on, a log line for every request written to a file, and the embedded Valkey,
whose CPU and memory count as cacheway's. The Rust routers log errors only, and nginx has no access log.

The router has one CPU; four mock engines that answer at once and the load generator have another. In
every round each router starts afresh for W1 to W6, and again for W7. Figures are medians of the rounds,
with **(least–most)** in brackets. A repetition in which a request failed gives no figure, it only counts
as failed. Added latency is what a router adds to that of the engines without any, at the same
percentile and in the same round. In W6 and W7 everything runs at nice -10, if the user may.
"""


def markdown(results: Results) -> str:
    """Write the report."""
    sections = [
        "# Cacheway beside other routers",
        "![CPU, latency and memory of all routers](peers.png)",
        _origin(results),
        "## What was promised, what was seen",
        _verdicts(judge(results)),
        "## How it was measured",
        _METHOD.rstrip(),
    ]
    for workload in WORKLOADS:
        if results.measured(workload.key):
            sections += [f"## {workload.key}: {workload.title}", _workload(results, workload)]
    return "\n\n".join(sections) + "\n"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _median(spread: Spread | None) -> str:
    return number(spread.median) if spread else "-"


def _spread(spread: Spread | None) -> str:
    if spread is None or spread.least == spread.most:
        return _median(spread)
    return f"{_median(spread)} ({number(spread.least)}–{number(spread.most)})"


def _origin(results: Results) -> str:
    run, machine = results.run, results.run.machine
    versions = ", ".join(f"{package} {version}" for package, version in run.versions.items())
    return table(
        ("run", ""),
        [
            ("date", run.date),
            ("machine", f"{machine.cpu}, {machine.cpus} CPUs, {machine.kernel}"),
            ("Python", machine.python),
            ("versions", versions),
            ("rounds", f"{run.rounds}, with W1 to W4 for {run.seconds:g} s each"),
        ],
        left=2,
    )


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for verdict in verdicts:
        promise = verdict.promise
        unit = UNITS[next(one for one in WORKLOADS if one.key == promise.workload).figure]
        limit = f"{number(verdict.limit)} {unit}"
        if verdict.rival is None:
            promised, ratio = f"{promise.rival} below {limit}", "-"
        else:
            factor = "" if promise.factor == 1 else f"{promise.factor:g} × "
            promised = f"at most {factor}{promise.rival}"
            ratio = f"{verdict.ratio:.2f} × {_NAMES[verdict.rival]}"
        failed = f", {verdict.failed} requests failed" if verdict.failed else ""
        kept = ("yes" if verdict.kept else "**no**") + failed
        rows.append((promise.workload, promised, limit, f"{_spread(verdict.seen)} {unit}", ratio, kept))
    return table(("workload", "promised", "limit", "seen", "ratio seen", "kept?"), rows, left=2)


def _workload(results: Results, workload: Workload) -> str:
    def order(key: str) -> float:
        figure = results.figure(key, workload)
        return figure.median if figure else math.inf

    def failed(key: str) -> str:
        return str(sum(results.failed(key, one) for one in (workload.key, workload.fill)))

    columns = [*_columns(results, workload), ("failed", failed)]
    keys = sorted((peer.key for peer in PEERS if results.took_part(peer.key, workload.key)), key=order)
    rows = [(_name(key), *(cell(key) for _, cell in columns)) for key in keys]
    return table(("router", *(head for head, _ in columns)), rows)


def _columns(results: Results, workload: Workload) -> list[_Column]:
    """The workload's figure with its spread, then medians of other figures."""

    def median(head: str, take: Callable[[Repetition], float | None], key: str = workload.key) -> _Column:
        return head, lambda peer: _median(results.spread(peer, key, take))

    ours = results.figure(CACHEWAY, workload)

    def ratio(peer: str) -> str:
        figure = results.figure(peer, workload)
        return f"{figure.median / ours.median:.2f}" if figure and ours and ours.median else "-"

    figure: _Column = (workload.figure.value, lambda peer: _spread(results.figure(peer, workload)))
    times: _Column = ("× cacheway", ratio)
    latency = [
        median("P50 ms", lambda repetition: repetition.p50_ms),
        median("P99 ms", lambda repetition: repetition.p99_ms),
    ]
    memory = median("RSS MiB", lambda repetition: repetition.rss_mib)
    match workload.figure:
        case Figure.CPU_PER_REQUEST:
            rate = median("requests/s", lambda repetition: repetition.per_s)
            return [figure, times, rate, *latency, memory]
        case Figure.CPU_PER_CHUNK:
            rate = median("streams/s", lambda repetition: repetition.per_s)
            transit = [
                median("chunk P50 ms", lambda repetition: repetition.chunk_p50_ms),
                median("chunk P99 ms", lambda repetition: repetition.chunk_p99_ms),
            ]
            return [figure, times, rate, *transit, memory]
        case Figure.ADDED_LATENCY:

            def tail(peer: str) -> str:
                return _spread(results.added(peer, workload.key, lambda repetition: repetition.p99_ms))

            cpu = median("CPU µs/request", lambda repetition: repetition.cpu_us_per_request)
            return [("added P50 ms", figure[1]), ("added P99 ms", tail), *latency, cpu]
        case Figure.MEMORY:
            filling = "CPU µs/request while filling"
            cpu = median(filling, lambda repetition: repetition.cpu_us_per_request, workload.fill)
            return [figure, times, cpu, *latency]


def _name(key: str) -> str:
    peer = next(peer for peer in PEERS if peer.key == key)
    return f"**{peer.name}**" if peer.kind is Kind.OURS else peer.name
