"""Parallelism of an engine: how many GPUs share its experts and layers, and what that costs.

    engine            expert_parallel x pipeline_parallel GPUs; each stage has its share of the layers
    prefill per GPU   1.4 times as fast with half the expert-parallel size
    pipeline          the first step of an idle engine passes all stages before its result is there (GPipe,
                      arXiv:1811.06965, 2.3: its bubble), later ones follow; a token of decode passes all
    expert balance    experts wait for the rank with the most tokens

The published figures are those of MiMo-V2.5 (arXiv:2607.13095), with their sections in brackets, measured
end to end: communication, waiting for the longest rank and uneven experts are part of them.
"""

from dataclasses import dataclass
from math import log2

EP_MAX = 1024
PP_MAX = 64
BALANCE_MIN = 0.01

EXPERT_BALANCE = 0.85
"""Mean over most tokens of a rank, of all layers, without a balancing strategy (5.3; figure 8: 0.8495). The
profiles' prefill prices were measured so."""

NUMA_SPEED = 1.1
"""End-to-end speed after ``numa_balancing`` of the Linux kernel was switched off (5.4)."""

_EP_SPEED = 1.4
"""End-to-end speed of prefill, on the same GPUs, after the expert-parallel size was halved (5.1)."""

_EP_EXPONENT = log2(_EP_SPEED)
"""[guess] each further halving gains as much; one halving is published."""

NO_PREFILL_MTP: tuple[tuple[int, float], ...] = ((128, 2.3), (256, 1.5))
"""Slowness of decode up to an output length where prefill does not run the MTP layers, whose KV of the
prompt is then missing (6.2: with them 2.3 times as fast up to token 128, 1.5 times up to 256)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How an engine is run; the defaults are those of its profile.

    Attributes:
        expert_parallel: GPUs of a pipeline stage, over which the experts are divided; 0: as the profile.
        pipeline_parallel: Stages.
        expert_balance: Mean over most tokens of a rank.
        numa_balancing: The Linux kernel moves memory between NUMA nodes meanwhile.
        prefill_mtp: Prefill also computes the KV of the MTP layers.
    """

    expert_parallel: int = 0
    pipeline_parallel: int = 1
    expert_balance: float = EXPERT_BALANCE
    numa_balancing: bool = False
    prefill_mtp: bool = True

    def __post_init__(self) -> None:
        """Refuse what no engine runs with `ValueError`."""
        if not 0 <= self.expert_parallel <= EP_MAX:
            raise ValueError(f"the expert-parallel size must be 1 to {EP_MAX}, not {self.expert_parallel}")
        if not 1 <= self.pipeline_parallel <= PP_MAX:
            raise ValueError(f"pipeline stages must be 1 to {PP_MAX}, not {self.pipeline_parallel}")
        if not BALANCE_MIN <= self.expert_balance <= 1:
            raise ValueError(f"the expert balance must be {BALANCE_MIN} to 1, not {self.expert_balance}")

    def stage_gpus(self, profile_gpus: int) -> int:
        """GPUs of a pipeline stage of an engine whose profile has ``profile_gpus``."""
        return self.expert_parallel or profile_gpus

    def prefill_speed(self, profile_gpus: int) -> float:
        """Speed of prefill over that of the profile, with all GPUs of the engine."""
        ratio = self.stage_gpus(profile_gpus) / profile_gpus
        return self.pipeline_parallel * float(ratio ** (1.0 - _EP_EXPONENT))

    def expert_slowness(self, expert_share: float) -> float:
        """Time of a token apart from attention over that at `EXPERT_BALANCE`.

        Experts take ``expert_share`` of it there.
        """
        return 1.0 - expert_share + expert_share * EXPERT_BALANCE / self.expert_balance

    def __str__(self) -> str:
        numa = ", NUMA balancing on" if self.numa_balancing else ""
        mtp = "" if self.prefill_mtp else ", no MTP in prefill"
        size = self.expert_parallel or "as the profile"
        return (
            f"expert parallel {size}, pipeline stages {self.pipeline_parallel}, expert balance "
            f"{self.expert_balance:g}{numa}{mtp}"
        )


AS_PROFILE = Parallelism()
