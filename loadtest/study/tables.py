"""Tables of the study in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from math import isnan

from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.design import OURS, Cell
from loadtest.study.results import Row, by_scenario
from loadtest.study.verdict import Verdict


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ruler, *lines)) + "\n"


def seconds(value: float) -> str:
    """Three digits that count."""
    if isnan(value):
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def percent(value: float) -> str:
    """Tenths of a percent."""
    return "-" if isnan(value) else f"{100 * value:.1f} %"


def title(scenario: Cell) -> str:
    """What is special about a scenario, in a few words."""
    words = [scenario.traffic, scenario.engine]
    if scenario.utilisation is not None:
        words.append(f"{100 * scenario.utilisation:.0f} %")
    if scenario.l3:
        words.append("L3")
    if scenario.replicas > 1:
        words.append(f"{scenario.replicas} replicas")
    if scenario.queue_order != "fcfs":
        words.append(f"queue {scenario.queue_order}")
    if scenario.seed != 1:
        words.append(f"seed {scenario.seed}")
    if scenario.value:
        words.append(scenario.value)
    return ", ".join(words)


_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("TTFT mean, s", "ttft_mean_s", seconds),
    ("P50", "ttft_p50_s", seconds),
    ("P90", "ttft_p90_s", seconds),
    ("P99", "ttft_p99_s", seconds),
    ("reused", "hit_ratio", percent),
    ("device", "hit_device_ratio", percent),
    ("host", "hit_host_ratio", percent),
    ("L3", "hit_pool_ratio", percent),
    ("of pooled LRU", "share_of_pooled", percent),
    ("busy", "utilisation_mean", percent),
    ("busiest/mean", "imbalance", seconds),
    ("completed", "completed_share", percent),
)


def scenario_tables(rows: Iterable[Row]) -> str:
    """One table per scenario, fastest policy first, with what is possible in a line above it."""
    parts = []
    for scenario, by_label in by_scenario(rows).items():
        ordered = sorted(by_label.values(), key=lambda row: row.number("ttft_mean_s"))
        one = ordered[0]
        bounds = (
            f"Lower bound of mean TTFT (infinite caches, no queue) "
            f"{seconds(one.number('floor_ttft_mean_s'))} s; "
            f"reuse of an infinite cache {percent(one.number('ideal_hit_ratio'))}, "
            f"of one LRU cache as large as all workers' {percent(one.number('pooled_hit_ratio'))}."
        )
        lines = [
            [_name(row.cell.label), *(form(row.number(figure)) for _, figure, form in _COLUMNS)]
            for row in ordered
        ]
        head = ["policy", *(name for name, _, _ in _COLUMNS)]
        parts.append(f"### {title(scenario)}\n\n{bounds}\n\n{table(head, lines)}")
    return "\n".join(parts)


def code_table(rows: Sequence[Row], code: str) -> str:
    """How many results each part has, and how many of them other code than this made."""
    lines = []
    for part in dict.fromkeys(row.cell.part for row in rows):
        codes = [row.code for row in rows if row.cell.part == part]
        lines.append([part, str(len(codes)), str(len(codes) - codes.count(code))])
    return table(["part", "results", "of earlier code"], lines)


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    """The default against the best peer, one line per scenario."""
    head = [
        "scenario",
        "mean, s",
        "best peer, s",
        "ratio",
        "P90, s",
        "best peer, s",
        "ratio",
        "of pooled LRU",
        "floor, s",
    ]
    lines = []
    for one in verdicts:
        line = [title(one.scenario)]
        for compared in (one.mean, one.p90):
            line += [
                seconds(compared.ours_s),
                f"{seconds(compared.peer_s)} ({compared.peer})",
                f"**{compared.ratio:.2f}**" if compared.ratio > 1.03 else f"{compared.ratio:.2f}",
            ]
        lines.append([*line, percent(one.share_of_pooled), seconds(one.floor_s)])
    return table(head, lines)


def sweep_table(rows: Sequence[Row]) -> str:
    """One line per value, one group of columns per traffic."""
    traffic = list(dict.fromkeys(row.cell.traffic for row in rows))
    found = {(row.cell.value, row.cell.traffic): row for row in rows}
    head = ["value"]
    for key in traffic:
        head += [f"{key}: mean, s", "P90, s", "reused"]
    lines = []
    for value in dict.fromkeys(row.cell.value for row in rows):
        line = [value]
        for key in traffic:
            row = found.get((value, key))
            line += (
                ["-"] * 3
                if row is None
                else [
                    seconds(row.number("ttft_mean_s")),
                    seconds(row.number("ttft_p90_s")),
                    percent(row.number("hit_ratio")),
                ]
            )
        lines.append(line)
    return table(head, lines)


def cross_table(theirs: Sequence[CrossRow], ours: Sequence[Row], ideal_ratio: float) -> str:
    """Token reuse side by side."""
    lines = [
        [
            f"Dynamo, {row.router}",
            f"{row.reuse_ratio:.3f}",
            f"{row.reuse_least_ratio:.3f} to {row.reuse_most_ratio:.3f}",
            seconds(row.ttft_mean_s),
            seconds(row.ttft_p90_s),
        ]
        for row in theirs
    ]
    lines += [
        [
            f"Cacheway, {_name(row.cell.label)}",
            f"{row.number('hit_ratio'):.3f}",
            "",
            seconds(row.number("ttft_mean_s")),
            seconds(row.number("ttft_p90_s")),
        ]
        for row in ours
    ]
    lines.append(["one infinite cache", f"{ideal_ratio:.3f}", "", "", ""])
    return table(["router", "reused", "least to most of 3 runs", "TTFT mean, s", "P90, s"], lines)


def _name(label: str) -> str:
    return f"**{label}**" if label == OURS else label
