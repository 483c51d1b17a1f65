"""Made-up results in the form of the simulator's, for reports without a simulation."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadtest.engine.profiles import PROFILES
from loadtest.engine.timing import PrefillTiming
from loadtest.simulator.records import Bounds, Records, Result, Timeline
from loadtest.simulator.runs import Run

PREFILL = PrefillTiming(a_s=0.05, b_s=1 / 20_000, c0_tokens=float("inf"))
"""Prefill timing behind the times of `simulated`."""


class Config:
    """Fields of a `SimulationConfig` that the report reads."""

    def __init__(self, policy: str, warmup_s: float = 0.0) -> None:
        self.policy, self.warmup_s = policy, warmup_s
        self.expected_output_tokens = 256
        self.engine = replace(PROFILES["dense-70b"], prefill=PREFILL)


def simulated(
    policy: str = "expected_cost",
    *,
    skill: float = 0.9,
    requests: int = 2_000,
    workers: int = 8,
    failed: int = 0,
) -> Result:
    """A plausible result; the higher the skill (0 to 1), the more is reused and the less waited."""
    rng = np.random.default_rng(7)
    arrival_s = np.sort(rng.uniform(0.0, 1_800.0, requests))
    prompt = np.minimum(rng.lognormal(9.4, 1.3, requests), 900_000).astype(np.int64) + 1
    ideal = (prompt * rng.beta(2.0, 1.6, requests)).astype(np.int64) // 64 * 64
    best = (ideal * (0.7 + 0.3 * skill)).astype(np.int64)
    reused = (best * np.where(rng.uniform(size=requests) < skill, 1.0, 0.2)).astype(np.int64)
    prefill_s, floor_s = ((PREFILL.a_s + (prompt - held) * PREFILL.b_s) for held in (reused, ideal))
    waiting_s = rng.exponential(0.2 + 9.0 * (1.0 - skill) ** 2, requests)
    started_s = arrival_s + waiting_s
    first_s = started_s + prefill_s
    output = rng.integers(1, 900, requests)
    outcome = np.zeros(requests, np.uint8)
    if failed:
        outcome[-failed:] = 2
        first_s[-failed:] = np.nan
    samples = 300
    hot = 1.0 + (1.0 - skill) * np.linspace(-1.0, 1.0, workers)
    busy = np.clip(rng.normal(0.6, 0.12, (samples, workers)) * hot, 0.0, 1.0)
    return Result(
        config=Config(policy),  # type: ignore[arg-type]
        workload_name="made up",
        records=Records(
            arrival_s=arrival_s,
            dispatched_s=arrival_s,
            started_s=started_s,
            first_s=first_s,
            finished_s=first_s + 0.02 * output,
            prompt_tokens=prompt,
            output_tokens=output,
            device_tokens=reused * 3 // 4,
            host_tokens=reused - reused * 3 // 4,
            pool_tokens=reused // 10,
            ideal_tokens=ideal,
            floor_ttft_s=floor_s,
            worker=rng.integers(0, workers, requests),
            decode_worker=np.full(requests, -1),
            replica=np.zeros(requests, np.int64),
            predicted_tokens=reused,
            predicted_ttft_s=waiting_s + prefill_s,
            best_tokens=best,
            computed_tokens=np.maximum(best, (ideal * 0.97).astype(np.int64)),
            unsafe_tokens=np.maximum(best, (ideal * 0.92).astype(np.int64)),
            outcome=outcome,
        ),
        timeline=Timeline(
            time_s=np.linspace(6.0, 1_800.0, samples),
            busy_ratio=busy,
            waiting=rng.integers(0, 9, (samples, workers)),
            held_tokens=rng.integers(0, 10**6, (samples, workers)),
        ),
        bounds=Bounds(float(ideal.sum() / prompt.sum()), float(0.95 * ideal.sum() / prompt.sum()), 8_000_000),
        cpu_s=1.5,
        events=12_000,
        decisions_digest="00",
    )


def runs(policies: Sequence[str] = ("expected_cost", "round_robin")) -> list[Run]:
    """One run per policy, the first the most skilled."""
    skills = np.linspace(0.97, 0.35, len(policies))
    return [
        Run.of(name, simulated(name, skill=float(skill)))
        for name, skill in zip(policies, skills, strict=True)
    ]
