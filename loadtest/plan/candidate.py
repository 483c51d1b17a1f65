"""A fleet that a plan may recommend, and its cost."""

from dataclasses import dataclass, replace

from loadtest.engine.profiles import EngineProfile
from loadtest.plan.division import Division
from loadtest.plan.objective import Prices
from loadtest.simulator.contenders import Contender
from loadtest.simulator.memory import Memory
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.tier_rules import PLAIN, TierRules
from loadtest.simulator.words import bucket_shares

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Family:
    """All of a fleet but the number of its workers.

    Attributes:
        split: Prefill and decode have workers of their own.
        host_gib: Host memory for KV of each worker that takes requests, GiB.
        pool_gib: A pool that they share, GiB.
        division: Division of the workers that take requests, by length; None: all take any length.
        tier_rules: Rules of host memory and the pool.
    """

    contender: Contender
    split: bool
    host_gib: float = 0.0
    pool_gib: float = 0.0
    division: Division | None = None
    tier_rules: TierRules = PLAIN

    @property
    def label(self) -> str:
        """Name in tables."""
        buckets = f", buckets {self.division.label}" if self.division is not None else ""
        return f"{self.contender.label}{', split' * self.split}{self.with_memory}{buckets}"

    @property
    def workers_min(self) -> int:
        """Fewer are too few for a bucket, of which each needs one at least."""
        return 1 if self.division is None else self.division.workers_min

    @property
    def with_memory(self) -> str:
        """Its memory below the device, in words that follow others."""
        parts = []
        if self.host_gib:
            parts.append(f"{self.host_gib:,g} GiB of host memory each")
        if self.pool_gib:
            parts.append(f"a pool of {self.pool_gib:,g} GiB")
        return f", {' and '.join(parts)}" if parts else ""

    def memory(self, engine: EngineProfile) -> Memory:
        """Its memory below the device, in tokens."""
        tokens_per_gib = GIB / engine.shape.token_bytes
        host_tokens, pool_tokens = int(self.host_gib * tokens_per_gib), int(self.pool_gib * tokens_per_gib)
        return Memory(host_tokens, pool_tokens, self.tier_rules)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet: workers that take requests, and those that only decode (0 if the family is not split)."""

    family: Family
    workers: int
    decode_workers: int = 0

    @property
    def label(self) -> str:
        """Name in tables."""
        return f"{self.family.contender.label} on {self._workers}{self.family.with_memory}"

    @property
    def _workers(self) -> str:
        if self.decode_workers:
            return f"{self.workers} prefill{self._shares} and {self.decode_workers} decode workers"
        return f"{self.workers} worker{'s' * (self.workers != 1)}{self._shares}"

    @property
    def _shares(self) -> str:
        return f" ({bucket_shares(self.bucket_workers)})" if self.bucket_workers else ""

    @property
    def bucket_workers(self) -> tuple[tuple[int, int], ...]:
        """The workers that take requests by bucket, as in `SimulationConfig`."""
        division = self.family.division
        return () if division is None else division.bucket_workers(self.workers)

    def cost_per_hour(self, prices: Prices) -> float:
        """Its cost."""
        memory = (
            self.workers * self.family.host_gib * prices.host_gib + self.family.pool_gib * prices.pool_gib
        )
        return (self.workers + self.decode_workers) * prices.worker + memory

    def config(self, base: SimulationConfig) -> SimulationConfig:
        """Configuration of its simulation."""
        memory = self.family.memory(base.engine)
        return replace(
            base,
            host=memory.host(base.engine),
            l3=memory.pool(),
            policy=self.family.contender.policy,
            policy_options=self.family.contender.options,
            workers=self.workers,
            bucket_workers=self.bucket_workers,
            decode_workers=self.decode_workers,
        )
