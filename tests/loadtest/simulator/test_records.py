"""Figures that can be checked by hand."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.simulator.records import Bounds, Outcome, Records, Result, Timeline
from loadtest.simulator.simulation import SimulationConfig
from policies import ServiceModel


def records(rows: int, **columns: Any) -> Records:
    given = {column.name: np.zeros(rows) for column in fields(Records)}
    given["outcome"] = np.zeros(rows, dtype=np.uint8)
    given |= {name: np.array(values) for name, values in columns.items()}
    return Records(**given)


def result(rows: Records, **changes: Any) -> Result:
    return Result(
        **{
            "config": SimulationConfig(engine=PROFILES["dense-70b"], **changes.pop("config", {})),
            "workload_name": "by hand",
            "records": rows,
            "timeline": Timeline(*(np.zeros((0,)), *(np.zeros((0, 1)) for _ in range(3)))),
            "bounds": Bounds(0.8, 0.5, 1000),
            "cpu_s": 0.1,
            "events": 1,
            "decisions_digest": "00",
            **changes,
        }
    )


def test_each_lost_token_has_one_cause() -> None:
    """1,000 tokens: 100 reused, 200 elsewhere, 300 without their window, 250 evicted, 150 under way."""
    rows = records(
        1,
        ideal_tokens=[1000],
        device_tokens=[60],
        host_tokens=[40],
        best_tokens=[300],
        unsafe_tokens=[600],
        computed_tokens=[850],
    )

    lost = {cause: tokens.tolist() for cause, tokens in rows.lost_tokens().items()}

    assert lost == {"placed_elsewhere": [200], "not_window_safe": [300], "evicted": [250], "in_flight": [150]}


def test_lost_seconds_add_up_to_the_price_of_what_is_missing() -> None:
    """Tokens at position 1,000 cost twice as much: losses deep in the prompt cost more."""
    prices = ServiceModel(a_s=5.0, b_s=0.001, c0_tokens=1000.0)
    rows = records(
        2,
        prompt_tokens=[2000, 2000],
        ideal_tokens=[1500, 1500],
        best_tokens=[500, 500],
        computed_tokens=[1500, 0],
        device_tokens=[0, 0],
    )

    lost = rows.lost_s(prices)

    missing_s = prices.service_s(2000, 0) - prices.service_s(500, 1500)
    assert lost["placed_elsewhere"] == pytest.approx(0.001 * 500 * (1 + 250 / 1000))
    assert lost["evicted"][0] == pytest.approx(0.001 * 1000 * (1 + 1000 / 1000))
    assert lost["in_flight"][1] == pytest.approx(0.001 * 1000 * (1 + 1000 / 1000))
    assert sum(lost.values()) == pytest.approx(missing_s)


def test_more_than_ideal_is_no_loss() -> None:
    """A worker may have computed tokens meanwhile that had not even arrived in ideal order."""
    rows = records(1, ideal_tokens=[100], device_tokens=[500], best_tokens=[700], computed_tokens=[900])

    assert not any(tokens.any() for tokens in rows.lost_tokens().values())


def test_the_summary_leaves_out_the_warm_up_and_counts_every_end() -> None:
    rows = records(
        5,
        arrival_s=[0.0, 10.0, 11.0, 12.0, 13.0],
        first_s=[9.0, 11.0, 14.0, np.nan, np.nan],
        finished_s=[9.0, 12.0, 15.0, 12.0, 14.0],
        prompt_tokens=[100, 100, 300, 100, 100],
        output_tokens=[1, 3, 1, 5, 5],
        device_tokens=[0, 50, 30, 0, 0],
        host_tokens=[0, 20, 10, 0, 0],
        pool_tokens=[0, 10, 0, 0, 0],
        floor_ttft_s=[1.0, 0.5, 1.5, 1.0, 1.0],
        outcome=np.array(
            [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.COMPLETED, Outcome.REJECTED, Outcome.FAILED]
        ),
    )

    summary = result(rows, config={"warmup_s": 5.0}).summary()

    assert [summary[name] for name in ("requests", "completed", "rejected", "failed")] == [4, 2, 1, 1]
    assert summary["completed_share"] == 0.5
    assert summary["hit_ratio"] == pytest.approx(110 / 400)
    assert summary["hit_device_ratio"] == pytest.approx(80 / 400)
    assert summary["hit_host_ratio"] == pytest.approx(20 / 400)
    assert summary["hit_pool_ratio"] == pytest.approx(10 / 400)
    assert summary["share_of_pooled"] == pytest.approx(110 / 400 / 0.5)
    assert summary["ttft_mean_s"] == pytest.approx(2.0)
    assert summary["ttft_p50_s"] == pytest.approx(2.0)
    assert summary["floor_ttft_mean_s"] == pytest.approx(1.0)
    assert summary["tpot_mean_s"] == pytest.approx(0.5)


def test_utilisation_is_that_of_the_time_in_which_requests_came() -> None:
    """Two workers from 10 s on: one busy half the time, the other never; the tail behind 30 s is left out."""
    timeline = Timeline(
        time_s=np.array([10.0, 20.0, 30.0, 40.0]),
        busy_ratio=np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]),
        waiting=np.zeros((4, 2)),
        held_tokens=np.zeros((4, 2)),
    )
    rows = records(2, arrival_s=[0.0, 30.0], finished_s=[1.0, 40.0])

    summary = result(rows, timeline=timeline, config={"warmup_s": 10.0}).summary()

    assert summary["utilisation_max"] == pytest.approx(0.5)
    assert summary["utilisation_mean"] == pytest.approx(0.25)
    assert summary["imbalance"] == pytest.approx(2.0)


def test_nothing_measured_is_none() -> None:
    summary = result(records(0)).summary()

    assert summary["ttft_mean_s"] is None
    assert summary["completed"] == 0
