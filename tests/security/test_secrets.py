"""Readers of a process's settings, log and errors find no secret."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fakes.running import command, until_async

from loadtest.processes import free_port
from router.settings import Settings

SECRETS = {
    "CACHEWAY_API_KEY": "canary-api-key-1111",
    "CACHEWAY_WORKER_API_KEY": "canary-worker-key-2222",
    "CACHEWAY_REDIS_URL": "redis://user:canary-redis-3333@127.0.0.1:1/0?sentinel_password=canary-redis-4444",
}


def run(*arguments: str, environ: dict[str, str] | None = None) -> str:
    """Return all output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "router", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ".", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("config",),
        ("config", "--api-key", "canary-api-key-1111 with a space"),
        ("config", "--redis-url", "htp://user:canary-redis-3333@redis"),
        ("config", "--worker-urls", "http://user:canary-worker-key-2222@engine"),
        ("config", "--api-key", "canary-api-key-1111", "--api-key-file", "/nowhere"),
        ("serve", "--port", "0", "--host", "203.0.113.1"),
        ("serve", "--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "/nowhere.key"),
        ("keys", "check", "/nowhere"),
    ],
)
def test_no_command_shows_a_secret(arguments: tuple[str, ...]) -> None:
    said = run(*arguments, environ=SECRETS)
    assert said
    assert "canary" not in said


def test_a_file_with_a_secret_in_the_wrong_place_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "server: {api_key: [canary-1], port: canary-2}\nfleet: {worker_api_key: {canary-3: 1}}\n"
        "shared: {redis_url: 'redis+x://:canary-4@h'}\n"
    )
    said = run("config", "--config", str(file))
    assert "server.api_key" in said
    assert "canary-2" in said  # a port is no secret
    for secret in ("canary-1", "canary-3", "canary-4"):
        assert secret not in said


async def test_keys_in_files_are_used_follow_their_files_and_are_not_logged(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    """At the level of debug, with a wrong key and a broken file in between."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        body = b'{"data":[{"id":"m"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    files = {name: tmp_path / name for name in ("api", "worker", "redis")}
    files["api"].write_text("canary-api-1\n")
    files["worker"].write_text("canary-worker-1\n")
    files["redis"].write_text(f"{redis_url}\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as engine,
        command(
            *(
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--log-level",
                "debug",
                "--admin-port",
                "0",
            ),
            *("--worker-urls", f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}"),
            *("--api-key-file", str(files["api"]), "--worker-api-key-file", str(files["worker"])),
            *("--redis-url-file", str(files["redis"]), "--namespace", namespace),
            *("--health-check-interval-secs", "0.2"),
            ready_url=f"{url}/readiness",
        ) as process,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):

        async def asked(key: str) -> int:
            answer = await client.post(
                "/v1/completions",
                json={"model": "m", "prompt": "x"},
                headers={"authorization": f"Bearer {key}"} if key else {},
            )
            return answer.status_code

        assert (await client.get("/workers")).status_code == 401
        assert [await asked(key) for key in ("canary-api-1", "canary-wrong", "")] == [200, 401, 401]
        files["api"].write_text("canary-api-2\n")
        files["worker"].write_text("")

        async def changed() -> bool:
            return await asked("canary-api-2") == 200

        await until_async(changed)
        assert await asked("canary-api-1") == 401
        files["worker"].write_text("canary-worker-2\n")

        async def shown() -> bool:
            await asked("canary-api-2")
            return b"canary-worker-2" in heads[-1]

        await until_async(shown)
    assert any(head.startswith(b"GET /health") and b"canary-worker-1" in head for head in heads)
    assert any(head.startswith(b"POST") and b"Bearer canary-worker-1" in head for head in heads)
    assert not any(b"canary-api" in head for head in heads)
    log = b"".join(process.output).decode()  # type: ignore[attr-defined]
    assert "secret.refused" in log
    assert "canary" not in log


def test_a_traceback_shows_no_secret_of_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.model_validate({"server": {"api_key": "canary-key"}})
    try:
        settings.server.port.no_such_thing  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError:
        logging.getLogger("router").exception("failed with %s and %r", settings, settings.server)
    assert "AttributeError" in caplog.text
    assert "canary" not in caplog.text
