"""Cells on small traces."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from fakes.study import CODE, cell, write_traces

from loadtest.simulator.records import Outcome, Records
from loadtest.study.design import Cell
from loadtest.study.results import Row, Store
from loadtest.study.runs import configured, run, simulated, totals_of
from loadtest.study.shipped import shipped_queue


def test_a_cell_says_what_is_simulated() -> None:
    made = configured(
        cell(
            "kv_cost",
            traffic="conversation",
            engine="dense-70b",
            options=(("prefill_load_scale", 4.0),),
            replicas=8,
            queue_k=3.0,
        )
    )

    assert (made.policy, dict(made.policy_options)) == ("kv_cost", {"prefill_load_scale": 4.0})
    assert (made.workers, made.speed, made.replicas) == (8, 1.0, 8)
    assert made.engine.name == "dense-70b"
    assert made.queue == shipped_queue(3.0)
    assert made.rules["default_model"] == made.engine.prefill.model()


def test_a_gateway_may_know_nothing_of_its_engines_and_workers_may_share_a_pool() -> None:
    made = configured(cell(default_prices=True, l3=True))

    assert dict(made.rules) == {}
    assert made.l3 is not None
    assert configured(cell()).l3 is None


def test_host_memory_and_a_queue_are_there_where_a_cell_says_so() -> None:
    assert configured(cell(host=True)).host is not None
    assert (configured(cell()).host, configured(cell()).queue) == (None, None)


def test_the_gateway_knows_the_prices_of_engines_that_the_load_slows_down() -> None:
    made = configured(cell(), scale=3.0)

    assert made.engine.prefill.b_s == pytest.approx(3.0 * configured(cell()).engine.prefill.b_s)
    assert made.rules["default_model"] == made.engine.prefill.model()


def test_a_load_is_the_same_for_all_policies_and_queues(tmp_path: Path) -> None:
    traces = write_traces(tmp_path)
    rows = [
        simulated(cell(label, utilisation=0.5, replicas=replicas), traces, CODE)
        for label, replicas in (("least_load", 1), ("lmetric", 2))
    ]
    twice = simulated(cell("least_load", utilisation=0.9), traces, CODE)

    assert rows[0].number("time_scale") == rows[1].number("time_scale")
    assert twice.number("time_scale") > 1.5 * rows[0].number("time_scale")


def test_a_cell_gives_the_same_figures_again(tmp_path: Path) -> None:
    traces = write_traces(tmp_path)
    first, second = (simulated(cell(utilisation=0.5), traces, CODE) for _ in range(2))

    assert first.figures["decisions_digest"] == second.figures["decisions_digest"]
    assert first.number("completed_share") == 1.0
    assert first.number("input_tokens") > 0


def test_times_are_told_of_the_shortest_bucket_of_the_others_and_of_the_longest() -> None:
    """P90 lies nine tenths of the way from the first to the last; unanswered requests count nowhere."""
    prompts = np.array([1_000, 65_536, 65_537, 262_144, 262_145, 400_000, 2_000])
    given = {column.name: np.zeros(len(prompts)) for column in fields(Records)}
    given["prompt_tokens"] = prompts
    given["outcome"] = np.array([Outcome.COMPLETED] * 6 + [Outcome.REJECTED])
    given["first_s"] = np.array([1.0, 2.0, 10.0, 20.0, 30.0, 40.0, 99.0])

    totals = totals_of(Records(**given))

    assert totals["ttft_first_bucket_p90_s"] == pytest.approx(1.9)
    assert totals["ttft_other_buckets_p90_s"] == pytest.approx(37.0)
    assert totals["ttft_longest_bucket_p90_s"] == pytest.approx(39.0)


def test_what_is_missing_is_run_and_kept(tmp_path: Path) -> None:
    store: Store[Cell, Row] = Store(tmp_path / "results.jsonl", CODE, Row)
    wanted = [cell("round_robin", utilisation=None), cell("least_load", utilisation=None)]
    done = simulated(wanted[0], write_traces(tmp_path), CODE)
    store.add(done)
    told: list[Row] = []

    run(wanted, store, tmp_path, jobs=1, told=told.append)

    assert [row.cell for row in told] == wanted[1:]
    assert store.missing(wanted) == []
    assert store.rows(wanted)[0] == replace(done)
