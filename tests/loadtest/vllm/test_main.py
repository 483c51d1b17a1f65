"""The command line."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from loadtest.vllm.__main__ import main
from loadtest.vllm.home import VARIABLE, EnginesHome


def test_models_are_made_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert main(["models", "qwen3"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "models" / "qwen3")
    assert (tmp_path / "models" / "qwen3" / "tokenizer.json").exists()


def test_without_vllm_nothing_is_served_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert main(["serve", "qwen3"]) == 1
    assert "python -m loadtest.vllm install" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_engines_run_until_a_signal_comes(home: EnginesHome, number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.vllm", "serve", "qwen3", "--count", "2", "--", "--seed", "1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, VARIABLE: str(home.folder), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(60):
        while not lines or not lines[-1].startswith("CACHEWAY_ENGINES_RUNNING='qwen3=http://127.0.0.1:"):
            lines.append((await process.stdout.readline()).decode())
            assert lines[-1], lines
        logs = [Path(line.split()[-1]) for line in lines if " events ipc://" in line]
        assert len(logs) == 2
        assert all("--seed 1" in log.read_text() for log in logs)
        process.send_signal(number)
        assert await process.wait() == 0
    assert not any(log.exists() for log in logs)
