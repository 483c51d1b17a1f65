"""The charts of the study, one function each; titles are made from the figures."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from loadtest.plan.prfaas.fleets import CONTENDERS, LINK
from loadtest.plan.prfaas.study import STORM, Study
from loadtest.plan.prfaas.sustained import TTFT_P90_S_MAX
from loadtest.plan.prfaas.trials import CAP_RATIO, LINK_BYTES_PER_S, WINDOW_S, rates
from loadtest.simulator.axes import legend_below, lines_height_in, time_axis
from loadtest.simulator.records import Floats, Result
from loadtest.simulator.theme import FAINT, INK, SERIES, Chart, canvas, plain, series, style
from loadtest.simulator.words import seconds

GBIT = 1e9 / 8
PNG_DPI = 180


def draw_study(study: Study, folder: Path) -> list[Path]:
    """Draw everything that a study has, as PNG, and say where it is."""
    paths = []
    with style():
        charts = []
        if study.trials:
            charts += [rates_chart(study), storm_chart(study.storm)]
        for chart in charts:
            path = folder / f"{chart.key}.png"
            chart.figure.suptitle(chart.title, fontsize=8.5, fontweight="bold", wrap=True)
            chart.figure.savefig(path, format="png", dpi=PNG_DPI, metadata={"Software": None})
            paths.append(path)
    return paths


def rates_chart(study: Study) -> Chart:
    """The 90th percentile of the time to first token over the rate of arrivals."""
    figure, (axes,) = canvas(lines_height_in(len(CONTENDERS), 4))
    for number, name in enumerate(CONTENDERS):
        points = sorted(
            (trial.rate_per_s, trial.figures.ttft_p90_s)
            for trial in (*study.curve, *study.trials["Poisson"])
            if trial.contender == name and trial.seed == study.seeds[0]
        )
        axes.plot(
            *np.array(points).T, label=name, linewidth=1.6, marker="o", markersize=2.4, **series(number)
        )
        axes.axvline(
            study.mean_best("Poisson", name), color=SERIES[number], linewidth=0.8, linestyle=(0, (1, 2))
        )
    axes.axhline(TTFT_P90_S_MAX, color=FAINT, linewidth=0.9)
    axes.set_yscale("log")
    axes.set_ylim(2.0, 60.0)
    axes.set_xlabel("requests per second")
    axes.set_ylabel("P90 of the time to first token")
    time_axis(axes.yaxis)
    plain(axes, "both")
    legend_below(axes, 4)
    ours = study.mean_best("Poisson", "ours")
    naive, plainly = (ours / study.mean_best("Poisson", name) for name in ("naive", "homogeneous"))
    return Chart(
        "rates",
        f"Ours sustains {ours:.2f} requests/s: {naive:.2f} times the naive fleet's rate and {plainly:.2f} "
        "times the homogeneous one's",
        f"Dotted: the highest rate at which nine of ten requests have their first token within "
        f"{seconds(TTFT_P90_S_MAX)}, the mean of all seeds.",
        figure,
    )


def storm_chart(storm: Mapping[str, Result]) -> Chart:
    """Chart of bytes over the link while its capacity changes."""
    figure, panels = canvas(0.8 + 1.15 * len(storm), rows=len(storm), share_x=True)
    top = 1.05 * max(
        float(rates(*result.egress[LINK], WINDOW_S)[1].max()) / GBIT for result in storm.values()
    )
    for (name, result), axes in zip(storm.items(), panels, strict=True):
        end_s = float(result.records.arrival_s[-1])
        times_s, egress = rates(*result.egress[LINK], WINDOW_S)
        shown = times_s <= end_s
        color = series(list(CONTENDERS).index(name))["color"]
        axes.fill_between(times_s[shown], egress[shown] / GBIT, color=color, linewidth=0.0, alpha=0.75)
        _weather(axes, end_s)
        axes.set_ylim(0.0, max(22.0, top))
        axes.set_title(name, loc="left", fontsize=8, pad=2)
        most = float(egress.max()) / GBIT
        axes.set_title(f"busiest second {most:.1f} Gbit/s", loc="right", fontsize=8, color=FAINT, pad=2)
        plain(axes)
    panels[-1].set_xlabel("seconds")
    figure.supylabel("egress, Gbit/s", fontsize=8.5)
    lost = {name: int((result.records.outcome != 0).sum()) for name, result in storm.items()}
    counts = ", ".join(f"{name} {count}" for name, count in lost.items() if count)
    return Chart(
        "egress",
        f"On a bad link (a tenth, nothing, 30 % loss) {counts or 'no request'} stayed unanswered",
        "The line is the link's capacity; at other times it is 100 Gbit/s, far above.",
        figure,
    )


def _weather(axes: Axes, end_s: float) -> None:
    """The capacity of the link as a line."""
    edges = np.array([0.0, *(one.at_s for one in STORM), end_s])
    ratios = np.array([1.0, *(one.capacity_ratio * (1.0 - one.loss_ratio) for one in STORM)])
    capacity: Floats = ratios * LINK_BYTES_PER_S / GBIT
    axes.step(edges, np.append(capacity, capacity[-1]), where="post", color=INK, linewidth=0.9)
    axes.step(
        edges,
        np.append(capacity, capacity[-1]) * CAP_RATIO,
        where="post",
        color=INK,
        linewidth=0.7,
        linestyle=(0, (2, 2)),
    )
