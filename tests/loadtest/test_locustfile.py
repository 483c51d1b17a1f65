"""The locust file, run by locust itself in a process of its own (gevent patches the whole process)."""

import asyncio
import csv
import sys
from pathlib import Path

import pytest

from loadtest.engine import EmulatedEngine, EngineSettings

LOCUSTFILE = Path(__file__).parents[2] / "loadtest" / "locustfile.py"


@pytest.mark.slow
async def test_locust_plays_sessions_and_reports_the_time_to_first_token(tmp_path: Path) -> None:
    settings = EngineSettings(models=("any-model",), cache_tokens=2_000_000, speed=100.0)
    async with EmulatedEngine(settings) as engine:
        locust = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", engine.url, "--headless"),
            *("-u", "4", "-r", "4", "-t", "8s", "--model", "any-model", "--csv", str(tmp_path / "run")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await locust.communicate()

    assert locust.returncode == 0, output.decode()
    with (tmp_path / "run_stats.csv").open() as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    assert int(rows["POST"]["Request Count"]) > 4
    assert int(rows["POST"]["Failure Count"]) == 0
    assert 0 < int(rows["TTFT"]["Request Count"]) <= int(rows["POST"]["Request Count"])
