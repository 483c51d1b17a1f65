"""The locust file, run by locust itself in a process of its own (gevent patches the whole process)."""

import asyncio
import contextlib
import csv
import json
import os
import sys
from pathlib import Path

import pytest
from fakes.running import Fleet

from loadtest.engine import EngineSettings

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "loadtest" / "locustfile.py"
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


async def locust(
    fleet: Fleet, folder: Path, *arguments: str
) -> tuple[str, dict[tuple[str, str], dict[str, str]]]:
    """Run locust against a gateway with two engines; its output, and its statistics by type and name."""
    settings = EngineSettings(models=("any-model",), cache_tokens=2_000_000, speed=20.0)
    engines = [await fleet.engine(settings) for _ in range(2)]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", gateway.url, "--headless"),
        *("--csv", str(folder / "run"), "--only-summary", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=ENVIRON,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    with (folder / "run_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    return output.decode(), rows


async def test_a_smoke_test_keeps_its_promises_and_leaves_a_report(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    """A quarter of its minute."""
    async with contextlib.AsyncExitStack() as stack:
        output, rows = await locust(
            Fleet(redis_url, namespace, stack), tmp_path, "--preset", "smoke", "--run-time", "15s"
        )

    assert "smoke: all promises kept" in output
    for kind in ("chat", "agent"):
        assert int(rows["TTFT", kind]["Request Count"]) > 5
        assert int(rows["completed", kind]["Request Count"]) == int(rows["TTFT", kind]["Request Count"])
        assert float(rows["TPOT", kind]["Median Response Time"] or 0) + 1 > 0.0
    assert sum(int(row["Failure Count"]) for (kind, _), row in rows.items() if kind) == 0
    report = (tmp_path / "cacheway-smoke.html").read_text()
    assert "<html" in report
    assert "TTFT" in report


@pytest.mark.deep
async def test_processes_share_a_trace_and_end_with_it(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 100 * row, "input_length": 600, "output_length": 4, "hash_ids": [1, row + 2]}
        for row in range(20)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    async with contextlib.AsyncExitStack() as stack:
        _, seen = await locust(
            Fleet(redis_url, namespace, stack), tmp_path, "--trace", str(trace), "--processes", "2"
        )
    assert int(seen["POST", "/v1/completions"]["Request Count"]) == 20
    assert int(seen["completed", "trace"]["Failure Count"]) == 0


async def test_a_trace_that_cannot_be_read_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(LOCUSTFILE),
            "--host",
            "http://127.0.0.1:1",
            "--headless",
        ),
        *("--trace", "missing.jsonl"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
        env=ENVIRON,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode
    assert b"missing.jsonl" in output
    assert b"Traceback" not in output
