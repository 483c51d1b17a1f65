"""Requirements of a plan, and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

Figures = Mapping[str, float | int | str | None]
"""A summary of the simulator."""


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level to hold; a limit of None allows any value.

    Attributes:
        completed_share: Share of the requests that must be completed, 0 to 1.
    """

    ttft_p90_s: float
    tpot_p90_s: float | None = None
    completed_share: float = 1.0

    def ttft_margin(self, figures: Figures) -> float:
        """Share of the limit that is left, below 0 if it is exceeded or requests were lost."""
        completed = figures["completed_share"]
        if completed is None or float(completed) < self.completed_share:
            return -inf
        return _left(figures["ttft_p90_s"], self.ttft_p90_s)

    def tpot_margin(self, figures: Figures) -> float:
        """The same of the time per output token; infinite without a limit or without answers to measure."""
        if self.tpot_p90_s is None or figures["tpot_p90_s"] is None:
            return inf
        return _left(figures["tpot_p90_s"], self.tpot_p90_s)

    def margin(self, figures: Figures) -> float:
        """The smaller of both: the service level holds if it is not below 0."""
        return min(self.ttft_margin(figures), self.tpot_margin(figures))

    def __str__(self) -> str:
        parts = [f"TTFT P90 ≤ {self.ttft_p90_s:g} s"]
        if self.tpot_p90_s is not None:
            parts.append(f"TPOT P90 ≤ {1000 * self.tpot_p90_s:g} ms")
        if self.completed_share < 1.0:
            parts.append(f"{100 * self.completed_share:g} % completed")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per hour, in any currency; the defaults are dollars, of the order of cloud list prices [guess].

    Attributes:
        worker: One worker, with what its model needs of the host.
        host_gib: One GiB of host memory for KV blocks.
        pool_gib: One GiB of the shared pool, with its share of network and hosts.
    """

    worker: float = 25.0
    host_gib: float = 0.004
    pool_gib: float = 0.006

    def __str__(self) -> str:
        return (
            f"{self.worker:g} per hour for a worker, {self.host_gib:g} for a GiB of host memory, "
            f"{self.pool_gib:g} for a GiB of the shared pool"
        )


def _left(value: float | int | str | None, limit: float) -> float:
    return -inf if value is None else 1.0 - float(value) / limit
