"""The demo's command line and its output; `tests/integration/test_demo.py` runs it."""

import argparse
import asyncio
import contextlib
import io
import json
import subprocess
from pathlib import Path

import pytest

from loadtest import demo
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.report import Tally, summarize
from loadtest.scenario import agent_scenario
from loadtest.workload import MODEL


def test_without_arguments_round_robin_is_compared_with_the_default_policy() -> None:
    options = demo._parser().parse_args([])

    assert options.policy == ["round_robin", "expected_cost"]
    assert options.trace is None
    assert not options.keep


@pytest.mark.parametrize("text", ["5", "a:b", "9:3", "-1:3", "nan:nan", "3:3"])
def test_a_wrong_window_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        demo._window(text)


@pytest.mark.parametrize("text", ["0", "-1", "x", "inf", "nan"])
def test_a_wrong_speed_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        demo._speed(text)


def test_a_window_and_a_speed_are_numbers_in_seconds() -> None:
    assert demo._window("30:90.5") == (30.0, 90.5)
    assert demo._speed("2.5") == 2.5


def test_a_trace_that_cannot_be_read_ends_the_demo_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--trace", str(tmp_path / "absent.jsonl")]) == 1

    assert "Cannot read the trace" in capsys.readouterr().err


async def test_the_printed_curl_line_and_openai_snippet_work_as_they_are() -> None:
    """Against one engine here; the same text is printed for a replica."""
    async with EmulatedEngine(EngineSettings(models=(MODEL,), speed=100.0)) as engine:
        curl, _, snippet = demo._by_hand(engine.url).partition("\n")
        streamed = await asyncio.to_thread(
            subprocess.run, ["/bin/sh", "-c", curl], capture_output=True, check=True, timeout=30
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            await asyncio.to_thread(exec, snippet, {})

    assert b"data: [DONE]" in streamed.stdout
    assert "prompt_tokens=" in printed.getvalue()


def test_the_json_file_has_the_figures_of_every_policy(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    scenario = agent_scenario(1, quick=True)

    demo._write(path, scenario, [summarize("random", Tally(), unsent=0, duration_s=1.0)])

    document = json.loads(path.read_text())
    assert document["requests"] == scenario.request_count
    assert [policy["policy"] for policy in document["policies"]] == ["random"]
