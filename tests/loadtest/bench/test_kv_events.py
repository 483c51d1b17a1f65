"""The benchmark of following KV events measures its figures, on a small scale."""

from random import Random

import msgspec

from loadtest.bench import kv_events as bench
from loadtest.bench.event_engine import WINDOW_TOKENS


def test_an_engine_publishes_its_events_step_by_step() -> None:
    """A step ends with a store of the full group; each batch counts the events so far."""
    batches = bench.batches(bench.Engine(bench.MIXES[2], 1200, Random(1)), 500)
    steps = [msgspec.msgpack.decode(encoded)[1] for _, encoded in batches]

    assert [told for told, _ in batches] == [sum(map(len, steps[: at + 1])) for at in range(len(steps))]
    assert all((step[-1]["type"], step[-1]["group_idx"]) == ("BlockStored", 0) for step in steps)
    windows = [e for step in steps for e in step if e["group_idx"] and e["type"] == "BlockStored"]
    assert {event["kv_cache_spec_sliding_window"] for event in windows} == {WINDOW_TOKENS}


def test_all_is_measured_with_a_tree_that_agrees() -> None:
    figures = bench._measured(bench.MIXES[2], 500, 2000)

    assert all(figure >= 0 for figure in figures)
