"""Claims of the study, on runs that take seconds: rates near the ends of the fleets, and a bad link."""

from functools import cache

import pytest

from loadtest.plan.prfaas.fleets import CONTENDERS
from loadtest.plan.prfaas.traffic import lognormal_workload
from loadtest.plan.prfaas.trials import CAP_RATIO, LINK_BYTES_PER_S, Figures, config_of
from loadtest.simulator.records import Result
from loadtest.simulator.simulation import simulate
from loadtest.simulator.site_links import Weather

TENTH = (Weather(at_s=100.0, capacity_ratio=0.1), Weather(at_s=160.0))
DEAD = (Weather(at_s=100.0, capacity_ratio=0.0), Weather(at_s=110.0))
LOSSY = (Weather(at_s=100.0, loss_ratio=0.3), Weather(at_s=160.0))


@cache
def run(fleet: str, rate: float, weather: tuple[Weather, ...] = (), requests: int = 1_000) -> Result:
    workload = lognormal_workload(requests, rate, seed=2)
    return simulate(workload, config_of(CONTENDERS[fleet], seed=2, warmup_s=50.0, weather=weather))


def ttft_p90_s(fleet: str, rate: float) -> float:
    return Figures.of(run(fleet, rate)).ttft_p90_s


@pytest.mark.deep
@pytest.mark.parametrize(("other", "ratio"), [("naive", 1.25), ("homogeneous", 1.54), ("static", 1.0)])
def test_ours_answers_a_third_more_than_naive_and_half_more_than_homogeneous_sooner(
    other: str, ratio: float
) -> None:
    assert ttft_p90_s("ours", 2.8) < ttft_p90_s(other, 2.8 / ratio)


@pytest.mark.deep
def test_ours_is_sooner_than_every_other_fleet_at_a_rate_that_all_sustain() -> None:
    ours, homogeneous, static = (
        Figures.of(run(fleet, 1.6)).ttft_mean_s for fleet in ("ours", "homogeneous", "static")
    )
    assert ours < homogeneous / 2
    assert ours <= 1.02 * static


@pytest.mark.parametrize(
    "weather", [DEAD, *(pytest.param(weather, marks=pytest.mark.deep) for weather in ((), TENTH, LOSSY))]
)
def test_no_request_is_lost_and_the_link_is_never_overdrawn(weather: tuple[Weather, ...]) -> None:
    """For 160 s and more, of which the link is bad for up to 60."""
    figures = Figures.of(run("ours", 2.5, weather, 450))
    assert figures.lost == 0
    assert figures.rejected == 0
    assert figures.completed_share == 1.0
    assert 0 < figures.egress_max_bytes_per_s <= CAP_RATIO * LINK_BYTES_PER_S


@pytest.mark.deep
def test_requests_stay_home_when_a_link_died() -> None:
    dead = (Weather(at_s=100.0, capacity_ratio=0.0), Weather(at_s=200.0))
    result = run("ours", 1.6, dead)
    records = result.records
    during = (records.arrival_s > 110.0) & (records.arrival_s < 150.0)
    after = records.arrival_s > 300.0
    remote = records.worker < CONTENDERS["ours"].remote
    assert remote[during].mean() < 0.2
    assert remote[after].mean() > 0.3
    assert Figures.of(result).lost == 0
