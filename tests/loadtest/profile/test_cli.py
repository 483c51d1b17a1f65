"""``cacheway calibrate`` writes a profile, and its certainty or the missing inputs."""

import base64
import json
from pathlib import Path

import pytest

from loadtest.profile.cli import main
from loadtest.profile.engine_file import read_engine

BLOCKS = base64.b64encode(bytes(range(80))).decode()
"""Ten blocks, which all prompts share."""


def line(number: int) -> str:
    """Requests one after the other: 10 ms and 1 ms a token of prefill, then 20 ms a token."""
    uncached = 100 + 37 * (number % 50)
    ttft_s = 0.01 + 0.001 * uncached
    outputs = 20 + number % 13
    return json.dumps(
        {
            "arrived_unix_s": 1.7e9 + 60.0 * number,
            "duration_s": ttft_s + 0.02 * (outputs - 1),
            "ttft_s": ttft_s,
            "status": 200,
            "outcome": "completed",
            "stream": True,
            "prompt_tokens": 2_560 + uncached,
            "estimated": False,
            "output_tokens": outputs,
            "cached_tokens": 2_560 if number else 0,
            "worker_id": "w",
            "attempts": 1,
            "prompt_blocks": (2_560 + uncached) / 256,
            "blocks": BLOCKS,
        }
    )


def test_a_trace_becomes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "engine.yaml"
    trace.write_text("\n".join(map(line, range(200))))
    assert main(["--trace", str(trace), "-o", str(out), "--name", "ours"]) == 0
    given = read_engine(out).given
    assert given.name == "ours"
    assert given.prefill.tokens_per_s == pytest.approx(1_000, rel=0.05)
    assert given.decode.step_s + given.decode.request_s == pytest.approx(0.02, rel=0.05)
    said = capsys.readouterr().out
    assert "confidence: good" in said
    assert "the quadratic part of prefill (context_doubling_tokens) is a guess" in said
    assert "nothing was evicted" in said


def test_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line(1))
    assert main(["--trace", str(trace), "-o", str(tmp_path / "engine.yaml")]) == 1
    assert "the trace has too little of: prefill" in capsys.readouterr().err
    assert main(["--trace", str(tmp_path / "none")]) == 1


def test_one_source_is_needed() -> None:
    for arguments in ([], ["--trace", "a", "--from-metrics", "b"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
