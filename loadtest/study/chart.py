"""Charts of the study: one message each in the title, units on the axes, names where the lines end.

Colours are Okabe and Ito's, for any colour vision: the default policy is orange, cache-aware rules are blue,
green and purple, rules that look at load alone are grey.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullFormatter

from loadtest.study.design import OURS, TUNED, UTILISATIONS, Cell
from loadtest.study.results import Row, Seeds, by_scenario
from loadtest.study.tables import title
from loadtest.study.verdict import Interval, Verdict, average

COLOURS = {
    OURS: "#D55E00",
    "min_ttft": "#E69F00",
    "affinity": "#009E73",
    TUNED.label: "#0072B2",
    "lmetric": "#CC79A7",
    "cache_aware": "#1B7837",
}
INK, FAINT, PLAIN = "#24292f", "#d0d7de", "#8c959f"
WIDTH_IN, DPI = 10.0, 160
SHOWN = (OURS, "min_ttft", "affinity", TUNED.label, "lmetric", "cache_aware", "least_load")
"""Policies in charts of lines: with all of them nothing could be read."""


NEAR = 1.02
"""Means within this ratio of the lowest count as equal in titles."""


def _canvas(height_in: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout=layout)


def _save(canvas: Figure, path: Path, heading: str) -> None:
    canvas.suptitle(heading, fontsize=13, fontweight="bold", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)


def _bare(panel: Axes) -> None:
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.grid(visible=True, axis="both", color=FAINT, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)


def draw_verdict(verdicts: Sequence[Verdict], path: Path) -> None:
    """Ours over the best rival's, one line per scenario; left of 1 is faster."""
    with mpl.rc_context({"font.size": 9, "text.color": INK}):
        canvas = _canvas(1.6 + 0.24 * len(verdicts))
        panel = canvas.subplots()
        rows = range(len(verdicts))
        for figure, marker, colour in (("mean", "o", COLOURS[OURS]), ("p90", "D", COLOURS[TUNED.label])):
            ratios = [getattr(one, figure).ratio for one in verdicts]
            middles = [ratio.middle for ratio in ratios]
            known = [
                one if isfinite(one.high) else Interval(one.middle, one.middle, one.middle) for one in ratios
            ]
            panel.errorbar(
                middles,
                rows,
                xerr=(
                    [ratio.middle - ratio.low for ratio in known],
                    [ratio.high - ratio.middle for ratio in known],
                ),
                fmt=marker,
                color=colour,
                capsize=2,
                label={"mean": "mean TTFT", "p90": "P90 TTFT"}[figure],
            )
        panel.axvline(1.0, color=INK, linewidth=1.0)
        panel.set_yticks(list(rows), [title(one.scenario) for one in verdicts])
        panel.invert_yaxis()
        panel.xaxis.set_major_locator(MultipleLocator(0.1))
        panel.margins(y=0.6 / max(len(verdicts), 1))
        panel.set_xlabel(
            "time to first token over that of the best rival, with its 95 % interval (left of 1: faster)"
        )
        _bare(panel)
        panel.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _save(canvas, path, f"{OURS} against the best of the other rules, scenario by scenario")


def draw_loads(rows: Iterable[Row], path: Path) -> None:
    """Mean time to first token against utilisation, one panel per traffic, with the lower bound."""
    found = by_scenario(rows)
    traffic = list(dict.fromkeys(scenario.traffic for scenario in found))
    with mpl.rc_context({"font.size": 9, "text.color": INK}):
        canvas = _canvas(1.0 + 2.9 * -(-len(traffic) // 2))
        panels = canvas.subplots(-(-len(traffic) // 2), 2, squeeze=False).flat
        for key, panel in zip(traffic, panels, strict=False):
            _load_panel(panel, key, {cell: rows for cell, rows in found.items() if cell.traffic == key})
        for panel in list(panels):
            panel.set_axis_off()
        handles, labels = canvas.axes[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        _save(canvas, path, _loads_heading(found))


def _loads_heading(found: Mapping[Cell, dict[str, Seeds]]) -> str:
    near = 0
    for by_label in found.values():
        means = [average(by_label[label], "ttft_mean_s") for label in SHOWN if label in by_label]
        near += OURS in by_label and average(by_label[OURS], "ttft_mean_s") <= NEAR * min(means)
    return f"{OURS} answers soonest, or within 2 % of it, in {near} of {len(found)} cells"


def _load_panel(panel: Axes, key: str, found: Mapping[Cell, dict[str, Seeds]]) -> None:
    at = {cell.utilisation: by_label for cell, by_label in found.items() if cell.utilisation is not None}
    loads = [load for load in UTILISATIONS if load in at]
    for label in SHOWN:
        if sum(label in at[load] for load in loads) < min(2, len(loads)):
            continue  # one point is no line
        values = [average(at[load][label], "ttft_mean_s") if label in at[load] else nan for load in loads]
        ours = label == OURS
        panel.plot(
            [100 * load for load in loads],
            values,
            "o-",
            color=COLOURS.get(label, PLAIN),
            linewidth=2.4 if ours else 1.3,
            markersize=4,
            zorder=3 if ours else 2,
            label=label,
        )
    floors = [average(next(iter(at[load].values())), "floor_ttft_mean_s") for load in loads]
    panel.plot([100 * load for load in loads], floors, "--", color=INK, linewidth=1, label="lower bound")
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xticks([100 * load for load in loads])
    panel.set_title(key, fontsize=10, loc="left")
    panel.set_xlabel("utilisation, %")
    panel.set_ylabel("mean TTFT, s (log)")
    _bare(panel)


def draw_reuse(rows: Iterable[Row], path: Path) -> None:
    """Reused share of prompt tokens by tier, one panel per scenario, with both bounds."""
    found = by_scenario(rows)
    with mpl.rc_context({"font.size": 9, "text.color": INK}):
        canvas = _canvas(0.8 + 2.9 * -(-len(found) // 2))
        panels = canvas.subplots(-(-len(found) // 2), 2, squeeze=False).flat
        for (scenario, by_label), panel in zip(found.items(), panels, strict=False):
            labels = list(by_label)
            left = [0.0] * len(labels)
            for name, figure, colour in (
                ("device", "hit_device_ratio", "#0072B2"),
                ("host", "hit_host_ratio", "#56B4E9"),
                ("shared L3", "hit_pool_ratio", "#B3DDF2"),
            ):
                widths = [100 * average(by_label[label], figure) for label in labels]
                panel.barh(labels, widths, left=left, color=colour, height=0.7, label=name)
                left = [start + width for start, width in zip(left, widths, strict=True)]
            one = by_label[labels[0]]
            ideal = 100 * average(one, "ideal_hit_ratio")
            panel.axvline(ideal, color=INK, linewidth=1, label="infinite cache")
            pooled = 100 * average(one, "pooled_hit_ratio")
            panel.axvline(pooled, color=COLOURS[OURS], linewidth=1.2, linestyle="--", label="pooled LRU")
            panel.invert_yaxis()
            panel.set_title(title(scenario), fontsize=10, loc="left")
            panel.set_xlabel("prompt tokens reused, %")
            _bare(panel)
        for panel in list(panels):
            panel.set_axis_off()
        handles, names = canvas.axes[0].get_legend_handles_labels()
        canvas.legend(handles, names, loc="outside lower center", ncols=5, frameon=False)
        _save(canvas, path, _reuse_heading(found))


def _reuse_heading(found: Mapping[Cell, dict[str, Seeds]]) -> str:
    shares = {
        label: [
            100 * average(by_label[label], "hit_ratio") for by_label in found.values() if label in by_label
        ]
        for label in (OURS, "round_robin")
    }
    text = {label: " and ".join(f"{share:.0f} %" for share in known) for label, known in shares.items()}
    against = f", round_robin {text['round_robin']}" if text["round_robin"] else ""
    return f"{OURS} reuses {text[OURS]} of prompt tokens{against}"
