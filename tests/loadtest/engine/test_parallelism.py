"""Parallelism of an engine: bounds and words; the published figures are in test_profiles.py."""

from typing import Any

import pytest

from loadtest.engine.parallelism import AS_PROFILE, Parallelism


@pytest.mark.parametrize(
    "wrong",
    [
        {"expert_parallel": -1},
        {"expert_parallel": 1025},
        {"pipeline_parallel": 0},
        {"pipeline_parallel": 65},
        {"expert_balance": 0.0},
        {"expert_balance": 1.01},
        {"expert_balance": float("nan")},
    ],
)
def test_what_no_engine_runs_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not "):
        Parallelism(**wrong)


def test_the_profile_is_as_fast_as_itself() -> None:
    assert AS_PROFILE.prefill_speed(8) == 1.0
    assert AS_PROFILE.expert_slowness(0.6) == pytest.approx(1.0)


def test_it_names_what_differs() -> None:
    told = str(Parallelism(expert_parallel=4, numa_balancing=True, prefill_mtp=False))
    assert told == (
        "expert parallel 4, pipeline stages 1, expert balance 0.85, NUMA balancing on, no MTP in prefill"
    )
