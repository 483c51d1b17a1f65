"""Facts that an engine gives about itself, in a process of this test or another."""

import pytest

from loadtest.vllm import EnginesHome, VllmEngine, VllmServer, VllmSettings


async def test_metrics_are_summed_over_the_labels_that_are_not_given(home: EnginesHome) -> None:
    async with VllmServer(VllmSettings(), home=home) as server:
        assert await server.metric("x_total") == 5
        assert await server.metric("x_total", a="2") == 3
        assert await server.metric("nothing_total") == 0


async def test_an_engine_that_runs_already_names_its_endpoints_and_its_limit(home: EnginesHome) -> None:
    async with VllmServer(VllmSettings(), home=home) as server:
        engine = await VllmEngine.at(server.url)
        assert (engine.kv_events, engine.kv_replay) == ("ipc:///e", "")
        assert await engine.max_model_tokens() == 77


@pytest.mark.parametrize("flag", ["--mute"])
async def test_an_engine_without_events_has_no_endpoints(home: EnginesHome, flag: str) -> None:
    async with VllmServer(VllmSettings(flags=(flag,)), home=home) as server:
        assert (await VllmEngine.at(server.url)).kv_events == ""
