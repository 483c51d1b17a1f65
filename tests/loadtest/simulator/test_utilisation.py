"""The load that was asked for is the load that comes."""

from dataclasses import replace

import numpy as np
import pytest
from fakes.workloads import conversations, request

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES
from loadtest.simulator.records import Result
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.utilisation import NoSuchLoad, least_utilisation, time_scale
from loadtest.simulator.workload import Session, Workload

ENGINE = replace(
    PROFILES["dense-70b"], rules=CacheRules(full_tokens=400_000), chunk_tokens=0, interleave="apart"
)
"""One prompt at a time, so that the time of a prefill is that of its request."""


def run(workload: Workload, utilisation: float, **changes: object) -> Result:
    config = SimulationConfig(
        **{"engine": ENGINE, "workers": 2, "ramp_s": 0.0, "utilisation": utilisation, **changes}  # type: ignore[arg-type]
    )
    return simulate(workload, config)


def busy_ratio(result: Result) -> float:
    """Seconds of prefill over the time in which requests came."""
    records = result.records
    prefill_s = (records.first_s - records.started_s).sum()
    return float(prefill_s / (result.config.workers * records.arrival_s[-1]))


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_an_open_loop_keeps_the_fleet_as_busy_as_asked(utilisation: float) -> None:
    """Caches that hold everything and one prefix per session: the least work is nearly done (10 %)."""
    workload = conversations(sessions=300, turns=4, rate_per_s=0.5, gap_s=2.0, output_tokens_max=3)
    result = run(workload, utilisation)

    assert busy_ratio(result) == pytest.approx(utilisation, rel=0.1)


def test_twice_the_speed_needs_engines_twice_as_fast() -> None:
    workload = conversations(sessions=50, turns=1)
    slow, fast = (
        time_scale(workload, ENGINE, 2, 0.5, capacity_tokens=800_000, speed=speed) for speed in (1.0, 2.0)
    )

    assert slow == pytest.approx(2 * fast)


def test_a_closed_loop_is_slowed_by_its_answers() -> None:
    """With light load no request waits, so the prediction holds within 15 %."""
    result = run(conversations(sessions=120, turns=4, users=12, output_tokens_max=20), 0.2)

    assert busy_ratio(result) == pytest.approx(0.2, rel=0.15)


def test_a_load_that_the_users_cannot_cause_is_refused() -> None:
    """One user keeps one of four workers busy at most."""
    workload = conversations(sessions=20, turns=3, users=1)

    with pytest.raises(NoSuchLoad, match="take fewer workers or more users"):
        time_scale(workload, ENGINE, 4, 0.5, capacity_tokens=800_000)


def test_a_slower_engine_takes_longer_for_everything() -> None:
    workload = conversations(sessions=40, turns=1, rate_per_s=0.1)
    slow, fast = (run(workload, utilisation).records for utilisation in (0.2, 0.1))

    assert np.allclose(slow.first_s - slow.started_s, 2 * (fast.first_s - fast.started_s), rtol=1e-6)


def test_time_goes_on_until_the_last_request_comes() -> None:
    """Two prompts 100 s apart, on one worker: their work over 100 s and the first answer."""
    prompts = np.random.default_rng(1).bytes(4000), np.random.default_rng(2).bytes(4000)
    first, second = (
        request(prompt, 3000, 1, delay_s=delay_s, after=after)
        for prompt, delay_s, after in zip(prompts, (0.0, 100.0), ((), (0,)), strict=True)
    )
    workload = Workload("two", (Session(0.0, (first, second)),))

    busy = least_utilisation(workload, ENGINE, 1, capacity_tokens=100_000)

    prefill_s = ENGINE.prefill.prompt_s(3000, 0)
    assert busy == pytest.approx(2 * prefill_s / (100 + prefill_s))


def test_less_work_is_left_where_more_is_held() -> None:
    """A pool that holds every session makes the work less, so the engines may be slower."""
    workload = conversations(sessions=60, turns=4)
    small, large = (
        time_scale(workload, ENGINE, 2, 0.5, capacity_tokens=tokens) for tokens in (5_000, 5_000_000)
    )

    assert large > small
