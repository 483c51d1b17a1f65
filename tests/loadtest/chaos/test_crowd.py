"""The crowd sends the planned requests, at the planned rate, and accounts for every one."""

import asyncio
from collections import Counter

import pytest
from fakes.running import until

from loadtest.chaos import Crowd, End, sessions
from loadtest.chaos.crowd import KINDS, PRIORITIES, SESSIONS_OPEN_MAX, Client, Draw, mean_service_s
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.engine.faults import Fault
from loadtest.processes import free_port
from loadtest.workload import MODEL

FAST = EngineSettings(models=(MODEL,), prefill_base_ms=0.5, prefill_tokens_per_s=1e7, tpot_ms=0.2)
CLIENTS = [Client("one", 3.0, {"x-tenant-id": "one"}), Client("two", 1.0)]


def crowd(url: str) -> Crowd:
    return Crowd(lambda: {"r1": url}, CLIENTS, rate_per_s=200, deadline_s=20.0, patience_s=20.0)


def test_the_same_seed_draws_the_same_requests() -> None:
    first, second, other = (
        Draw([Client("a")], 1.0, 1),
        Draw([Client("a")], 1.0, 1),
        Draw([Client("a")], 1.0, 2),
    )
    drawn = [first.next() for _ in range(50)]
    assert drawn == [second.next() for _ in range(50)]
    assert drawn != [other.next() for _ in range(50)]


def test_every_kind_class_and_tenant_comes() -> None:
    draw = Draw(CLIENTS, 1.0, 1)
    drawn = [draw.next() for _ in range(300)]
    assert {request.kind for request in drawn} == set(KINDS)
    assert {request.priority for request in drawn} == set(PRIORITIES)
    asked = Counter(request.client.tenant for request in drawn)
    assert asked["one"] == pytest.approx(3 * asked["two"], rel=0.3)
    assert {request.streamed for request in drawn} == {True, False}
    assert {request.deadline_s for request in drawn} == {1.0, None}


def test_a_follow_up_goes_on_where_an_answered_request_ended() -> None:
    draw = Draw([Client("a")], 1.0, 1)
    texts = []
    for _ in range(100):
        request = draw.next()
        cached = request.prompt_tokens - request.uncached_tokens
        assert (cached > 0) == any(request.text.startswith(text) for text in texts)
        assert len(request.text) == 4 * request.prompt_tokens
        texts.append(request.text)
        draw.answered(request)


def test_an_engine_twice_as_fast_needs_half_the_time() -> None:
    slow = EngineSettings(prefill_tokens_per_s=1000, prefill_base_ms=20)
    fast = EngineSettings(prefill_tokens_per_s=2000, prefill_base_ms=10)
    assert mean_service_s(slow) == pytest.approx(2 * mean_service_s(fast))


async def test_all_requests_are_accounted_for_and_keep_the_phase_in_which_they_were_sent() -> None:
    async with EmulatedEngine(FAST) as engine:
        running = crowd(engine.url)
        running.phase = "first"
        async with running:
            await until(lambda: running.sent.total() >= 20)
            running.phase = "second"
            sent = running.sent.total()
            await until(lambda: running.sent.total() >= sent + 20)
            await running.stop()
        assert running.open == 0
        assert len(running.served) == running.sent.total()
        assert {one.visit.end for one in running.served} <= {End.ANSWERED, End.LEFT}
        assert sum(one.phase == "first" for one in running.served) == sent


async def test_what_nobody_answers_is_accounted_for_too() -> None:
    async with crowd(f"http://127.0.0.1:{free_port()}") as running:
        await until(lambda: len(running.served) >= 10)
    assert {one.visit.end for one in running.served} == {End.REFUSED}


async def test_a_crowd_in_an_error_leaves_nothing_running() -> None:
    async def fails() -> None:
        async with crowd(f"http://127.0.0.1:{free_port()}") as running:
            await until(lambda: running.sent)
            raise RuntimeError

    before = len(asyncio.all_tasks())
    with pytest.raises(RuntimeError):
        await fails()
    assert len(asyncio.all_tasks()) == before


async def test_sessions_grow_and_whoever_is_not_answered_has_failed() -> None:
    """An engine that fails, and a replica that is not there."""
    async with EmulatedEngine(FAST) as engine:
        async with sessions([engine.url], rate_per_s=200) as load:
            await load.completed(60)
            # `prompts` are the newest: which those are is the order in which the engine ended.
            await until(lambda: max(map(len, load.prompts)) > 600 * 4)
        assert load.failed == []
        assert {one.kind for one in load.served} == {"short", "follow-up"}
        engine.inject(Fault("error"))
        urls = [engine.url, f"http://127.0.0.1:{free_port()}"]
        async with sessions(urls, rate_per_s=200) as load:
            await load.completed(20)
    assert len(load.failed) == len(load.served)
    assert {one.replica for one in load.failed} == set(urls)


async def test_waiting_for_requests_counts_only_those_sent_since() -> None:
    async with EmulatedEngine(FAST) as engine, sessions([engine.url], rate_per_s=200) as load:
        await load.completed(10)
        ended = len(load.served)
        await load.completed(10)
        assert len(load.served) >= ended + 10
        await load.stop()
        with pytest.raises(TimeoutError):
            await load.completed(1, within_s=0.1)


async def test_sessions_wait_while_many_are_open_and_build_up_no_backlog() -> None:
    """An engine that is silent for as long as it takes to send as many again; then all are answered."""
    async with EmulatedEngine(FAST) as engine:
        engine.inject(Fault("stall"))
        async with sessions([engine.url], rate_per_s=1000) as load:
            await until(lambda: load.open == SESSIONS_OPEN_MAX)
            for _ in range(100):
                await asyncio.sleep(0.001)
                assert load.open <= SESSIONS_OPEN_MAX
            engine.mend()
            load.rate_per_s = 100
            assert load.unsent == 0
            for task in load._running:
                task.cancel()
            await load.completed(20)
