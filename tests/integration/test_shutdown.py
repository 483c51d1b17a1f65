"""How gateway processes end when a signal tells them to, at any moment."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from fakes.running import Fleet, command, serving, until, until_async

from loadtest.engine import EngineSettings
from loadtest.processes import free_port
from policies import Left, Op, Placed, decode_ops

ENGINE = EngineSettings(prefill_base_ms=1, tpot_ms=20, emit_interval_ms=20)
Process = asyncio.subprocess.Process


def stream(tokens: int) -> dict[str, Any]:
    return {
        "model": "emulated",
        "messages": [{"role": "user", "content": "The quick brown fox. " * 100}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


@contextlib.asynccontextmanager
async def started(
    fleet: Fleet, *flags: str, workers: str = "1", delay_s: str = "0"
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """A gateway all of whose processes serve."""
    engine = await fleet.engine(ENGINE)
    ends = ("--shutdown-delay-secs", delay_s, "--workers", workers)
    async with serving(fleet.redis_url, fleet.namespace, [engine.url], *ends, *flags) as (process, client):
        await until(lambda: events(process).count("gateway.started") == int(workers))
        yield process, client


async def ended(process: Process) -> int:
    async with asyncio.timeout(60):
        return await process.wait()


def events(process: Process) -> list[str]:
    return [json.loads(line)["event"] for line in process.output]  # type: ignore[attr-defined]


async def said(fleet: Fleet) -> list[Op]:
    """All operations in the log."""
    async with redis.asyncio.Redis.from_url(fleet.redis_url) as client:
        entries = await client.xrange(f"cw:{{{fleet.namespace}}}:log")
    return [op for _, fields in entries for op in decode_ops(fields[b"o"])[0]]


async def heartbeats(fleet: Fleet) -> list[bytes]:
    async with redis.asyncio.Redis.from_url(fleet.redis_url) as client:
        return [key async for key in client.scan_iter(f"cw:{{{fleet.namespace}}}:replica:*")]


def accepts(port: int | None) -> bool:
    assert port is not None
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.deep)])
async def test_while_it_leaves_it_is_not_ready_and_serves_everybody_once_more(
    fleet: Fleet, workers: str
) -> None:
    """A delay of two seconds; the stream lasts for three, and is finished after it."""
    async with started(fleet, workers=workers, delay_s="2") as (process, client):
        async with client.stream("POST", "/v1/chat/completions", json=stream(150)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)

            async def unready() -> bool:
                answer = await client.get("/readiness")
                return answer.status_code == 503 and answer.json()["status"] == "shutting_down"

            await until_async(unready)
            alive = await client.get("/liveness")
            served = await client.post("/v1/chat/completions", json={**stream(2), "stream": False})
            for kept in (alive, served):
                assert (kept.status_code, kept.headers["connection"]) == (200, "close")
            await until(lambda: not accepts(client.base_url.port))
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert not any("error" in json.loads(line[6:]) for line in rest[:-1])
        assert await ended(process) == 0
    assert (
        events(process).count("gateway.stopping") == events(process).count("gateway.stopped") == int(workers)
    )
    assert "gateway.cut" not in events(process)
    operations = await said(fleet)
    assert len([op for op in operations if isinstance(op, Left)]) == int(workers)
    assert isinstance(operations[-1], Left)
    assert await heartbeats(fleet) == []


@pytest.mark.parametrize(
    ("workers", "number", "status"), [("1", signal.SIGTERM, 143), ("2", signal.SIGINT, 130)]
)
async def test_a_second_signal_ends_at_once_and_releases_what_was_reserved(
    fleet: Fleet, workers: str, number: signal.Signals, status: int
) -> None:
    """The stream would last for half an hour, and so would the delay."""
    async with started(fleet, workers=workers, delay_s="1800") as (process, client):
        async with client.stream("POST", "/v1/chat/completions", json=stream(90_000)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            await until(lambda: events(process).count("gateway.stopping") == int(workers))
            process.send_signal(number)
            rest = [line async for line in lines if line]
        assert '"code":"shutting_down"' in rest[-1]
        assert await ended(process) == status
    operations = await said(fleet)
    left_us = {op.replica: op.at_us for op in operations if isinstance(op, Left)}
    placed = [op for op in operations if isinstance(op, Placed)]
    # Redis may have taken an entry whose answer the end cut off: it is sent again, and counts once.
    assert len({op.request_id for op in placed}) == 1
    assert all(op.at_us <= left_us[op.replica] for op in placed)
    assert len(left_us) == int(workers)
    assert await heartbeats(fleet) == []


async def test_what_outlasts_the_grace_is_cut_and_the_end_is_clean_all_the_same(fleet: Fleet) -> None:
    async with started(fleet, "--shutdown-grace-period-secs", "0.5") as (process, client):
        async with client.stream("POST", "/v1/chat/completions", json=stream(90_000)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
        assert '"code":"shutting_down"' in rest[-1]
        assert await ended(process) == 0
    assert "gateway.cut" in events(process)
    operations = await said(fleet)
    assert isinstance(operations[-1], Left)
    assert [op.at_us <= operations[-1].at_us for op in operations if isinstance(op, Placed)] == [True]


async def test_signals_to_the_whole_process_group_end_it_gracefully(fleet: Fleet) -> None:
    """As Ctrl-C in a terminal and systemd send them: to the supervisor and to its processes."""
    async with started(fleet, workers="2") as (process, client):
        async with client.stream("POST", "/v1/chat/completions", json=stream(100)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            for pid in (*children_of(process.pid), process.pid):
                os.kill(pid, signal.SIGINT)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert await ended(process) == 0


async def test_processes_whose_supervisor_was_killed_end_gracefully(fleet: Fleet) -> None:
    async with started(fleet, workers="2") as (process, client):
        async with client.stream("POST", "/v1/chat/completions", json=stream(100)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.kill()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        await until(lambda: not accepts(client.base_url.port))
        await until(lambda: events(process).count("gateway.stopped") == 2)
    assert await heartbeats(fleet) == []


def children_of(pid: int) -> list[int]:
    """Processes that it started and that run."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"\nPPid:\t{pid}\n" in (entry / "status").read_text():
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("workers", "number"), [pytest.param("1", signal.SIGINT, marks=pytest.mark.deep), ("2", signal.SIGTERM)]
)
async def test_a_signal_while_it_waits_for_its_workers_ends_it(
    fleet: Fleet, workers: str, number: signal.Signals
) -> None:
    """The worker accepts a probe and does not answer: the start waits for it."""
    probes: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        probes.append(writer)

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as worker:
        url = f"http://127.0.0.1:{worker.sockets[0].getsockname()[1]}"
        async with command(
            *("serve", "--host", "127.0.0.1", "--port", str(free_port()), "--worker-urls", url),
            *("--workers", workers, "--redis-url", fleet.redis_url, "--namespace", fleet.namespace),
        ) as process:
            await until(lambda: len(probes) >= int(workers))
            process.send_signal(number)
            assert await ended(process) == 0
        for probe in probes:
            probe.close()
    assert events(process).count("gateway.stopped") == int(workers)
    assert await heartbeats(fleet) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.deep)])
async def test_a_signal_while_its_processes_import_ends_all(fleet: Fleet, number: signal.Signals) -> None:
    async with command(
        *("serve", "--host", "127.0.0.1", "--port", str(free_port()), "--workers", "2"),
        *("--redis-url", fleet.redis_url, "--namespace", fleet.namespace),
    ) as process:
        # Beside the two, there is multiprocessing's tracker of resources.
        await until(lambda: len(children_of(process.pid)) == 3)
        children = children_of(process.pid)
        process.send_signal(number)
        assert await ended(process) == 0
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    assert b"Traceback" not in b"".join(process.output)  # type: ignore[attr-defined]
