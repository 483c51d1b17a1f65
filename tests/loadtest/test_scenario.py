"""Requests that a demo replays, and its engines."""

import json
from pathlib import Path

import pytest

from loadtest.engine.cli import _parser
from loadtest.scenario import AGENT_ENGINE, TRACE_ENGINE, agent_scenario, engine_flags, trace_scenario
from loadtest.traces import TraceError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten rows, 3 s apart, each of one block of its own."""
    path = tmp_path / "trace.jsonl"
    rows = (
        {"timestamp": 3000 * i, "input_length": 512, "output_length": 9, "hash_ids": [i]} for i in range(10)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_requests_of_a_run_are_counted_before_it() -> None:
    scenario = agent_scenario(1, quick=True)

    assert scenario.request_count == sum(script.turn_count for script in scenario.scripts)
    assert scenario.time_scale == 1.0


def test_a_trace_and_its_engines_run_equally_faster(trace: Path) -> None:
    scenario = trace_scenario(trace, (6.0, 15.0), 10.0, seed=1)

    assert scenario.request_count == 3
    assert all(0.0 <= script.start_s < 0.9 for script in scenario.scripts)
    assert scenario.engine.speed == scenario.time_scale == 10.0
    assert scenario.engine.cache_tokens == TRACE_ENGINE.cache_tokens


def test_an_empty_window_is_an_error_that_names_it(trace: Path) -> None:
    with pytest.raises(TraceError, match=r"window 100:200 s"):
        trace_scenario(trace, (100.0, 200.0), 1.0, seed=1)


@pytest.mark.parametrize("engine", [AGENT_ENGINE, TRACE_ENGINE])
def test_the_flags_of_an_engine_describe_it_completely(engine: object) -> None:
    """Every setting of a scenario must reach the child process, so parsed flags give the engine back."""
    assert engine in (AGENT_ENGINE, TRACE_ENGINE)
    settings = AGENT_ENGINE if engine is AGENT_ENGINE else TRACE_ENGINE
    parsed = vars(_parser().parse_args(engine_flags(settings)))

    for name, value in parsed.items():
        if hasattr(settings, name):
            expected = getattr(settings, name)
            assert (tuple(value) if isinstance(expected, tuple) else value) == expected, name
