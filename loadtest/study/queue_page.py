"""What the study of the queue shows: tables and a chart, from the results as they are.

A row of a table is one order of the queue at one load. What is best is not marked: a lower TTFT
may be bought with requests that were rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.study.tables import percent, seconds, table


@dataclass(frozen=True, slots=True)
class QueueCell:
    """One simulation.

    Attributes:
        traffic: What comes.
        load: Share of what the fleet can do.
        k: Of the order; None: no queue, everything goes to its worker at once.
        early: Whether requests that would miss the service level are rejected.
        replicas: Copies of the gateway, 5 ms apart.
        seed: Of everything that is drawn.
    """

    traffic: str
    load: float
    k: float | None
    early: bool = False
    replicas: int = 1
    seed: int = 1

    @property
    def order(self) -> str:
        """Its order, as tables call it."""
        if self.k is None:
            return "no queue"
        name = "first come, first served" if self.k == 0 else f"k = {self.k:g}"
        if self.early:
            name += ", early rejection"
        if self.replicas > 1:
            name += f", {self.replicas} replicas"
        return name if self.seed == 1 else f"{name}, seed {self.seed}"

    @property
    def title(self) -> str:
        """All of it in a few words."""
        return f"{self.traffic} at {100 * self.load:.0f} %, {self.order}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one simulation gave; times to first token are P50, P90 and P99 of what was completed.

    Attributes:
        requests: Behind the warm-up.
        completed_share: Of them, what was answered.
        goodput_per_s: Requests within the service level, per second of arrivals.
        kept_share: Their share of all.
        long_ttft_s: Of long prompts.
        short_ttft_s: Of the others.
        wait_s_max: Longest wait in the gateway.
        hit_ratio: Reused share of prompt tokens.
        inversions: Requests that went before one with a better key.
        inversion_s_max: By how much, at most.
        digest: Of all decisions.
    """

    requests: int
    completed_share: float
    goodput_per_s: float
    kept_share: float
    long_ttft_s: tuple[float, float, float]
    short_ttft_s: tuple[float, float, float]
    wait_s_max: float
    hit_ratio: float
    inversions: int
    inversion_s_max: float
    digest: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A cell and its figures, with the digest of the code that made them (`loadtest.study.results`)."""

    code: str
    cell: QueueCell
    figures: Figures


_HEAD = (
    "load",
    "order",
    "long: P50, s",
    "P90",
    "P99",
    "short: P50, s",
    "P90",
    "P99",
    "worst wait, s",
    "completed",
    "goodput, 1/s",
    "reused",
    "inversions",
    "by at most, s",
)


def tables(rows: Sequence[QueueRow]) -> str:
    """One table for each kind of traffic."""
    parts = []
    for traffic in dict.fromkeys(row.cell.traffic for row in rows):
        lines = [
            [
                f"{100 * row.cell.load:.0f} %",
                row.cell.order,
                *map(seconds, row.figures.long_ttft_s),
                *map(seconds, row.figures.short_ttft_s),
                seconds(row.figures.wait_s_max),
                percent(row.figures.completed_share),
                f"{row.figures.goodput_per_s:.2f}",
                percent(row.figures.hit_ratio),
                str(row.figures.inversions),
                seconds(row.figures.inversion_s_max),
            ]
            for row in sorted(rows, key=lambda row: (row.cell.seed, row.cell.load))
            if row.cell.traffic == traffic
        ]
        parts.append(f"### {traffic}\n\n{table(_HEAD, lines)}")
    return "\n".join(parts)


def write(folder: Path, rows: Sequence[QueueRow]) -> None:
    """Write the tables and the chart.

    Raises:
        OSError: They cannot be written.
    """
    (folder / "queue-tables.md").write_text(f"# The queue under pressure: tables\n\n{tables(rows)}")
