"""A running engine is measured: its settings come back, and missing ones are noted."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.engine.engine import EmulatedEngine
from loadtest.engine.settings import EngineSettings
from loadtest.profile.engine_file import EngineFileError, read_engine
from loadtest.profile.live import (
    USUAL_TOKEN_IDS,
    Answer,
    _ask,
    _steps,
    _token_ids,
    measure,
    measured_engine,
    prefill_prices,
    probe_lengths,
)
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
    # The quadratic part is in these sums, and cannot be separated from the linear one.
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


@pytest.mark.parametrize("most", [0, 16, 100, 1_000, 4_000, 32_767, 32_768, 10**6])
def test_probes_have_more_lengths_than_prefill_has_prices(most: int) -> None:
    """Three lengths would be met by any three prices, so a short context is cut more finely."""
    lengths = probe_lengths(most)
    assert len(lengths) >= 7
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == min(max(most, 16), 32_768)


def _engine(tokenize: httpx.Response, told: list[dict[str, Any]], completion: str) -> httpx.Client:
    """Return a client of an engine with one answer to each question."""

    def answer(request: httpx.Request) -> httpx.Response:
        told.append(json.loads(request.content))
        return tokenize if request.url.path == "/tokenize" else httpx.Response(200, text=completion)

    return httpx.Client(base_url="http://engine", transport=httpx.MockTransport(answer))


def test_probes_are_made_of_the_ids_of_the_engines_own_vocabulary() -> None:
    """A small model has 2,048 ids; vLLM answers others with an error in the stream."""
    ids = [3 * number for number in range(200)]
    with _engine(httpx.Response(200, json={"tokens": ids}), [], "") as client:
        assert _token_ids(client, "m") == ids


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404),
        httpx.Response(200, json={"tokens": [1, 2, 3]}),
        httpx.Response(200, json={"tokens": [[1], None, -4]}),
        httpx.Response(200, json=[]),
    ],
)
def test_an_engine_that_does_not_tokenize_gets_usual_ids(answer: httpx.Response) -> None:
    with _engine(answer, [], "") as client:
        assert _token_ids(client, "m") == USUAL_TOKEN_IDS


def test_the_engines_own_words_are_told_if_it_refuses_a_probe_in_the_stream() -> None:
    """The status is 200 then: vLLM has sent the head already."""
    text = 'data: {"error": {"message": "Token id 20000 is out of vocabulary"}}\n\ndata: [DONE]\n\n'
    with (
        _engine(httpx.Response(404), [], text) as client,
        pytest.raises(EngineFileError, match="Token id 20000 is out of vocabulary"),
    ):
        _ask(client, "m", [1, 2], 1)


def test_prefill_that_seems_all_quadratic_keeps_a_linear_part() -> None:
    """A tiny model spends its time on attention: the fit gives times back, with finite prices."""
    observed = [(u, 0.0, 0.002 + 1e-8 * u * u / 2) for u in (256.0, 512.0, 1_024.0, 2_048.0, 4_096.0)]
    found = prefill_prices(observed, [], "probes")
    assert found is not None
    for u, _, seconds in observed[2:]:
        fitted_s = found.prompt_s + u / found.tokens_per_s * (1 + u / 2 / found.context_doubling_tokens)
        assert fitted_s == pytest.approx(seconds, rel=0.1)
