"""A running engine is measured: what it was set to comes back, and what it does not say is noted."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.engine.engine import EmulatedEngine
from loadtest.engine.settings import EngineSettings
from loadtest.profile.engine_file import EngineFileError, read_engine
from loadtest.profile.live import Answer, _steps, measure, measured_engine
from loadtest.simulator.cli import main as simulate

SPEED, C0_TOKENS = 25_000.0, 8_000.0


def settings(**more: Any) -> EngineSettings:
    return EngineSettings(
        cache_tokens=100_000,
        prefill_tokens_per_s=SPEED,
        prefill_base_ms=30.0,
        context_tokens=C0_TOKENS,
        tpot_ms=30.0,
        tpot_batch=60,
        max_model_len=9_000,
        max_running=16,
        **more,
    )


async def _in_thread(work: Callable[[], Any]) -> Any:
    import asyncio

    return await asyncio.to_thread(work)


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_probes_give_back_what_an_engine_is_set_to(dialect: Any, tmp_path: Path) -> None:
    """Within a tenth or two, on a machine that does other things at the same time."""
    async with EmulatedEngine(settings(dialect=dialect)) as engine:
        path = tmp_path / "measured.yaml"
        own = await _in_thread(lambda: measured_engine(engine.url, seconds=1, probe=True, path=path))
    given = own.given
    assert given.dialect == dialect
    assert given.cache.tokens == pytest.approx(100_000, abs=64)
    assert given.prefill.tokens_per_s == pytest.approx(SPEED, rel=0.2)
    assert given.prefill.context_doubling_tokens == pytest.approx(C0_TOKENS, rel=0.4)
    assert given.decode.step_s == pytest.approx(0.03, rel=0.1)
    assert read_engine(path).given.cache == given.cache
    assert any("Prefill from the fastest of" in note for note in given.notes)
    assert simulate(f"--engine {path} --requests-max 20 --policy expected_cost --jobs 1".split()) == 0


async def test_counters_alone_give_speed_and_pace(tmp_path: Path) -> None:
    """Traffic of others, one request at a time: the counters' sums are then those of the engine alone."""
    draw = random.Random(1)
    async with EmulatedEngine(settings()) as engine, httpx.AsyncClient(timeout=60) as client:
        import asyncio

        async def traffic() -> None:
            while True:
                body = {
                    "model": "emulated",
                    "prompt": [draw.randrange(9_000) for _ in range(draw.randrange(500, 4_000))],
                    "max_tokens": 12,
                    "stream": True,
                }
                await client.post(f"{engine.url}/v1/completions", json=body)

        sending = asyncio.create_task(traffic())
        own = await _in_thread(lambda: measure(engine.url, seconds=6, probe=False))
        sending.cancel()
    # The quadratic part is in these sums, and cannot be told from the linear one.
    assert SPEED / 1.6 < own.given.prefill.tokens_per_s < SPEED * 1.3
    assert own.given.decode.step_s + own.given.decode.request_s == pytest.approx(0.0305, rel=0.15)
    assert any("cannot be seen in counters" in note for note in own.given.notes)


async def test_an_idle_engine_says_that_probes_would_help() -> None:
    async with EmulatedEngine(settings()) as engine:
        with pytest.raises(EngineFileError, match="let --probe send some"):
            await _in_thread(lambda: measure(engine.url, seconds=1, probe=False, sleep=lambda _: None))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("10.0.0.7:30001", "is no URL of an engine"),
        ("http://127.0.0.1:9", "cannot be measured: ConnectError"),
    ],
)
def test_a_wrong_address_is_told(url: str, why: str) -> None:
    with pytest.raises(EngineFileError, match=why):
        measure(url, seconds=1, probe=False)


def test_pace_counts_while_all_decode() -> None:
    one = Answer(0.0, [0.1 * step for step in range(1, 21)], 100, 0, 20)
    late = Answer(0.0, [0.5 + 0.1 * step for step in range(1, 21)], 300, 0, 20)
    assert [(n, round(pace, 6)) for n, _, pace in _steps([one, late])] == [(2.0, 0.1), (2.0, 0.1)]
