"""Tenants at the gateway: real sockets, emulated engines, keys that change while it serves."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.running import FAST_ENGINE, Fleet, RunningGateway, command, until

from loadtest.engine import EngineSettings
from loadtest.processes import free_port
from router.tenants.keys import digest_of

GUIDE = Path(__file__).parents[2] / "docs" / "tenants.md"
TEXT = "The quick brown fox jumps over the lazy dog. " * 200

WIDE = EngineSettings(
    prefill_tokens_per_s=1e9,
    prefill_base_ms=0.1,
    tpot_ms=0,
    max_model_len=10_000_000,
    cache_tokens=20_000_000,
)


def chat(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "emulated", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def written(file: Path, **tenants: str) -> Path:
    """Write a keys file; the key of each tenant is its name, and more fields may follow."""
    lines = [
        f"  {name}: {{keys: [sha256:{digest_of(name.encode()).hex()}]{more}}}\n"
        for name, more in tenants.items()
    ]
    other = file.with_suffix(".new")
    other.write_text("tenants:\n" + "".join(lines))
    other.replace(file)
    return file


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return written(
        tmp_path / "keys.yaml",
        acme=", salt: 0123456789abcdef",
        other=", salt: fedcba9876543210",
        guest="",
        friend="",
    )


async def cached_tokens(
    gateway: RunningGateway, key: str, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> tuple[int, int]:
    """Send one request; return the cached tokens that the gateway predicted and the engine reported."""
    answer = await gateway.client.post(path, json=body, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    said = answer.json()
    if path == "/generate":
        reported = said["meta_info"]
    else:
        reported = said["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
    return int(answer.headers["x-cacheway-cached-tokens"]), reported["cached_tokens"]


@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        ("vllm", "/v1/chat/completions"),
        ("vllm", "/v1/completions"),
        ("sglang", "/v1/chat/completions"),
        ("sglang", "/generate"),
    ],
)
async def test_tenants_share_a_cache_unless_one_is_kept_apart(
    fleet: Fleet, keys: Path, dialect: Any, path: str
) -> None:
    """Gateway and engine agree in each case on the cached part, thanks to the salt."""
    engine = await fleet.engine(replace(FAST_ENGINE, dialect=dialect))
    gateway = await fleet.gateway(engine.url, tenancy={"keys_file": str(keys)})
    bodies = {
        "/v1/chat/completions": chat(),
        "/v1/completions": {"model": "emulated", "prompt": TEXT, "max_tokens": 2},
        "/generate": {"text": TEXT, "sampling_params": {"max_new_tokens": 2}},
    }
    field = "extra_key" if path == "/generate" else "cache_salt"
    for key, own, known in (
        ("guest", None, False),
        ("friend", None, True),
        ("acme", None, False),
        ("acme", None, True),
        ("other", None, False),
        ("acme", "mine", False),
        ("acme", "mine", True),
        ("other", "mine", False),
        ("guest", "mine", False),
        ("guest", None, True),
    ):
        body = bodies[path] if own is None else {**bodies[path], field: own}
        predicted, reported = await cached_tokens(gateway, key, body, path)
        assert ((predicted > 0), (reported > 0)) == (known, known), (key, own)


async def test_large_bodies_are_kept_apart_too(fleet: Fleet, keys: Path) -> None:
    engine = await fleet.engine(WIDE)
    gateway = await fleet.gateway(engine.url, tenancy={"keys_file": str(keys)})
    text = 'say "hello", 日本 \n' * 100_000
    for key, own, known in (
        ("acme", {}, False),
        ("acme", {}, True),
        ("other", {}, False),
        ("acme", {"cache_salt": "x" * 3000}, False),
        ("acme", {"cache_salt": "x" * 3000}, True),
    ):
        predicted, reported = await cached_tokens(gateway, key, chat(text, **own))
        assert ((predicted > 0), (reported > 0)) == (known, known), (key, own)


async def test_no_worker_sees_a_key_or_the_body_of_another(fleet: Fleet, keys: Path) -> None:
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            received.extend(head)
            for line in head.split(b"\r\n"):
                if line.startswith(b"content-length: "):
                    received.extend(await reader.readexactly(int(line[16:])))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = await fleet.gateway(
        f"http://127.0.0.1:{port}", tenancy={"keys_file": str(keys)}, server={"api_key": "gateways-own"}
    )
    for headers in (bearer("acme"), {"x-api-key": "guest"}, bearer("gateways-own")):
        answered = await gateway.client.post("/v1/chat/completions", json=chat("hello"), headers=headers)
        assert answered.status_code == 200
    requests = bytes(received).split(b"POST ")[1:]
    assert [b"0123456789abcdef" in request for request in requests] == [True, False, False]
    assert b"bearer" not in received.lower()
    assert b"x-api-key" not in received.lower()
    assert b"gateways-own" not in received
    server.close()


async def test_keys_change_while_the_gateway_serves(fleet: Fleet, keys: Path) -> None:
    """A new key, a broken file in between, a removed tenant: each takes effect within two looks."""
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, tenancy={"keys_file": str(keys)}, server={"api_key": "ours"})

    async def status(key: str) -> int:
        answer = await gateway.client.post("/v1/chat/completions", json=chat("x"), headers=bearer(key))
        return answer.status_code

    async def shown() -> dict[str, Any]:
        answer = await gateway.client.get("/tenants", headers=bearer("ours"))
        return dict(answer.json())

    watch = gateway.process.tenants.keys
    assert watch is not None
    assert [await status(key) for key in ("acme", "guest", "new", "ours")] == [200, 200, 401, 200]
    written(keys, acme="", new="")
    await until(lambda: watch.loaded_count == 2)
    assert [await status(key) for key in ("acme", "guest", "new", "ours")] == [200, 401, 200, 200]
    written(keys, acme="]")
    await until(lambda: watch.refused_count == 1)
    assert [await status(key) for key in ("acme", "guest", "new")] == [200, 401, 200]
    assert "is not YAML" in (await shown())["file"]["problem"]
    metrics = (await gateway.client.get("/metrics")).text
    assert 'cacheway_degraded{component="keys"} 1.0' in metrics
    assert 'cacheway_keys_file_reads_total{outcome="refused"} 1.0' in metrics
    assert 'cacheway_tenant_requests_total{outcome="completed",tenant="new"} 2.0' in metrics
    written(keys, new=", weight: 3")
    await until(lambda: watch.loaded_count == 3)
    assert [await status(key) for key in ("acme", "new")] == [401, 200]
    described = await shown()
    assert described["file"]["problem"] is None
    assert [(tenant["name"], tenant["weight"]) for tenant in described["tenants"]] == [("new", 3.0)]
    assert 'cacheway_degraded{component="keys"} 0.0' in (await gateway.client.get("/metrics")).text


async def test_a_gateway_does_not_start_with_a_keys_file_that_is_wrong(
    tmp_path: Path, redis_url: str
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants:\n  acme: {weight: -1}\n")
    async with command(
        "serve", "--port", str(free_port()), "--redis-url", redis_url, "--tenant-keys-file", str(file)
    ) as process:
        assert await process.wait() == 2
    (line,) = process.output  # type: ignore[attr-defined]
    assert line.decode().startswith(f"cacheway: tenancy.keys_file: {file} line 2: tenants.acme.weight: ")


async def test_the_guides_commands_do_what_it_says(fleet: Fleet, tmp_path: Path) -> None:
    """All commands, in order, in one shell; the gateway starts at the guide's step."""
    program = tmp_path / "bin" / "cacheway"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m router "$@"\n')
    program.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(GUIDE.parents[1]),
        "ADMIN_TOKEN": "ours",
        "no_proxy": "*",
    }

    async def run(block: str) -> str:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", block),
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await shell.communicate()
        assert shell.returncode == 0, output.decode()
        return output.decode()

    blocks = [part.partition("\n```")[0] for part in GUIDE.read_text().split("```sh\n")[1:]]
    make, write, ask, rotate, mount, share, show = blocks
    await run(make)
    assert "1 of 1 keys valid now, weight 2, class high, cache kept apart, 600 requests" in await run(write)
    engine = await fleet.engine()
    gateway = await fleet.gateway(
        engine.url, tenancy={"keys_file": str(tmp_path / "keys.yaml")}, server={"api_key": "ours"}
    )
    environ["GATEWAY"] = environ["ADMIN"] = gateway.url
    assert await run(ask) == "200\n"
    assert "2 of 2 keys valid now, one until 2999-12-31" in await run(rotate)
    watch = gateway.process.tenants.keys
    assert watch is not None
    await until(lambda: watch.loaded_count == 2)
    assert await run(ask) == "200\n"
    assert await run(ask.replace("acme.txt", "next.txt")) == "200\n"
    await run(mount)
    assert ", 25.0% of KV space" in await run(share)
    await until(lambda: watch.loaded_count == 3)
    assert await run(ask) == "200\n"
    await run(show)
    (tenant,) = httpx.Response(200, content=(tmp_path / "tenants.json").read_bytes()).json()["tenants"]
    assert (tenant["name"], tenant["isolated"], tenant["keys"]["valid"]) == ("acme", True, 2)
    assert tenant["cache"]["share"] == 0.25
    assert "sha256" in (tmp_path / "tenants-secret.yaml").read_text()
