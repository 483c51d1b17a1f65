"""Counts of one client, the gateway and the engines for the same requests.

Two TTFTs agree if they differ by at most 5 %, or by 5 ms: the client also counts the network, its connections
and its own CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.bench.clients.client import Report
from loadtest.bench.clients.engine_view import EngineTokens
from loadtest.bench.clients.gateway_view import Counted
from loadtest.report import milliseconds

AGREE_RATIO = 0.05
AGREE_S = 0.005


@dataclass(frozen=True, slots=True)
class Comparison:
    """Reports of a client, the gateway and the engines."""

    client: str
    report: Report
    counted: Counted
    engines: EngineTokens

    @property
    def disagreements(self) -> list[str]:
        """Return differences between client and gateway, in words; unfinished requests are excused."""
        report, counted = self.report, self.counted
        found = []
        if not 0 <= counted.completed - report.completed <= report.unfinished:
            found.append(f"completed: the client says {report.completed}, the gateway {counted.completed}")
        found += [
            f"{what}: the client says {theirs}, the gateway {ours}"
            for what, theirs, ours in (
                ("prompt tokens", report.prompt_tokens, counted.prompt_tokens),
                ("cached tokens", report.cached_tokens, counted.cached_tokens),
                ("output tokens", report.output_tokens, counted.output_tokens),
            )
            if theirs is not None and theirs != ours and not report.unfinished
        ]
        if report.failed or counted.failed:
            found.append(f"failed: {report.failed} of the client's, {counted.failed} of the gateway's")
        return found

    @property
    def engine_disagreements(self) -> list[str]:
        """Differences between engines and gateway, in words; engines count other users, too."""
        counted, engines = self.counted, self.engines
        return [
            f"{what}: the engines say {theirs}, the gateway {ours}"
            for what, theirs, ours in (
                ("prompt tokens", engines.prompt_tokens, counted.prompt_tokens),
                ("cached tokens", engines.cached_tokens, counted.cached_tokens),
            )
            if theirs != ours and not counted.left  # its client left before the tokens were reported
        ]

    @property
    def ttft_agrees(self) -> bool:
        """True if the mean times to first token agree."""
        theirs_s, ours_s = self.report.ttft_s, self.counted.ttft_s
        if theirs_s is None or ours_s is None:
            return False
        return abs(theirs_s - ours_s) <= max(AGREE_S, AGREE_RATIO * ours_s)


def table(comparisons: Sequence[Comparison]) -> Table:
    """Show them: of each time the client's, ours, and how much more the client's is."""
    shown = Table(
        *("client", "requests", "failed", "TTFT mean", "P50", "P90"),
        *("agrees", "prompt tokens", "cached tokens", "output tokens"),
        box=SIMPLE_HEAD,
    )
    for each in comparisons:
        report, counted, engines = each.report, each.counted, each.engines
        shown.add_row(
            each.client,
            _counts(report.completed, counted.completed),
            _counts(report.failed, counted.failed),
            _times(report.ttft_s, counted.ttft_s),
            _times(report.ttft_p50_s, counted.ttft_p50_s),
            _times(report.ttft_p90_s, counted.ttft_p90_s),
            "yes" if each.ttft_agrees else "no",
            _counts(report.prompt_tokens, counted.prompt_tokens, engines.prompt_tokens),
            _counts(report.cached_tokens, counted.cached_tokens, engines.cached_tokens),
            _counts(report.output_tokens, counted.output_tokens),
        )
    return shown


def _times(theirs_s: float | None, ours_s: float | None) -> str:
    if theirs_s is None or ours_s is None:
        return f"{milliseconds(theirs_s)} / {milliseconds(ours_s)}"
    return f"{1000 * theirs_s:.1f} / {1000 * ours_s:.1f} ({1000 * (theirs_s - ours_s):+.1f})"


def _counts(*counts: int | None) -> str:
    reported = [count for count in counts if count is not None]
    if len(set(reported)) == 1:
        return str(reported[0])
    return " / ".join("-" if n is None else str(n) for n in counts)
