"""Results of a run: one row per policy, as a table and as JSON.

Ratios are of tokens, never of requests. Neither time nor tokens of a failed request enter a figure.

    hit ratio        cached_tokens / prompt_tokens, as the engines report them
    ideal hit ratio  the same with one infinite cache over the same requests (`loadtest.ideal`)
    share of ideal   the first over the second
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.replay import Sample


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the least of some ascending values that a ``share`` in (0, 1] do not exceed; None of none."""
    assert 0 < share <= 1
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


@dataclass(slots=True)
class Tally:
    """Counts samples as they come."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ideal_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    first_error: str | None = None

    def add(self, sample: Sample) -> None:
        """Count one finished request."""
        outcome = sample.outcome
        if outcome.error is not None:
            self.failed += 1
            self.first_error = self.first_error or outcome.error
            return
        self.completed += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        self.output_tokens += outcome.output_tokens
        self.ideal_tokens += sample.ideal_tokens
        if outcome.ttft_s is not None:
            self.ttft_s.append(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self.tpot_s.append(outcome.tpot_s)

    @property
    def hit_ratio(self) -> float:
        """Token hit ratio so far, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """The figures of one run; ratios from 0 to 1, None where nothing was measured.

    Attributes:
        completed: Requests answered to their end.
        failed: Other requests, with those that their sessions therefore never sent.
        ideal_share: ``hit_ratio`` over ``ideal_hit_ratio``; 1 if there was nothing to reuse.
        prompt_tokens: Sum over the completed requests, like ``output_tokens``.
        ttft_p50_s: From when the request was due, like the others.
        tpot_p50_s: Mean gap between the chunks of one answer.
        prefill_utilisation: Share of the run that the engines' prefill was busy, mean of all.
        duration_s: From the first request's start to the last answer's end.
    """

    policy: str
    completed: int
    failed: int
    hit_ratio: float
    ideal_hit_ratio: float
    ideal_share: float
    prompt_tokens: int
    output_tokens: int
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    prefill_utilisation: float | None
    duration_s: float
    first_error: str | None

    def as_json(self) -> dict[str, object]:
        """The same as plain values."""
        return asdict(self)


def summarize(
    policy: str,
    tally: Tally,
    *,
    unsent: int,
    duration_s: float,
    prefill_utilisation: float | None = None,
    time_scale: float = 1.0,
) -> PolicyReport:
    """Make the report of one run; ``unsent`` turns count as failed.

    Measured times are multiplied by ``time_scale``, the speed of a replay, so figures are in the trace's own
    time.
    """

    def scaled(values: list[float], share: float) -> float | None:
        value = percentile(sorted(values), share)
        return None if value is None else value * time_scale

    ideal = tally.ideal_tokens / tally.prompt_tokens if tally.prompt_tokens else 0.0
    return PolicyReport(
        policy=policy,
        completed=tally.completed,
        failed=tally.failed + unsent,
        hit_ratio=tally.hit_ratio,
        ideal_hit_ratio=ideal,
        ideal_share=tally.hit_ratio / ideal if ideal else 1.0,
        prompt_tokens=tally.prompt_tokens,
        output_tokens=tally.output_tokens,
        ttft_p50_s=scaled(tally.ttft_s, 0.5),
        ttft_p90_s=scaled(tally.ttft_s, 0.9),
        ttft_p99_s=scaled(tally.ttft_s, 0.99),
        tpot_p50_s=scaled(tally.tpot_s, 0.5),
        prefill_utilisation=prefill_utilisation,
        duration_s=duration_s * time_scale,
        first_error=tally.first_error,
    )


def report_table(reports: Sequence[PolicyReport], *, title: str, caption: str) -> Table:
    """Lay the reports out, one row per policy; fits a terminal of 80 columns."""
    table = Table(
        *("policy", "hit\nrate", "share of\nideal", "TTFT\nP50", "TTFT\nP90", "TTFT\nP99"),
        *("prefill\nbusy", "completed\n/ failed"),
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
    )
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column.header == "policy" else "right"
    for report in reports:
        table.add_row(
            report.policy,
            percent(report.hit_ratio),
            percent(report.ideal_share),
            milliseconds(report.ttft_p50_s),
            milliseconds(report.ttft_p90_s),
            milliseconds(report.ttft_p99_s),
            percent(report.prefill_utilisation),
            f"{report.completed} / {report.failed}",
        )
    return table


def percent(ratio: float | None) -> str:
    """A ratio as text, for example ``87.3 %``."""
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def milliseconds(seconds: float | None) -> str:
    """A time as text, for example ``1,204 ms``."""
    return "-" if seconds is None else f"{1000 * seconds:,.0f} ms"
