"""The life of a gateway's processes: how they start, share a port, and end."""

import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import re
import signal
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
import trustme
from fakes.running import FAST_ENGINE, Fleet, command, until, until_async

from loadtest.bench.process_tree import minor_faults, rss_bytes, tree_of
from loadtest.engine import EngineSettings
from loadtest.processes import free_port

LONG = "The quick brown fox jumps over the lazy dog. " * 200
Process = asyncio.subprocess.Process


def chat(text: str = LONG, **more: Any) -> dict[str, Any]:
    return {
        "model": "emulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        **more,
    }


def log_lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.output]  # type: ignore[attr-defined]


async def run(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command that ends by itself; return its exit status and output."""
    async with command(*arguments, environ=environ) as process, asyncio.timeout(60):
        status = await process.wait()
    return status, b"".join(process.output).decode()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def serving(
    port: int, worker_url: str, *flags: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """A gateway process that is ready, and a client of it."""
    url = f"http://127.0.0.1:{port}"
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker_url, *flags)
    async with (
        command("serve", *arguments, ready_url=f"{url}/readiness", environ=environ) as process,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        yield process, client


async def ended(process: Process) -> int:
    async with asyncio.timeout(60):
        return await process.wait()


async def refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_several_processes_share_a_port_the_tree_and_the_metrics(fleet: Fleet) -> None:
    engine = await fleet.engine()
    port, metrics_port = free_port(), free_port()
    flags = ("--workers", "2", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port))
    with tempfile.TemporaryDirectory(prefix="cw-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            process, scraper = await stack.enter_async_context(
                serving(port, engine.url, *flags, environ={"TMPDIR": folder})
            )
            clients: dict[str, httpx.AsyncClient] = {}

            async def both_answered() -> bool:
                """A connection stays with the process that accepted it."""
                client = await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=f"http://127.0.0.1:{port}",
                        limits=httpx.Limits(max_connections=1),
                        timeout=60,
                        trust_env=False,
                    )
                )
                answer = (await client.get("/readiness")).json()
                if answer["workers"]["healthy"]:
                    clients.setdefault(answer["replica"], client)
                return len(clients) == 2

            await until_async(both_answered)
            one, other = clients.values()

            cold = await one.post("/v1/chat/completions", json=chat())
            assert cold.headers["x-cacheway-cached-tokens"] == "0"

            async def learned_by_the_other() -> bool:
                worker = (await other.get("/workers")).json()["workers"][0]
                return bool(worker["held_tokens"] > 0)

            await until_async(learned_by_the_other)
            warm = await other.post("/v1/chat/completions", json=chat(LONG + "And then?"))
            assert int(warm.headers["x-cacheway-cached-tokens"]) > 1000
            for client in (one, other, other):
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

            async def aggregated() -> bool:
                answer = await scraper.get(f"http://127.0.0.1:{metrics_port}/metrics")
                return requests_total(answer.text) == 5

            await until_async(aggregated)
            assert (await scraper.get(f"http://127.0.0.1:{port}/metrics")).status_code == 404

            socket_path = embedded_socket(folder)
            async with redis.asyncio.Redis(unix_socket_path=socket_path) as valkey:
                valkey_pid = (await valkey.info("server"))["process_id"]
            pids = [valkey_pid, *(int(replica.split("-")[-2]) for replica in clients)]
            assert all(alive(pid) for pid in pids)

            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
            assert await refuses(port)
            assert not any(alive(pid) for pid in pids)
        assert left_in(folder) == []
    events = [line["event"] for line in log_lines(process)]
    assert events.count("request.finished") == 5
    assert events.count("gateway.stopped") == 2


async def test_a_killed_process_takes_its_own_streams_with_it_and_is_replaced(fleet: Fleet) -> None:
    """Its counts remain; the stream of the other process goes on to its end."""
    engine = await fleet.engine(EngineSettings(prefill_base_ms=1, tpot_ms=20, emit_interval_ms=20))
    port = free_port()
    body = chat(stream=True, max_tokens=250, ignore_eos=True)
    async with contextlib.AsyncExitStack() as stack:
        process, _ = await stack.enter_async_context(serving(port, engine.url, "--workers", "2"))
        clients: dict[int, httpx.AsyncClient] = {}

        async def client_of_a_process_but(*known: int) -> bool:
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
            )
            answer = (await client.get("/readiness")).json()
            pid = int(answer["replica"].split("-")[-2])
            if answer["workers"]["healthy"] and pid not in known:
                clients.setdefault(pid, client)
            return len(clients) > len(known)

        await until_async(client_of_a_process_but)
        await until_async(lambda: client_of_a_process_but(*clients))
        (dying, its_client), (surviving, other_client) = clients.items()
        assert (await its_client.post("/v1/chat/completions", json=chat())).status_code == 200

        async def counted() -> bool:
            return requests_total((await other_client.get("/metrics")).text) == 1

        await until_async(counted)
        async with (
            other_client.stream("POST", "/v1/chat/completions", json=body) as whole,
            its_client.stream("POST", "/v1/chat/completions", json=body) as broken,
        ):
            lines, broken_lines = whole.aiter_lines(), broken.aiter_lines()
            received = [await anext(lines), await anext(broken_lines)]
            os.kill(dying, signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                received += [line async for line in broken_lines]
            await until_async(lambda: client_of_a_process_but(dying, surviving))
            received = [line async for line in lines if line]
        assert received[-1] == "data: [DONE]"
        replaced = list(clients.values())[-1]
        assert (await replaced.post("/v1/chat/completions", json=chat())).status_code == 200

        async def counted_by_all() -> bool:
            return requests_total((await replaced.get("/metrics")).text) == 3

        await until_async(counted_by_all)
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
    assert [line["event"] for line in log_lines(process)].count("process.ended") == 1


def embedded_socket(folder: str) -> str:
    return str(next(Path(folder).glob("cacheway-*/valkey.sock")))


def left_in(folder: str) -> list[Path]:
    return list(Path(folder).iterdir())


def requests_total(exposition: str) -> float:
    return sum(float(value) for value in re.findall(r"(?m)^cacheway_requests_total\{.*\} (\S+)$", exposition))


async def test_wrong_settings_stop_the_start_with_a_sentence_each(tmp_path: Path) -> None:
    """A flag, the file and the environment reach the process; `test_sources` covers every other sentence."""
    (tmp_path / "cacheway.yaml").write_text("server: {prot: 1}")
    arguments = ("--config", str(tmp_path / "cacheway.yaml"), "--port", "seventy")
    status, output = await run("serve", *arguments, environ={"CACHEWAY_PROT": "1"})
    assert status == 2
    for sentence in ("server.prot", "flag --port: 'seventy' is not allowed for server.port", "CACHEWAY_PROT"):
        assert sentence in output
    assert "Traceback" not in output


async def test_an_unreachable_redis_degrades_and_does_not_stop(fleet: Fleet) -> None:
    engine = await fleet.engine()
    redis_url = f"redis://127.0.0.1:{free_port()}"
    async with serving(free_port(), engine.url, "--redis-url", redis_url) as (process, client):
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        assert (await client.get("/readiness")).json()["shared"]["degraded"]
        assert 'cacheway_degraded{component="redis"} 1.0' in (await client.get("/metrics")).text
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_port_in_use_is_said_and_not_a_traceback(workers: str, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, output = await run(
            *("serve", "--host", "127.0.0.1", "--port", port, "--workers", workers),
            *("--redis-url", redis_url),
        )
    assert status == 3
    assert "address already in use" in output
    assert port in output
    assert "Traceback" not in output


async def test_every_line_of_the_log_is_json_and_none_holds_a_prompt(fleet: Fleet) -> None:
    """The log level is debug, the most detailed."""
    engine = await fleet.engine()
    secret = "xyzzy-plugh"
    flags = ("--log-level", "debug", "--unlisted-models", "refuse")
    async with serving(free_port(), engine.url, *flags) as (process, client):
        for body, status in (
            (chat(secret + LONG), 200),
            (chat(secret + LONG, stream=True), 200),
            (chat(secret, model="nope"), 404),
            ({"messages": [{"role": "user", "content": secret}]}, 400),
        ):
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == status
        broken = await client.post("/v1/chat/completions", content=f"{{{secret}".encode())
        assert broken.status_code == 400
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
    lines = log_lines(process)
    assert all({"time", "level", "event", "message"} <= line.keys() for line in lines)
    finished = [line for line in lines if line["event"] == "request.finished"]
    assert [line["status"] for line in finished] == [200, 200, 404, 400, 400]
    assert len({line["request_id"] for line in finished}) == 5
    assert secret.encode() not in b"".join(process.output)  # type: ignore[attr-defined]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no memory")
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_memory_of_large_bodies_is_kept_for_the_next_and_given_back_when_idle(
    fleet: Fleet, workers: str
) -> None:
    """A page has 4 KB. With glibc's own thresholds the bodies, of 4 MB, fault in 11,000 to 16,000 of them."""
    engine = await fleet.engine(dataclasses.replace(FAST_ENGINE, max_model_len=1 << 24, cache_tokens=1 << 24))
    body = json.dumps(chat(LONG * 466, max_tokens=1)).encode()
    async with serving(free_port(), engine.url, "--workers", workers) as (process, client):

        async def faults() -> int:
            """Return the pages that sixteen requests faulted in, four at a time."""
            before = sum(map(minor_faults, tree_of(process.pid)))
            for _ in range(4):
                sent = [client.post("/v1/chat/completions", content=body) for _ in range(4)]
                assert [answer.status_code for answer in await asyncio.gather(*sent)] == [200] * 4
            return sum(map(minor_faults, tree_of(process.pid))) - before

        def memory() -> int:
            return sum(map(rss_bytes, tree_of(process.pid)))

        await faults()
        assert await faults() < 4000
        most = memory()
        await until(lambda: memory() < most - (12 << 20))


async def test_clients_and_workers_are_reached_over_tls(fleet: Fleet, tmp_path: Path) -> None:
    """One gateway serves HTTPS, and is the https worker of another."""
    engine = await fleet.engine(FAST_ENGINE)
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine.url)
    tls = ("--ssl-certfile", str(tmp_path / "server.pem"), "--ssl-keyfile", str(tmp_path / "server.key"))
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with (
        command("serve", *arguments, *tls, "--redis-url", fleet.redis_url, "--namespace", fleet.namespace),
        httpx.AsyncClient(base_url=url, verify=trust, timeout=60, trust_env=False) as client,
    ):

        async def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await client.get("/readiness")).status_code == 200
            return False

        await until_async(ready)
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        flags = ("--upstream-ca-file", str(tmp_path / "ca.pem"), "--redis-url", fleet.redis_url)
        async with serving(free_port(), url, *flags, "--namespace", f"{fleet.namespace}-front") as (_, front):
            body = chat(stream=True)
            answer = await front.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert answer.headers["x-cacheway-worker"].endswith(f"127.0.0.1:{port}")
            assert answer.text.rstrip().endswith("data: [DONE]")


async def test_a_tls_file_that_cannot_be_used_stops_the_start_of_all_processes(
    tmp_path: Path, redis_url: str
) -> None:
    """`router/test_tls` covers every other unusable file."""
    status, output = await run(
        *("serve", "--port", str(free_port()), "--redis-url", redis_url, "--workers", "2"),
        *("--upstream-client-cert", f"{tmp_path}/none.pem"),
    )
    assert status == 2
    assert "upstream.client_cert" in output
    assert str(tmp_path) in output
    assert "Traceback" not in output
