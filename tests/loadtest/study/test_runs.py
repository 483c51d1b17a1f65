"""Cells on small traces."""

from dataclasses import replace
from pathlib import Path

from fakes.study import cell, write_traces

from loadtest.study.results import Row, Store
from loadtest.study.runs import configured, run, simulated


def test_a_cell_says_what_is_simulated() -> None:
    made = configured(
        cell(
            "kv_cost",
            traffic="conversation-3x",
            engine="dense-70b",
            options=(("prefill_load_scale", 4.0),),
            replicas=8,
            block_tokens=512,
            congestion_max_per_s=2.0,
            queue_order="uncached",
            aging=3.0,
        )
    )

    assert (made.policy, dict(made.policy_options)) == ("kv_cost", {"prefill_load_scale": 4.0})
    assert (made.workers, made.speed, made.replicas, made.block_tokens) == (24, 3.0, 8, 512)
    assert (made.engine.name, made.engine.queue_order, made.engine.aging) == ("dense-70b", "uncached", 3.0)
    assert made.rules["congestion_max_per_s"] == 2.0
    assert made.rules["default_model"] == made.engine.prefill.model()
    assert made.utilisation == 0.8


def test_a_gateway_may_know_nothing_of_its_engines_and_workers_may_share_a_pool() -> None:
    made = configured(cell(default_prices=True, l3=True))

    assert dict(made.rules) == {}
    assert made.l3 is not None
    assert configured(cell()).l3 is None


def test_a_cell_gives_the_same_figures_again(tmp_path: Path) -> None:
    traces = write_traces(tmp_path)
    first, second = (simulated(cell(utilisation=0.5), traces, "code") for _ in range(2))

    assert first.figures["decisions_digest"] == second.figures["decisions_digest"]
    assert first.number("completed_share") == 1.0
    assert first.number("input_tokens") > 0


def test_what_is_missing_is_run_and_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.jsonl", "code")
    wanted = [cell("round_robin", utilisation=None), cell("least_load", utilisation=None)]
    done = simulated(wanted[0], write_traces(tmp_path), "code")
    store.add(done)
    told: list[Row] = []

    run(wanted, store, tmp_path, jobs=1, told=told.append)

    assert [row.cell for row in told] == wanted[1:]
    assert store.missing(wanted) == []
    assert store.rows(wanted)[0] == replace(done)
