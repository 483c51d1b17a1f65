"""Figures that locust does not count: rejected requests, and cached tokens of prompts.

With ``--master`` the workers send theirs along with locust's own statistics.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from locust.env import Environment
from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.client import Outcome
from loadtest.locusts.presets import Preset
from loadtest.report import milliseconds, percent

REJECTED = (429, 503)
"""Statuses of a gateway that has too much to do and says when to come again."""


@dataclass(slots=True)
class Counts:
    """Results of requests of one kind.

    Attributes:
        sent: Requests that have ended.
        completed: Those answered to the last byte, to which the tokens belong.
        rejected: Those rejected before they began.
    """

    sent: int = 0
    completed: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count one request."""
        self.sent += 1
        if outcome.error is None:
            self.completed += 1
            self.prompt_tokens += outcome.prompt_tokens
            self.cached_tokens += outcome.cached_tokens
            self.output_tokens += outcome.output_tokens
        elif outcome.status in REJECTED:
            self.rejected += 1

    def merge(self, other: "Counts") -> None:
        """Add another process's counts."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    @property
    def failed(self) -> int:
        """Requests that were neither completed nor rejected."""
        return self.sent - self.completed - self.rejected

    @property
    def completed_ratio(self) -> float | None:
        """Share of completed requests among those that were not rejected."""
        begun = self.sent - self.rejected
        return self.completed / begun if begun else None

    @property
    def hit_ratio(self) -> float | None:
        """Prompt tokens that were reused."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(slots=True)
class Summary:
    """The counts of a run by kind of user; ``finished`` processes have replayed their share of a trace."""

    kinds: dict[str, Counts] = field(default_factory=dict)
    finished: int = 0
    _unsent: dict[str, Counts] = field(default_factory=dict)
    _finished_workers: set[str] = field(default_factory=set)

    def add(self, kind: str, outcome: Outcome) -> None:
        """Count one request here."""
        for counts in (self.kinds, self._unsent):
            counts.setdefault(kind, Counts()).add(outcome)

    def report(self, data: dict[str, Any]) -> None:
        """Put the counts since the last report into a worker's message to its master."""
        data["cacheway_finished"] = self.finished
        data["cacheway"] = {kind: asdict(counts) for kind, counts in self._unsent.items()}
        self._unsent.clear()

    def heard(self, worker: str, data: dict[str, Any]) -> None:
        """Take a worker's report."""
        if data.get("cacheway_finished"):
            self._finished_workers.add(worker)
            self.finished = len(self._finished_workers)
        for kind, counts in data.get("cacheway", {}).items():
            self.kinds.setdefault(kind, Counts()).merge(Counts(**counts))

    @property
    def total(self) -> Counts:
        """All kinds together."""
        total = Counts()
        for counts in self.kinds.values():
            total.merge(counts)
        return total

    def broken(self, preset: Preset) -> list[str]:
        """Broken promises of a preset, in words."""
        total = self.total
        if total.completed_ratio is None:
            return ["no request was served"]
        broken = []
        if total.completed_ratio < preset.completed_min:
            broken.append(
                f"{percent(total.completed_ratio)} of the requests not rejected completed, "
                f"less than {percent(preset.completed_min)}"
            )
        if total.rejected > preset.rejected_max * total.sent:
            broken.append(
                f"{percent(total.rejected / total.sent)} were rejected, "
                f"more than {percent(preset.rejected_max)}"
            )
        return broken

    def table(self, environment: Environment) -> Table:
        """Everything on one screen."""
        table = Table(
            *(
                "",
                "sent",
                "completed",
                "rejected",
                "failed",
                "TTFT P50",
                "P90",
                "P99",
                "TPOT P50",
                "token hits",
            ),
            box=SIMPLE_HEAD,
        )
        for kind, counts in [*sorted(self.kinds.items()), ("all", self.total)]:
            table.add_row(
                kind,
                str(counts.sent),
                percent(counts.completed_ratio),
                str(counts.rejected),
                str(counts.failed),
                *(_percentile(environment, kind, "TTFT", share) for share in (0.5, 0.9, 0.99)),
                _percentile(environment, kind, "TPOT", 0.5),
                percent(counts.hit_ratio),
            )
        return table


def _percentile(environment: Environment, kind: str, what: str, share: float) -> str:
    entry = environment.stats.entries.get((kind, what))
    if entry is None or not entry.num_requests:
        return "-"
    return milliseconds(entry.get_response_time_percentile(share) / 1000)
