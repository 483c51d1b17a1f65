"""How the server of one process ends; with real processes and signals it is in the integration tests.

A delay or grace of an hour is one that the test does not wait for.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fakes.running import Fleet, QuietServer, RunningGateway, until

from loadtest.engine import EngineSettings
from loadtest.processes import free_port
from router.server import SIGNALS, EarlyEnd, GatewayServer
from router.serving import GatewayConfig
from router.settings import Settings

HOUR_S = 3600.0
ENDLESS = EngineSettings(prefill_base_ms=1, tpot_ms=20, emit_interval_ms=20)
STREAM = {
    "model": "emulated",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 100_000,
    "ignore_eos": True,
    "stream": True,
}


@pytest_asyncio.fixture
async def fleet(redis_url: str, namespace: str) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        yield Fleet(redis_url, namespace, stack)


async def gateway(fleet: Fleet, **server: Any) -> RunningGateway:
    engine = await fleet.engine(ENDLESS)
    return await fleet.gateway(engine.url, server=server)


async def ended(running: RunningGateway) -> int:
    """Wait for the end; the exit status."""
    await until(running.task.done)
    assert running.idle()
    return running.server.status


async def test_told_to_end_it_serves_on_and_sends_everybody_away(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = await gateway(fleet, shutdown_delay_s=HOUR_S, shutdown_grace_s=7)
    client = running.client
    assert (await client.get("/readiness")).status_code == 200
    running.server.handle_exit(signal.SIGTERM)

    unready = await client.get("/readiness")
    assert (unready.status_code, unready.json()["status"]) == (503, "shutting_down")
    assert unready.headers["connection"] == "close"
    assert (await client.get("/liveness")).status_code == 200
    served = await client.post("/v1/completions", json={"model": "emulated", "prompt": "hi", "max_tokens": 1})
    assert (served.status_code, served.headers["connection"]) == (200, "close")
    (said,) = [record for record in caplog.records if getattr(record, "event", "") == "gateway.stopping"]
    assert (said.reason, said.delay_s, said.grace_s) == ("SIGTERM", HOUR_S, 7)  # type: ignore[attr-defined]
    assert not running.task.done()

    running.server.end_now()
    assert await ended(running) == 0


async def test_it_ends_by_the_times_that_were_set_while_it_served(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = await gateway(fleet, shutdown_delay_s=HOUR_S, shutdown_grace_s=HOUR_S)
    values = {"server.shutdown_delay_s": 0, "server.shutdown_grace_s": 7}
    assert (await running.client.patch("/settings", json={"values": values})).status_code == 200
    running.server.handle_exit(signal.SIGTERM)
    assert await ended(running) == 0
    (said,) = [record for record in caplog.records if getattr(record, "event", "") == "gateway.stopping"]
    assert (said.delay_s, said.grace_s) == (0, 7)  # type: ignore[attr-defined]


async def test_after_the_delay_nobody_can_connect_and_the_status_is_0(fleet: Fleet) -> None:
    running = await gateway(fleet, shutdown_delay_s=0.1)
    running.server.handle_exit(signal.SIGTERM)
    assert await ended(running) == 0
    with pytest.raises(httpx.ConnectError):
        await running.client.get("/liveness")


async def test_ctrl_c_does_not_wait_for_balancers(fleet: Fleet) -> None:
    running = await gateway(fleet, shutdown_delay_s=HOUR_S)
    running.server.handle_exit(signal.SIGINT)
    assert await ended(running) == 0


async def test_what_outlasts_the_grace_is_cut_with_an_error_and_the_status_is_0(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    running = await gateway(fleet, shutdown_delay_s=0, shutdown_grace_s=0.3)
    async with running.client.stream("POST", "/v1/chat/completions", json=STREAM) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        running.server.handle_exit(signal.SIGTERM)
        rest = [line async for line in lines if line]
    assert '"code":"shutting_down"' in rest[-1]
    assert await ended(running) == 0
    (cut,) = [record for record in caplog.records if getattr(record, "event", "") == "gateway.cut"]
    assert (cut.inflight, cut.connections) == (1, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("signals", "status"),
    [
        ((signal.SIGTERM, signal.SIGTERM), 143),
        ((signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGQUIT,), 131),
    ],
)
async def test_a_second_signal_ends_at_once(
    fleet: Fleet, signals: tuple[signal.Signals, ...], status: int
) -> None:
    """Nothing is waited for: neither the delay, nor the stream, nor the grace."""
    running = await gateway(fleet, shutdown_delay_s=HOUR_S, shutdown_grace_s=HOUR_S)
    async with running.client.stream("POST", "/v1/chat/completions", json=STREAM) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        for number in signals:
            running.server.handle_exit(number)
        rest = [line async for line in lines if line]
    assert '"code":"shutting_down"' in rest[-1]
    assert await ended(running) == status


async def test_a_supervised_process_hears_a_repeated_signal_once(fleet: Fleet) -> None:
    """A terminal signals the supervisor and its processes, and the supervisor passes it on."""
    running = await gateway(fleet, shutdown_delay_s=HOUR_S, shutdown_grace_s=HOUR_S)
    server = running.server
    server.supervised = True
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        server.handle_exit(number)
    assert (await running.client.get("/readiness")).json()["status"] == "shutting_down"
    assert not server.should_exit
    server.handle_exit(signal.SIGQUIT)
    assert await ended(running) == 131


async def test_an_application_request_that_lasts_too_long_is_cut(fleet: Fleet) -> None:
    """Flushing asks a worker that never answers."""

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silenced.append(writer)

    silenced: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as worker:
        url = f"http://127.0.0.1:{worker.sockets[0].getsockname()[1]}"
        running = await fleet.gateway(url, server={"shutdown_delay_s": 0, "shutdown_grace_s": 0.1})
        flush = asyncio.create_task(running.client.post("/flush_cache"))
        await until(lambda: running.server.server_state.tasks)
        running.server.handle_exit(signal.SIGTERM)
        assert await ended(running) == 0
        with pytest.raises(httpx.TransportError):
            await flush
        for writer in silenced:
            writer.close()


async def test_told_before_it_serves_it_ends_as_soon_as_it_has_started(redis_url: str) -> None:
    here = {"host": "127.0.0.1", "port": free_port()}
    server = QuietServer(GatewayConfig(Settings.model_validate({"server": here}), redis_url))
    server.handle_exit(signal.SIGTERM)
    async with asyncio.timeout(60):
        await server.serve()
    assert server.status == 0


async def test_signals_are_handled_while_it_serves_and_as_before_afterwards(redis_url: str) -> None:
    server = GatewayServer(GatewayConfig(Settings(), redis_url))
    before = [signal.getsignal(number) for number in SIGNALS]
    with server.capture_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: server.should_exit)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: server.status)
    assert server.status == 130
    assert [signal.getsignal(number) for number in SIGNALS] == before


async def test_a_sigterm_whose_exception_was_dropped_ends_the_process_later(redis_url: str) -> None:
    """Python drops a SystemExit inside a finalizer: a start on a busy machine then served on for ever."""
    server = GatewayServer(GatewayConfig(Settings(), redis_url))
    early = EarlyEnd()
    before = signal.signal(signal.SIGTERM, early)
    try:
        with server.capture_signals():
            assert not server.should_exit
        with pytest.raises(SystemExit):
            early(signal.SIGTERM, None)
        with server.capture_signals():
            assert server.should_exit
        assert signal.getsignal(signal.SIGTERM) is early
    finally:
        signal.signal(signal.SIGTERM, before)
