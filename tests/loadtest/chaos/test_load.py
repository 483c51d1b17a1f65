"""The steady load sends what it says, at the rate it says, and hides no failure."""

import pytest
from fakes.running import until

from loadtest.chaos import SteadyLoad
from loadtest.chaos.load import TURNS
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.engine.faults import Fault
from loadtest.processes import free_port
from loadtest.workload import MODEL

FAST = EngineSettings(models=(MODEL,), prefill_base_ms=0.5, prefill_tokens_per_s=1e6, tpot_ms=0.2)


async def test_sessions_grow_until_they_are_over() -> None:
    """An engine alone has all of a session cached but for what the turn added.

    The slower the answers, the more sessions share the requests, and the later the first is over.
    """
    async with EmulatedEngine(FAST) as engine, SteadyLoad([engine.url], rate_per_s=200) as load:
        await until(lambda: load.prompts, within_s=60.0)
        await load.stop()
        assert load.failed == []
        reused = sum(served.cached_tokens > 0.5 * served.prompt_tokens for served in load.served)
        assert reused >= (TURNS - 1) * len(load.prompts)
        assert {served.ttft_s is None for served in load.served} == {True, False}
    assert len({served.number for served in load.served}) == len(load.served)


async def test_failures_of_all_kinds_are_kept() -> None:
    """One replica that is not there, one whose engine fails: every answer is an error, streamed or not."""
    async with EmulatedEngine(FAST) as engine:
        engine.inject(Fault("error"))
        urls = [engine.url, f"http://127.0.0.1:{free_port()}"]
        async with SteadyLoad(urls, rate_per_s=200) as load:
            await load.completed(20)
    assert len(load.failed) == len(load.served)
    assert {served.replica for served in load.failed} == set(urls)


async def test_leaving_waits_for_the_answers_that_are_on_their_way() -> None:
    async with EmulatedEngine(FAST) as engine:
        async with SteadyLoad([engine.url], rate_per_s=200) as load:
            await until(lambda: load.served)
        ended = len(load.served)
    assert len(load.served) == ended
    assert load.failed == []
    assert {served.number for served in load.served} == set(range(ended))


async def test_waiting_for_requests_counts_only_those_sent_since() -> None:
    async with EmulatedEngine(FAST) as engine, SteadyLoad([engine.url], rate_per_s=200) as load:
        await load.completed(10)
        sent = max(served.number for served in load.served)
        await load.completed(10)
        assert sum(served.number > sent for served in load.served) >= 10
        await load.stop()
        with pytest.raises(TimeoutError):
            await load.completed(1, within_s=0.1)
