import asyncio
import contextlib
import os

import pytest

from loadtest.bench.large_bodies import (
    Lag,
    body_of,
    cpu_seconds,
    delays_s,
    head_of,
    lag_of,
    memory_bytes,
    percentile,
    table,
    upload,
)
from router.metric_families import LOOP_LAG
from router.metrics import Metrics


def test_a_delay_is_what_a_gap_is_longer_than_the_tokens_are_apart() -> None:
    """Tokens come every 10 ms; the second read is 5 ms late, and the third one on time again."""
    assert delays_s([1.0, 1.015, 1.02]) == pytest.approx([0.005, 0.0])


def test_the_lag_of_a_phase_is_what_was_counted_in_it() -> None:
    metrics = Metrics("1")
    metrics.distributions[LOOP_LAG].observe(0.4)
    before = lag_of(metrics.exposition()[0].decode())
    for lag_s in [0.0004] * 90 + [0.004] * 10:
        metrics.distributions[LOOP_LAG].observe(lag_s)
    lag = lag_of(metrics.exposition()[0].decode()).since(before)
    assert (lag.quantile_s(0.5), lag.quantile_s(0.99), lag.quantile_s(1.0)) == (0.001, 0.005, 0.005)


def test_percentiles_are_values_that_were_seen() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]


def test_the_table_has_a_line_for_each_phase() -> None:
    lines = table({"quiet": ([0.001, 0.003], Lag({0.002: 10, float("inf"): 10}))}).splitlines()
    assert lines[2] == "| quiet | 2 | 2.0 ms | 3.0 ms | 3.0 ms | <= 2 ms | <= 2 ms | <= 2 ms |"


def test_a_process_has_memory_and_used_cpu() -> None:
    assert 0 < memory_bytes(os.getpid(), "VmRSS") <= memory_bytes(os.getpid(), "VmHWM")
    assert cpu_seconds(os.getpid()) > 0


@pytest.mark.parametrize("status", [b"200 OK", b"500 Oops"])
async def test_an_upload_sends_its_body_and_says_if_it_was_refused(status: bytes) -> None:
    body = body_of("m", "x" * 1000)
    received: list[bytes] = []

    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                received.append(await reader.readexactly(len(head_of(body) + body)))
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\n{}" % status)
        writer.close()
        ended.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        if status == b"200 OK":
            await upload(port, body, 2)
            assert received == [head_of(body) + body] * 2
        else:
            with pytest.raises(RuntimeError, match="500"):
                await upload(port, body, 2)
        await ended.wait()
