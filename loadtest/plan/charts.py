"""The charts of a plan: the value of memory, and the trials."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from loadtest.plan.candidate import Candidate
from loadtest.plan.objective import Slo
from loadtest.plan.tier_value import TierValue
from loadtest.plan.trial import Trial
from loadtest.simulator.axes import legend_below, lines_height_in, time_axis
from loadtest.simulator.theme import FAINT, INK, SERIES, Chart, canvas, plain, series, style
from loadtest.simulator.words import percent, seconds

_MARKERS = ("o", "s", "^", "D", "v", "P")

LIFETIME_ENOUGH = 0.95
"""Share of the infinite cache's reuse that a lifetime is said to be enough for."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Hit ratios of one LRU cache at ascending sizes, and of one without bounds.

    Attributes:
        worker_tokens: Cache of one worker; sizes are shown in workers, too.
    """

    worker_tokens: int
    sizes_tokens: Sequence[int]
    hit_ratios: Sequence[float]
    infinite_hit_ratio: float

    def at(self, size_tokens: float) -> float:
        """The hit ratio at a size, between those that were computed."""
        return float(np.interp(np.log(size_tokens), np.log(self.sizes_tokens), self.hit_ratios))


def draw_curve(curve: Curve, plan_tokens: int | None) -> Chart:
    """Draw the value of memory; ``plan_tokens`` is the cache of the recommended fleet, if there is one."""
    with style():
        figure, (axes,) = canvas(3.2)
        axes.axhline(
            curve.infinite_hit_ratio,
            color=FAINT,
            linestyle=(0, (1, 1.5)),
            linewidth=1.3,
            label="infinite cache",
        )
        axes.plot(
            curve.sizes_tokens,
            curve.hit_ratios,
            marker="o",
            markersize=3.4,
            color=SERIES[1],
            label="one LRU cache",
        )
        if plan_tokens is not None:
            axes.axvline(
                plan_tokens, color=INK, linewidth=1.1, linestyle=(0, (2, 2)), label="the plan's memory"
            )
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, max(1.08 * curve.infinite_hit_ratio, 0.01))
        axes.set_xlabel("tokens of KV cache, and how many workers hold so much")
        axes.set_ylabel("share of prompt tokens reused")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xticks(curve.sizes_tokens[:: -(-len(curve.sizes_tokens) // 7)])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda size, _: f"{_tokens(size)}\n{size / curve.worker_tokens:g}")
        )
        plain(axes, "both")
        legend_below(axes)
    title = f"No cache would reuse more than {percent(curve.infinite_hit_ratio)} of the prompt tokens"
    if plan_tokens is not None:
        title = (
            f"The plan's memory could reuse {percent(curve.at(plan_tokens))} of the prompt tokens, twice as "
            f"much memory {percent(curve.at(2 * plan_tokens))}"
        )
    return Chart(
        "curve",
        title,
        "What one cache reuses that all requests share and that evicts the least recently used: about the "
        "most that any placement can make of workers with the same memory together.",
        figure,
    )


def draw_lifetimes(value: TierValue) -> Chart:
    """Draw what keeping blocks for longer is worth."""
    with style():
        figure, (axes,) = canvas(3.2)
        _ceiling(axes, value)
        axes.plot(
            value.ttl.points,
            value.ttl.hit_ratios,
            marker="o",
            markersize=3.4,
            color=SERIES[1],
            label="cache without bounds",
        )
        axes.set_xscale("log")
        axes.set_xlabel("lifetime of a block after its last use")
        time_axis(axes.xaxis)
        _shares(axes, value)
    enough = next(
        (
            at
            for at, ratio in zip(value.ttl.points, value.ttl.hit_ratios, strict=True)
            if ratio >= LIFETIME_ENOUGH * value.infinite_hit_ratio
        ),
        None,
    )
    title = f"Blocks kept for {seconds(value.ttl.points[-1])} after their last use are not enough"
    if enough is not None:
        title = (
            f"Blocks kept for {seconds(enough)} after their last use give "
            f"at least {percent(LIFETIME_ENOUGH)} of what keeping them for ever would"
        )
    return Chart(
        "lifetimes",
        title,
        "Hit rate of one cache of any size over its time to live. Requests come as they would if none waited "
        "and answers were decoded alone; on a busy fleet pauses are longer.",
        figure,
    )


def draw_tiers(value: TierValue) -> Chart:
    """Draw what more room in each tier is worth."""
    with style():
        figure, (axes,) = canvas(3.2)
        _ceiling(axes, value)
        axes.axvline(value.device_gib, color=INK, linewidth=1.1, linestyle=(0, (2, 2)), label="the devices")
        for number, (line, label) in enumerate(
            ((value.own, "own memory of each worker"), (value.pool, "a pool beside the devices"))
        ):
            axes.plot(
                line.points, line.hit_ratios, marker="o", markersize=3.4, label=label, **series(number + 1)
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("GiB of KV, of all workers or of the pool's nodes together")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        _shares(axes, value)
    workers = f"{value.workers} worker{'s' * (value.workers != 1)}"
    best = max((*value.own.hit_ratios, *value.pool.hit_ratios))
    return Chart(
        "tiers",
        f"The devices of {workers} could reuse {percent(value.device_hit_ratio)} of the prompt tokens, tiers "
        f"below them up to {percent(best)}",
        "A worker's own memory is its device, and host memory beyond the dashed line. A pool is shared, "
        "memory and disks together. Requests go to the worker that holds most of their prompt, if that is "
        "half of it, else to the one with the fewest tokens.",
        figure,
    )


def _ceiling(axes: Axes, value: TierValue) -> None:
    axes.axhline(
        value.infinite_hit_ratio, color=FAINT, linestyle=(0, (1, 1.5)), linewidth=1.3, label="infinite cache"
    )


def _shares(axes: Axes, value: TierValue) -> None:
    axes.set_ylim(0, max(1.08 * value.infinite_hit_ratio, 0.01))
    axes.set_ylabel("share of prompt tokens reused")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    plain(axes, "both")
    legend_below(axes, columns=2)


def draw_trials(tried: Sequence[tuple[Candidate, float, Trial]], slo: Slo, plan: Candidate | None) -> Chart:
    """Draw simulated fleets with their costs per hour, the service level and the recommended fleet."""
    labels = list(dict.fromkeys(candidate.family.label for candidate, _, _ in tried))
    with style():
        figure, (axes,) = canvas(lines_height_in(len(labels) + 1, columns=2))
        for number, label in enumerate(labels):
            points = sorted(
                (cost, trial.figures["ttft_p90_s"])
                for candidate, cost, trial in tried
                if candidate.family.label == label and trial.figures["ttft_p90_s"] is not None
            )
            if not points:
                continue
            # Points only: splits of one family at neighbouring costs are different fleets.
            axes.plot(
                *zip(*points, strict=True),
                label=label,
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4.6,
                linestyle="none",
                color=series(number)["color"],
            )
        best = frontier(tried)
        if best:
            # No more money buys less time, as far as was tried.
            best.append((max(cost for _, cost, _ in tried), best[-1][1]))
            axes.plot(
                *zip(*best, strict=True),
                drawstyle="steps-post",
                color=FAINT,
                linewidth=1.3,
                zorder=1,
                label="best for the money",
            )
        axes.axhline(slo.ttft_p90_s, color=INK, linewidth=1.1, linestyle=(0, (2, 2)), label="limit")
        axes.set_yscale("log")
        axes.set_xlabel("cost per hour")
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.set_ylabel("P90 of the time to first token")
        time_axis(axes.yaxis)
        plain(axes, "both")
        legend_below(axes, columns=2)
    held = sum(slo.margin(trial.figures) >= 0 for _, _, trial in tried)
    title = f"{held} of {len(tried)} simulations hold the service level"
    if plan is not None:
        title += f"; the cheapest is {plan.label}"
    return Chart(
        "trials",
        title,
        "Each point is a simulation, the grey steps are the lowest time that was found for so much money, "
        f"and the dashed line at {seconds(slo.ttft_p90_s)} is the limit. A point below it may fail for its "
        "time per output token, or with another seed.",
        figure,
    )


def frontier(tried: Sequence[tuple[Candidate, float, Trial]]) -> list[tuple[float, float]]:
    """Return cost and TTFT P90 of the fleets that none is both cheaper and sooner than, by cost.

    A fleet counts with the worst of its seeds.
    """
    worst: dict[Candidate, tuple[float, float]] = {}
    for candidate, cost, trial in tried:
        ttft_s = trial.figures["ttft_p90_s"]
        if ttft_s is not None:
            worst[candidate] = cost, max(float(ttft_s), worst.get(candidate, (0.0, 0.0))[1])
    best: list[tuple[float, float]] = []
    for cost, ttft_s in sorted(worst.values()):
        if not best or ttft_s < best[-1][1]:
            best.append((cost, ttft_s))
    return best


def _tokens(size: float) -> str:
    return f"{size / 2**20:.3g}M" if size >= 2**20 else f"{size / 2**10:.3g}K"
