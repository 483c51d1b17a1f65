"""The charts of a report, one function each, with titles made from the figures.

Bars begin at zero and keep the order of the runs. Lines are thinned, so the page stays small.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from loadtest.simulator.axes import legend_below, lines_height_in, time_axis
from loadtest.simulator.records import Floats
from loadtest.simulator.runs import CAUSES, TIERS, UNCACHED_BOUNDS_TOKENS, Run, best_and_worst, bin_names
from loadtest.simulator.theme import (
    CAUSE_COLOURS,
    END_COLOURS,
    FAINT,
    INK,
    PART_COLOURS,
    TIER_COLOURS,
    Chart,
    canvas,
    plain,
    series,
    style,
)
from loadtest.simulator.words import percent, seconds, tick

BAR_IN, FRAME_IN = 0.27, 1.15
OUTLIER = 6.0
"""A bar this many times as long as the median leaves no room for the others."""

CURVE_POINTS = 300
TELLING_REQUESTS = 20
"""Fewer in a bin show too little of a 90th percentile to speak of it."""
STRIP_COLUMNS = 80


def draw_all(runs: Sequence[Run]) -> list[Chart]:
    """Draw all useful charts of at least one run, all of the same requests."""
    with style():
        return [
            draw(runs)
            for draw in (
                ttft_curve,
                time_parts,
                ttft_by_length,
                hit_by_tier,
                lost_by_cause,
                load_over_time,
                ends,
            )
        ]


def ttft_curve(runs: Sequence[Run]) -> Chart:
    """The distribution of the time to first token, and of its floor."""
    figure, (axes,) = canvas(lines_height_in(len(runs) + 1))
    for number, run in enumerate(runs):
        axes.plot(*_curve(run.ttft_s()), label=run.label, linewidth=1.6, **series(number))
    floor_s = np.sort(runs[0].counted.floor_ttft_s)
    axes.plot(*_curve(floor_s), label="floor", color=FAINT, linewidth=1.3, linestyle=(0, (1, 1.5)))
    axes.set_xscale("log")
    axes.set_xlabel("time to first token")
    axes.set_ylabel("share of the requests")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    time_axis(axes.xaxis)
    plain(axes, "both")
    legend_below(axes)
    best, worst = best_and_worst(runs, "ttft_p90_s")
    within = [f"{run.label} within {seconds(run.figure('ttft_p90_s'))}" for run in (best, worst)]
    title = f"90 % of the requests get their first token from {within[0]}"
    if worst is not best:
        title += f", from {within[1]}"
    return Chart(
        "ttft",
        title,
        "Share of all requests that had their first token by then; a curve that ends below 100 % gave some "
        "requests none. The floor is what infinite caches and no queue would give.",
        figure,
    )


def time_parts(runs: Sequence[Run]) -> Chart:
    """Parts of the mean time to first token."""
    parts = [run.ttft_parts_s() for run in runs]
    figure, (axes,) = canvas(FRAME_IN + BAR_IN * len(runs))
    sums = _stack(axes, runs, parts, dict(zip(parts[0], parts[0], strict=True)), PART_COLOURS)
    _beside(axes, [seconds(value) for value in sums])
    cut = _cut(axes, sums)
    axes.set_xlabel("mean time to first token")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    best, _ = best_and_worst(runs, "ttft_mean_s")
    spent = parts[list(runs).index(best)]
    return Chart(
        "parts",
        f"Of {best.label}'s mean of {seconds(sum(spent.values()))}, {seconds(spent['waiting'])} is waiting "
        f"and {seconds(spent['prefill beyond it'])} prefill beyond the floor",
        "Waiting ends when the prefill begins. Prefill beyond the floor is recomputation of what a cache "
        f"could have held, loading, and steps shared with other requests.{cut}",
        figure,
    )


def ttft_by_length(runs: Sequence[Run]) -> Chart:
    """The 90th percentile in bins of uncached length."""
    figure, (axes,) = canvas(lines_height_in(len(runs) + 1))
    names, positions = bin_names(), np.arange(len(UNCACHED_BOUNDS_TOKENS))
    longest: dict[str, float] = {}
    _, floor_s, counts = runs[0].ttft_by_length_s(0.9)
    shown = np.flatnonzero(counts)
    many = [int(bin_) for bin_ in shown if counts[bin_] >= TELLING_REQUESTS] or [0]
    last = many[-1]
    for number, run in enumerate(runs):
        ttft_s, _, _ = run.ttft_by_length_s(0.9)
        longest[run.label] = float(ttft_s[last])
        axes.plot(
            positions[shown], ttft_s[shown], marker="o", markersize=3.4, label=run.label, **series(number)
        )
    axes.plot(
        positions[shown],
        floor_s[shown],
        label="floor",
        color=FAINT,
        linestyle=(0, (1, 1.5)),
        marker=".",
        markersize=3,
    )
    axes.set_yscale("log")
    axes.set_xticks(positions[shown], [f"{names[bin_]}\n{counts[bin_]:,}" for bin_ in shown])
    axes.set_xlabel("uncached tokens with an infinite cache, and how many requests")
    axes.set_ylabel("P90 of the time to first token")
    time_axis(axes.yaxis)
    plain(axes, "y")
    legend_below(axes)
    ranked = sorted(longest.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))
    title = f"Long requests ({names[last]} uncached tokens): P90 {seconds(ranked[0][1])} with {ranked[0][0]}"
    if len(runs) > 1:
        title += f", {seconds(ranked[-1][1])} with {ranked[-1][0]}"
    return Chart(
        "length",
        title,
        "The bins hold the same requests for every policy: they count the tokens that even an infinite cache "
        "would leave to compute.",
        figure,
    )


def hit_by_tier(runs: Sequence[Run]) -> Chart:
    """Reused prompt tokens by the memory that held them, against both bounds."""
    hits = [{tier: run.figure(f"hit_{tier}_ratio") for tier in TIERS} for run in runs]
    figure, (axes,) = canvas(FRAME_IN + 0.2 + BAR_IN * len(runs))
    sums = _stack(axes, runs, hits, TIERS, TIER_COLOURS)
    _beside(axes, [percent(value) for value in sums])
    bounds = runs[0].result.bounds
    for ratio, dash, name in (
        (bounds.infinite_hit_ratio, "solid", "infinite cache"),
        (bounds.pooled_lru_hit_ratio, (0, (2, 2)), "one LRU cache of all workers' size"),
    ):
        axes.axvline(ratio, color=INK, linewidth=1.1, linestyle=dash, label=name)
    axes.set_xlim(0, max(bounds.infinite_hit_ratio * 1.03, 0.01))
    axes.set_xlabel("share of the prompt tokens that were reused")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend_below(axes)
    best = max(runs, key=lambda run: run.figure("hit_ratio"))
    share = best.figure("share_of_pooled")
    pooled = "" if np.isnan(share) else f": {percent(share)} of what one shared LRU cache would"
    return Chart(
        "hits",
        f"{best.label} reuses {percent(best.figure('hit_ratio'))} of the prompt tokens{pooled}",
        "Bars by the memory in which the worker found them. The lines are bounds: one infinite cache seen by "
        f"all requests, and one of {bounds.pooled_tokens:,} tokens that evicts the least recently used.",
        figure,
    )


def lost_by_cause(runs: Sequence[Run]) -> Chart:
    """Prefill of tokens that an infinite cache would have held, by the cause of their loss."""
    lost = [run.lost_s() for run in runs]
    figure, (axes,) = canvas(FRAME_IN + 0.2 + BAR_IN * len(runs))
    totals = _stack(axes, runs, lost, CAUSES, CAUSE_COLOURS)
    _beside(axes, [seconds(value) for value in totals])
    axes.set_xlabel("prefill lost per request")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    best, worst = int(np.argmin(totals)), int(np.argmax(totals))
    main = max(lost[worst], key=lambda cause: lost[worst][cause])
    title = f"{runs[best].label} loses {seconds(totals[best])} of prefill per request"
    if best != worst:
        title += f", {runs[worst].label} {seconds(totals[worst])}"
    if totals[worst] > 0:
        title += f", most of it {CAUSE_WORDS[main]}"
    return Chart(
        "lost",
        title,
        "Prefill of tokens that an infinite cache would have held. Each has one cause, judged when its "
        "request was placed: another worker held it; all workers that computed it had evicted it; its blocks "
        "were held, but not the sliding window that goes with them; or it was still being computed.",
        figure,
    )


CAUSE_WORDS = {
    "placed_elsewhere": "because another worker held it",
    "evicted": "evicted",
    "not_window_safe": "for want of a sliding window",
    "in_flight": "still being computed",
}


def load_over_time(runs: Sequence[Run]) -> Chart:
    """Prefill load of each worker over time."""
    figure, panels = canvas(0.75 + 0.52 * len(runs), rows=len(runs), share_x=True)
    for run, axes in zip(runs, panels, strict=True):
        timeline = run.result.timeline
        strips = _thinned(timeline.busy_ratio)
        end_s = float(timeline.time_s[-1]) if len(timeline.time_s) else 1.0
        image = axes.imshow(
            strips.T,
            aspect="auto",
            interpolation="none",
            extent=(0.0, end_s, strips.shape[1] + 0.5, 0.5),
            vmin=0.0,
            vmax=1.0,
            cmap="cividis",
        )
        axes.set_title(run.label, loc="left", fontsize=8, pad=2)
        busiest = f"busiest / mean {run.figure('imbalance'):.2f}"
        axes.set_title(busiest, loc="right", fontsize=8, color=FAINT, pad=2)
        axes.set_yticks([1, strips.shape[1]] if strips.shape[1] > 1 else [1])
        axes.tick_params(length=2, color=FAINT, labelsize=7)
        axes.spines[:].set_visible(False)
    panels[-1].set_xlabel("seconds since the first arrival")
    figure.supylabel("worker", fontsize=8.5)
    bar = figure.colorbar(image, ax=panels, aspect=40, pad=0.02, fraction=0.05)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    bar.ax.tick_params(length=2, labelsize=7)
    bar.outline.set_visible(False)
    best, worst = best_and_worst(runs, "imbalance")
    title = f"{best.label}'s busiest worker does {best.figure('imbalance'):.2f} times the mean prefill"
    if worst is not best:
        title += f", {worst.label}'s {worst.figure('imbalance'):.2f} times"
    return Chart(
        "load",
        title,
        "One strip per policy, one row per worker: the share of the time that it computed prefills. Even "
        "colours are even load.",
        figure,
    )


def ends(runs: Sequence[Run]) -> Chart:
    """Ends of the requests."""
    shares = [run.end_shares() for run in runs]
    figure, (axes,) = canvas(FRAME_IN + BAR_IN * len(runs))
    _stack(axes, runs, shares, dict(zip(shares[0], shares[0], strict=True)), END_COLOURS)
    _beside(axes, [percent(share["completed"]) for share in shares])
    axes.set_xlim(0, 1)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.set_xlabel("share of the requests")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    least = min(range(len(runs)), key=lambda row: shares[row]["completed"])
    if shares[least]["completed"] == 1.0:
        title = f"Every policy completes all {len(runs[0].counted):,} requests"
    else:
        title = f"{runs[least].label} completes {percent(shares[least]['completed'])} of the requests"
    return Chart(
        "ends", title, "A rejected request was never placed; a failed one was, and has no answer.", figure
    )


def _stack(
    axes: Axes,
    runs: Sequence[Run],
    rows: Sequence[Mapping[str, float]],
    names: Mapping[str, str],
    colours: Sequence[str],
) -> Floats:
    """Draw one horizontal bar per run, in parts, and return their lengths."""
    ends_at = np.zeros(len(runs))
    for (key, name), colour in zip(names.items(), colours, strict=True):
        values = np.nan_to_num(np.array([row[key] for row in rows]))
        label = name if values.any() else None
        axes.barh(range(len(runs)), values, left=ends_at, height=0.68, color=colour, label=label)
        ends_at += values
    axes.set_yticks(range(len(runs)), [run.label for run in runs])
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.set_xlim(0, float(ends_at.max()) * 1.03 or 1.0)
    plain(axes, "x")
    legend_below(axes)
    return ends_at


def _cut(axes: Axes, lengths: Floats) -> str:
    """Cut bars that would make all others too short to read; returns what the caption has to say of it."""
    usual = float(np.median(lengths))
    if lengths.max() <= OUTLIER * usual:
        return ""
    axes.set_xlim(0, OUTLIER / 2 * usual)
    return " Bars that reach the edge are cut: the figures beside them count."


def _beside(axes: Axes, texts: Sequence[str]) -> None:
    """Write one text behind each bar, in a column to the right of the axes where no line crosses it."""
    for row, text in enumerate(texts):
        axes.annotate(
            text,
            (1.0, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
        )


def _curve(ordered_s: Floats) -> tuple[Floats, Floats]:
    """The distribution function in at most `CURVE_POINTS` points, without what is infinite."""
    ranks = (
        np.unique(np.linspace(0, len(ordered_s) - 1, CURVE_POINTS).astype(int))
        if len(ordered_s)
        else np.array([], int)
    )
    values, shares = ordered_s[ranks], (ranks + 1) / max(len(ordered_s), 1)
    finite = np.isfinite(values) & (values > 0)
    return values[finite], shares[finite]


def _thinned(busy: Floats) -> Floats:
    """Means over equal stretches of time, at most `STRIP_COLUMNS` of them."""
    step = -(-len(busy) // STRIP_COLUMNS) or 1
    return np.array([busy[start : start + step].mean(axis=0) for start in range(0, len(busy), step)]).reshape(
        -1, busy.shape[1]
    )
