"""The command runs whole against engines that run already; emulated ones do."""

import asyncio
from pathlib import Path

import pytest

from loadtest.bench.ablation.__main__ import main
from loadtest.bench.ablation.results import read
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.vllm import MODEL_NAME

ENGINE = EngineSettings(
    dialect="vllm", models=(MODEL_NAME,), block_tokens=32, prefill_tokens_per_s=1e6, tpot_ms=0.2
)


@pytest.fixture(autouse=True)
def _models_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEWAY_ENGINES", str(tmp_path / "engines"))


async def test_every_arm_gets_the_same_load_on_empty_caches(tmp_path: Path) -> None:
    """All reuse is within a run, and answers and engines count the same."""
    out = tmp_path / "out"
    async with EmulatedEngine(ENGINE) as one, EmulatedEngine(ENGINE) as other:
        flags = ["--kinds", "qwen3", "--running", f"qwen3={one.url},{other.url}", "--out", str(out)]
        load = ["--rounds", "1", "--agents", "3", "--conversations", "1", "--think-s", "0.01"]
        arms = ["--arms", "round-robin", "history"]
        assert await asyncio.to_thread(main, [*flags, *load, *arms]) == 0

    first, second = read(out / "engines.json").runs
    assert {first.arm, second.arm} == {"round-robin", "history"}
    assert first.prompt_tokens == second.prompt_tokens
    for run in (first, second):
        assert run.engine_hit_tokens == run.cached_tokens
        assert 0 < run.hit_ratio < 1
    assert (out / "engines.png").exists()


async def test_the_report_alone_needs_no_engine(tmp_path: Path) -> None:
    assert await asyncio.to_thread(main, ["--report-only", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "engines.png").exists()


async def test_engines_that_do_not_answer_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--kinds", "qwen3", "--running", "qwen3=http://127.0.0.1:1,http://127.0.0.1:1"]
    assert await asyncio.to_thread(main, [*flags, "--out", str(tmp_path)]) == 1
    assert "connect" in capsys.readouterr().err


def test_a_kind_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--running", "other=http://127.0.0.1:1"])
    assert "is not KIND=URL,URL" in capsys.readouterr().err
