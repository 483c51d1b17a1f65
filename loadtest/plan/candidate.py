"""A fleet that a plan may recommend, and what it costs."""

from dataclasses import dataclass, replace

from loadtest.plan.objective import Prices
from loadtest.simulator.contenders import Contender
from loadtest.simulator.simulation import SimulationConfig


@dataclass(frozen=True, slots=True)
class Family:
    """All of a fleet but the number of its workers.

    Attributes:
        contender: The policy.
        split: Whether prefill and decode have workers of their own.
    """

    contender: Contender
    split: bool

    @property
    def label(self) -> str:
        """What tables call it."""
        return f"{self.contender.label}{', split' * self.split}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet.

    Attributes:
        family: What it is like.
        workers: How many take requests.
        decode_workers: How many only decode; 0 if the family is not split.
    """

    family: Family
    workers: int
    decode_workers: int = 0

    @property
    def label(self) -> str:
        """What tables call it."""
        return f"{self.family.contender.label} on {self.fleet}"

    @property
    def fleet(self) -> str:
        """Its workers, in words."""
        if self.decode_workers:
            return f"{self.workers} prefill and {self.decode_workers} decode workers"
        return f"{self.workers} worker{'s' * (self.workers != 1)}"

    def cost_per_hour(self, prices: Prices) -> float:
        """What it costs."""
        return (self.workers + self.decode_workers) * prices.worker

    def config(self, base: SimulationConfig) -> SimulationConfig:
        """How to simulate it."""
        return replace(
            base,
            policy=self.family.contender.policy,
            policy_options=self.family.contender.options,
            workers=self.workers,
            decode_workers=self.decode_workers,
        )
