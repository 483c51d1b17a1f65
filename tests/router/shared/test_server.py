"""URLs, the two kinds of failure, and a Sentinel that is asked where the primary is."""

import asyncio
import socket
from pathlib import Path

import pytest

from router.errors import StateError
from router.shared import EmbeddedValkey
from router.shared.embedded import _binary
from router.shared.server import RedisLink, RedisLost, RedisRefused


@pytest.mark.parametrize("url", ["http://host", "host:6379", "redis+sentinel://host:26379"])
def test_a_url_that_makes_no_sense_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StateError, match="redis://") as caught:
        RedisLink(url, 1.0)
    assert url not in str(caught.value).replace("redis+sentinel://host:port/service", "")


async def test_no_server_is_lost_and_an_error_is_refused(redis_url: str, namespace: str) -> None:
    nowhere = RedisLink("unix:///nonexistent/valkey.sock", 0.5)
    with pytest.raises(RedisLost):
        await nowhere.call("PING")
    await nowhere.aclose()
    link = RedisLink(redis_url, 5.0)
    await link.call("SET", namespace, "text")
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await link.call("XADD", namespace, "*", "a", "b")
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await link.calls(("PING",), ("XADD", namespace, "*", "a", "b"))
    assert await link.calls(("PING",), ("GET", namespace)) == [b"PONG", b"text"]
    await link.aclose()


async def test_a_wrong_password_is_lost_and_not_told(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        link = RedisLink(server.url.replace("unix://", "unix://:hunter2@"), 5.0)
        with pytest.raises(RedisLost) as caught:
            await link.call("PING")
        assert "hunter2" not in str(caught.value)
        await link.aclose()


async def test_a_cancelled_command_is_cancelled(redis_url: str) -> None:
    """Also while redis-py still connects, where it may swallow the cancellation."""
    for steps in range(12):
        link = RedisLink(redis_url, 5.0)

        async def forever(link: RedisLink = link) -> None:
            while True:
                await link.calls(("PING",), ("PING",))

        task = asyncio.create_task(forever())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=10)
        assert done
        assert task.cancelled()
        await link.aclose()


async def test_a_sentinel_leads_to_the_primary(tmp_path: Path) -> None:
    """A primary and a Sentinel on TCP ports of this machine; both are the embedded binary."""
    primary_port, sentinel_port = free_port(), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {sentinel_port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor main 127.0.0.1 {primary_port} 1\n"
    )
    quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    primary = await asyncio.create_subprocess_exec(
        *(str(_binary()), "--port", str(primary_port), "--bind", "127.0.0.1", "--save", ""),
        **quiet,  # type: ignore[arg-type]
        cwd=tmp_path,
    )
    sentinel = await asyncio.create_subprocess_exec(
        *(str(_binary()), str(config), "--sentinel"),
        **quiet,  # type: ignore[arg-type]
        cwd=tmp_path,
    )
    link = RedisLink(f"redis+sentinel://127.0.0.1:{sentinel_port}/main/0", 2.0)
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await link.call("PING")
                    break
                except RedisLost:
                    await asyncio.sleep(0.05)
            assert (await link.call("ROLE"))[0] == b"master"
    finally:
        await link.aclose()
        for process in (sentinel, primary):
            process.kill()
            await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
