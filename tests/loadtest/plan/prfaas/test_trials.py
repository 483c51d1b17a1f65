"""Simulations of a fleet, and figures that can be checked by hand."""

from dataclasses import replace
from math import inf, isnan, nan

import msgspec
import numpy as np
import pytest

from loadtest.plan.prfaas.fleets import CONTENDERS, LINK
from loadtest.plan.prfaas.trials import (
    CAP_RATIO,
    LINK_BYTES_PER_S,
    QUEUE_TIMEOUT_S,
    Figures,
    config_of,
    rates,
)
from loadtest.simulator.records import Outcome
from loadtest.simulator.site_links import Weather
from tests.fakes.prfaas_results import by_hand


def test_figures_are_of_the_requests_behind_the_warmup() -> None:
    """The first of six is in the warm-up, then one each is rejected, expires, fails; two are answered."""
    result = by_hand(
        "ours",
        warmup_s=10.0,
        arrival_s=[5.0, 10.0, 11.0, 12.0, 13.0, 20.0],
        dispatched_s=[9.0, 11.0, nan, nan, 14.0, 23.0],
        first_s=[90.0, 12.0, nan, nan, nan, 25.0],
        worker=[0, 3, -1, -1, 0, 4],
        outcome=[
            Outcome.COMPLETED,
            Outcome.COMPLETED,
            Outcome.REJECTED,
            Outcome.EXPIRED,
            Outcome.FAILED,
            Outcome.COMPLETED,
        ],
    )
    figures = Figures.of(result)
    assert figures.requests == 5
    assert figures.completed_share == pytest.approx(2 / 5)
    assert figures.rejected == 2
    assert figures.lost == 1
    assert figures.ttft_mean_s == pytest.approx((2.0 + 5.0) / 2)
    assert figures.ttft_p50_s == pytest.approx(3.5)
    assert figures.ttft_p90_s == pytest.approx(2.0 + 0.9 * 3.0)
    assert figures.ttft_p99_s == pytest.approx(2.0 + 0.99 * 3.0)
    assert figures.wait_mean_s == pytest.approx((1.0 + 1.0 + 3.0) / 3)
    assert figures.remote_share == pytest.approx(1 / 2)


def test_answers_per_second_are_those_that_begin_before_the_last_arrival() -> None:
    result = by_hand(warmup_s=10.0, arrival_s=[10.0, 12.0, 14.0, 20.0], first_s=[11.0, 13.0, 21.0, 22.0])
    assert Figures.of(result).completed_per_s == pytest.approx(2 / 10)


def test_egress_is_the_mean_until_the_last_arrival_and_the_busiest_second_wherever_it_begins() -> None:
    """40 bytes from 1.5 s to 2.5 s, across two whole seconds, and 60 more behind the last arrival."""
    times_s, sent_bytes = np.array([0.0, 1.5, 2.5, 10.0, 20.0]), np.array([0.0, 0.0, 40.0, 40.0, 100.0])
    figures = Figures.of(by_hand(arrival_s=[0.0, 10.0], first_s=[1.0, 11.0], egress=(times_s, sent_bytes)))
    assert figures.egress_max_bytes_per_s == pytest.approx(40.0)
    assert figures.egress_mean_bytes_per_s == pytest.approx(4.0)


def test_a_fleet_that_answers_nothing_has_figures_and_no_time_to_first_token() -> None:
    figures = Figures.of(
        by_hand(
            arrival_s=[1.0, 2.0], dispatched_s=[nan, nan], first_s=[nan, nan], outcome=[Outcome.REJECTED] * 2
        )
    )
    assert (figures.completed_share, figures.rejected, figures.remote_share) == (0.0, 2, 0.0)
    assert figures.ttft_mean_s == figures.ttft_p50_s == figures.ttft_p90_s == figures.ttft_p99_s == inf
    assert isnan(figures.wait_mean_s)


def test_figures_can_be_written_as_json() -> None:
    figures = Figures.of(by_hand(arrival_s=[1.0, 2.0], first_s=[1.5, 2.5]))
    document = msgspec.json.decode(msgspec.json.encode(figures.document()))
    assert document["requests"] == 2
    assert Figures(**document) == figures


def test_the_link_has_its_capacity_its_cap_and_its_weather() -> None:
    weather = (Weather(at_s=3.0, capacity_ratio=0.1),)
    config = config_of(CONTENDERS["naive"], seed=7, warmup_s=4.0, weather=weather)
    link = config.links[LINK]
    assert link.bytes_per_s == LINK_BYTES_PER_S == 100e9 / 8
    assert (link.cap_ratio, link.weather) == (CAP_RATIO, weather)
    assert (config.seed, config.warmup_s) == (7, 4.0)


def test_fleets_differ_in_workers_and_rule_alone() -> None:
    configs = {name: config_of(one, seed=1, warmup_s=0.0) for name, one in CONTENDERS.items()}
    ours = configs["ours"]
    for name, config in configs.items():
        told = config.tells_links, config.offload
        contender = CONTENDERS[name]
        assert told == (contender.knows_link, contender.offload)
        same = replace(config, groups=ours.groups, tells_links=True, offload=ours.offload)
        assert same == ours
    assert ours.queue is not None
    assert ours.queue.room.timeout_s == QUEUE_TIMEOUT_S


def test_a_growing_total_has_a_rate_in_each_stretch_of_time() -> None:
    ends_s, per_s = rates(np.array([0.0, 1.0, 3.0, 4.0]), np.array([0.0, 10.0, 10.0, 40.0]), 2.0)
    assert ends_s == pytest.approx([2.0, 4.0])
    assert per_s == pytest.approx([5.0, 15.0])
    assert (per_s * 2.0).sum() == pytest.approx(40.0)
