"""A watched gateway says how long its loop was held, and how many requests one read began."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import time

import pytest

from loadtest.fuzz import watched
from router.loop_lag import LoopLag
from router.proxy.client_protocol import GatewayProtocol


async def test_cpu_that_holds_the_loop_is_told_and_sleep_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, watched.__name__):
        task = asyncio.create_task(watched._run(LoopLag(lambda _: None)))
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 - as a busy machine does
        await asyncio.sleep(0.05)
        assert not caplog.records
        until_s = time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    (record,) = caplog.records
    assert record.event == "fuzz.held"  # type: ignore[attr-defined]
    assert 0.1 < record.held_s < 2.0  # type: ignore[attr-defined]


def test_many_requests_of_one_read_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def received(self: GatewayProtocol, data: bytes) -> None:
        for _ in range(len(data)):
            GatewayProtocol.on_headers_complete(self)

    monkeypatch.setattr(GatewayProtocol, "data_received", received)
    monkeypatch.setattr(GatewayProtocol, "on_headers_complete", lambda _: None)
    watched._count_requests()
    protocol = object.__new__(GatewayProtocol)
    with caplog.at_level(logging.INFO, watched.__name__):
        protocol.data_received(b"x" * watched.BEGUN)
        protocol.data_received(b"x" * watched.BEGUN)
        assert not caplog.records
        protocol.data_received(b"x" * (watched.BEGUN + 1))
    (record,) = caplog.records
    assert record.begun == watched.BEGUN + 1  # type: ignore[attr-defined]


def test_it_is_the_command_line_of_cacheway() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.fuzz.watched", "--without", "C5", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout[:1].isdigit()
