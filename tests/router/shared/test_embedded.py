"""The embedded Valkey answers, is private, comes back when it dies, and dies with its owner."""

import asyncio
import os
import signal
import stat
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.errors import StateError
from router.shared import EmbeddedValkey


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """A zombie is dead: nothing reaps the orphans of a test in a container."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def answers(url: str) -> bool:
    try:
        return await ping(url)
    except RedisError:
        return False


async def ping(url: str) -> bool:
    async with Redis.from_url(url) as client:
        return bool(await client.ping())


async def test_it_answers_on_a_private_socket_and_leaves_nothing_behind() -> None:
    async with EmbeddedValkey() as server:
        assert await ping(server.url)
        socket = Path(server.url.removeprefix("unix://"))
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        pid = server.pid
    assert not socket.parent.exists()
    assert not alive(pid)


async def test_it_has_no_tcp_port_no_disk_no_statistics_and_never_evicts() -> None:
    async with EmbeddedValkey(memory_bytes_max=64 << 20) as server, Redis.from_url(server.url) as client:
        names = ("port", "save", "appendonly", "maxmemory", "maxmemory-policy")
        config = await client.config_get(*names, "maxclients", "latency-tracking")
    assert config == {
        "port": "0",
        "save": "",
        "appendonly": "no",
        "maxmemory": str(64 << 20),
        "maxmemory-policy": "noeviction",
        "maxclients": "1000",
        "latency-tracking": "no",
    }


async def test_it_is_started_again_on_the_same_url_when_it_dies() -> None:
    async with EmbeddedValkey() as server:
        first = server.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: server.pid != first)
        async with asyncio.timeout(60):
            while not await answers(server.url):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("turns", range(0, 40, 8))
async def test_it_ends_whatever_its_keeper_is_doing(turns: int) -> None:
    """A cancellation of the keeper that got lost in a client of Redis was waited for for ever."""
    async with EmbeddedValkey() as server:
        first = server.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: server.pid != first)
        for _ in range(turns):
            await asyncio.sleep(0.0005)
    assert not alive(server.pid)


async def test_it_dies_with_an_owner_that_was_killed() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent("""
            import asyncio
            from router.shared import EmbeddedValkey
            async def main():
                async with EmbeddedValkey() as server:
                    print(server.pid, server.url, flush=True)
                    await asyncio.sleep(60)
            asyncio.run(main())
        """),
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    line = (await owner.stdout.readline()).decode().split()
    pid = int(line[0])
    assert alive(pid)
    owner.kill()
    await owner.communicate()
    await until(lambda: not alive(pid))


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="ended with status"):
        async with EmbeddedValkey(directory=tmp_path, memory_bytes_max=-1):
            pass


async def test_a_socket_path_that_is_too_long_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="TMPDIR"):
        async with EmbeddedValkey(directory=tmp_path / ("x" * 100)):
            pass


async def test_a_missing_wheel_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StateError, match=r"the extra embedded.*--redis-url"):
        async with EmbeddedValkey():
            pass
