"""The parent part, with a stand-in for Dynamo that answers like it."""

import sys
from pathlib import Path

import pytest

from loadtest.study.cross_check import ENGINE, DynamoFailed, replay

REPLAY = """
import json, pathlib
calls = []
class Report:
    def __init__(self, summary):
        self.summary = summary
def run_trace_replay(trace, **options):
    calls.append(1)
    assert pathlib.Path(trace).read_text() == "a trace"
    assert options["extra_engine_args"] == {"engine": {"num_gpu_blocks": 16384, "block_size": 64}}
    assert (options["num_workers"], options["arrival_speedup_ratio"]) == (8, 3.0)
    assert options["trace_block_size"] == 512
    config = options["router_config"]
    assert (options["router_mode"] == "round_robin") == (config is None)
    reuse = 0.1 if config is None else 0.2 + 0.01 * len(calls) + config.get("prefill_load_scale", 0.0) / 100
    return Report({"completed_requests": 5, "prefix_cache_reused_ratio": reuse, "mean_ttft_ms": 250.0,
                   "p90_ttft_ms": 900.0})
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package called dynamo where this interpreter finds it, and a trace."""
    package = tmp_path / "dynamo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "replay.py").write_text(REPLAY)
    (package / "llm.py").write_text("KvRouterConfig = dict\n")
    (tmp_path / "trace.jsonl").write_text("a trace")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_each_router_is_a_row_and_repetitions_are_averaged(environment: Path) -> None:
    rows = replay(Path(sys.executable), environment / "trace.jsonl", repetitions=2)

    assert [row.router for row in rows] == [
        "round_robin",
        "kv_router",
        "kv_router, prefill_load_scale=4",
    ]
    assert [row.reuse_ratio for row in rows] == pytest.approx([0.1, 0.225, 0.285])
    assert (rows[1].reuse_least_ratio, rows[1].reuse_most_ratio) == pytest.approx((0.22, 0.23))
    assert (rows[0].ttft_mean_s, rows[0].ttft_p90_s) == (0.25, 0.9)


def test_a_python_without_dynamo_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)

    with pytest.raises(DynamoFailed, match="No module named 'dynamo'"):
        replay(Path(sys.executable), tmp_path / "trace.jsonl")


def test_a_missing_python_says_so(tmp_path: Path) -> None:
    with pytest.raises(DynamoFailed, match="cannot be run"):
        replay(tmp_path / "python", tmp_path / "trace.jsonl")


def test_output_that_is_not_rows_is_refused(environment: Path) -> None:
    (environment / "dynamo" / "replay.py").write_text("print('no JSON')\n" + REPLAY)

    with pytest.raises(DynamoFailed, match="something else"):
        replay(Path(sys.executable), environment / "trace.jsonl")


def test_a_full_step_of_our_engine_takes_what_dynamos_takes() -> None:
    """Its polynomial at 8,192 tokens, and its decode step with a quarter of a million tokens in use."""
    step_s = ENGINE.prefill.step_of(1, [[(8_192, 0)]])
    decode_s = ENGINE.decode.stretch(1, 262_144).step_s

    assert step_s == pytest.approx((4.209989e-07 * 8192**2 + 1.518344e-02 * 8192 + 16.50142) / 1e3, rel=0.01)
    assert decode_s == pytest.approx((-25.74 * 0.25**2 + 54.01 * 0.25 + 5.74) / 1e3, rel=0.01)
