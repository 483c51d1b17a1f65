"""Tables of the study in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from math import isinf, isnan

from loadtest.study.cross_check import Row as CrossRow
from loadtest.study.design import OURS, Cell
from loadtest.study.results import Row, Seeds, by_scenario
from loadtest.study.verdict import Comparison, Interval, Told, Verdict, average


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
    """Special condition of a scenario, in a few words."""
    words = [scenario.traffic, scenario.engine]
    if scenario.utilisation is not None:
        words.append(f"{100 * scenario.utilisation:.0f} %")
    if scenario.l3:
        words.append("L3")
    if scenario.replicas > 1:
        words.append(f"{scenario.replicas} replicas")
    if scenario.host:
        words.append("host memory")
    if scenario.value:
        words.append(scenario.value)
    return ", ".join(words)


_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
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
    ("answered", "completed_share", percent),
)


def scenario_tables(rows: Iterable[Row]) -> str:
    """One table per scenario, fastest rule first, below a line with the bounds.

    Figures are means of the seeds; beside the mean time to first token stand the least and the most.
    """
    parts = []
    for scenario, by_label in by_scenario(rows).items():
        ordered = sorted(by_label.items(), key=lambda item: average(item[1], "ttft_mean_s"))
        one = ordered[0][1]
        bounds = (
            f"Lower bound of mean TTFT (infinite caches, no queue) "
            f"{seconds(average(one, 'floor_ttft_mean_s'))} s; "
            f"reuse of an infinite cache {percent(average(one, 'ideal_hit_ratio'))}, "
            f"of one LRU cache as large as all workers' {percent(average(one, 'pooled_hit_ratio'))}."
        )
        lines = [
            [
                _name(label),
                str(len(seeds)),
                span(seeds, "ttft_mean_s"),
                *(form(average(seeds, figure)) for _, figure, form in _COLUMNS),
            ]
            for label, seeds in ordered
        ]
        head = ["rule", "seeds", "TTFT mean, s", *(name for name, _, _ in _COLUMNS)]
        parts.append(f"### {title(scenario)}\n\n{bounds}\n\n{table(head, lines)}")
    return "\n".join(parts)


def span(seeds: Seeds, figure: str, form: Callable[[float], str] = seconds) -> str:
    """Mean of the seeds, and the least and the most of them."""
    values = [row.number(figure) for row in seeds]
    middle = form(average(seeds, figure))
    return middle if len(values) < 2 else f"{middle} ({form(min(values))} to {form(max(values))})"


def code_table(rows: Sequence[Row], wanted: Sequence[Cell]) -> str:
    """The code that made the results, and how many cells of each part have one."""
    decisions = ", ".join(sorted({f"`{row.code.decisions}`" for row in rows})) or "none"
    models = ", ".join(sorted({f"`{row.code.model}`" for row in rows})) or "none"
    done = {row.cell for row in rows}
    lines = []
    for part in dict.fromkeys(cell.part for cell in wanted):
        of = [cell for cell in wanted if cell.part == part]
        lines.append([part, str(len(of)), str(sum(cell in done for cell in of))])
    return f"Decisions: {decisions}; model: {models}.\n\n{table(['part', 'cells', 'simulated'], lines)}"


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    """The default against the best rival, one line per scenario."""
    head = ["scenario"]
    for figure in ("mean", "P90"):
        head += [f"{figure}, s", "best rival, s", "ratio, 95 % interval", "verdict"]
    head += ["answered", "of pooled LRU", "floor, s"]
    lines = []
    for one in verdicts:
        line = [title(one.scenario)]
        for compared in (one.mean, one.p90):
            line += [
                seconds(compared.ours_s),
                f"{seconds(compared.rival_s)} ({compared.rival})",
                interval(compared.ratio),
                verdict(compared),
            ]
        lines.append([*line, percent(one.answered_share), percent(one.share_of_pooled), seconds(one.floor_s)])
    return table(head, lines)


def interval(ratio: Interval) -> str:
    """A ratio with its interval."""
    if isinf(ratio.high):
        return f"{ratio.middle:.2f}"
    return f"{ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def verdict(compared: Comparison) -> str:
    """A verdict in words; the faster policies, if any."""
    match compared.told:
        case Told.SLOWER:
            return f"**slower than {', '.join(compared.faster)}**"
        case told:
            return told.value


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
    for by_label in by_scenario(ours).values():
        for label, seeds in by_label.items():
            reused = [row.number("hit_ratio") for row in seeds]
            lines.append(
                [
                    f"Cacheway, {_name(label)}",
                    f"{average(seeds, 'hit_ratio'):.3f}",
                    f"{min(reused):.3f} to {max(reused):.3f}",
                    seconds(average(seeds, "ttft_mean_s")),
                    seconds(average(seeds, "ttft_p90_s")),
                ]
            )
    lines.append(["one infinite cache", f"{ideal_ratio:.3f}", "", "", ""])
    return table(["router", "reused", "least to most of 3 runs", "TTFT mean, s", "P90, s"], lines)


def _name(label: str) -> str:
    return f"**{label}**" if label == OURS else label
