"""The servers that fail on purpose do fail as they say, and come back."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.running import until, until_async
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ReadOnlyError, ResponseError

from loadtest.chaos import ClusterGroup, SentinelGroup, ValkeyServer

OWNER = """
import asyncio
from loadtest.chaos import ValkeyServer

async def main():
    async with ValkeyServer() as server:
        server.pause()
        print(server.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_restart_keeps_the_data_on_disk_and_an_empty_one_does_not() -> None:
    async with ValkeyServer({"appendonly": "yes", "appendfsync": "always"}) as server:
        await server.command("SET", "key", "1")
        await server.restart()
        assert await server.command("GET", "key") == b"1"
        await server.restart(empty=True)
        assert await server.command("GET", "key") is None


async def test_a_roll_back_forgets_what_came_after_the_copy() -> None:
    async with ValkeyServer(port=None) as server:
        await server.command("SET", "key", "old")
        await server.keep_copy()
        await server.command("SET", "key", "new")
        await server.roll_back()
        assert await server.command("GET", "key") == b"old"


async def test_a_paused_server_answers_when_it_is_resumed() -> None:
    async with ValkeyServer() as server:
        server.pause()
        answer = asyncio.create_task(server.command("PING"))
        _, waiting = await asyncio.wait([answer], timeout=0.2)
        assert waiting
        server.resume()
        assert await answer


async def test_writes_are_refused_for_each_reason_until_it_ends() -> None:
    async with ValkeyServer() as server:

        async def refusal() -> str:
            try:
                await server.command("SET", "key", "1")
            except ReadOnlyError:
                return "READONLY"
            except ResponseError as error:
                return str(error).split(" ", 1)[0]
            return ""

        await server.configure(maxmemory=1)
        assert await refusal() == "command"  # "command not allowed when used memory > 'maxmemory'"
        await server.configure(maxmemory=0)
        await server.configure(min_replicas_to_write=1)
        assert await refusal() == "NOREPLICAS"
        await server.configure(min_replicas_to_write=0)
        await server.read_only()
        assert await refusal() == "READONLY"
        await server.read_only(on=False)
        assert await refusal() == ""


async def test_a_password_is_asked_of_those_who_were_in_already() -> None:
    async with ValkeyServer() as server:
        async with Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0)) as early:
            assert await early.ping()
            await server.require_password("secret")
            with pytest.raises(AuthenticationError):
                await early.ping()
        assert "secret" in server.url
        await server.restart()
        with pytest.raises(AuthenticationError):
            async with Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0)) as late:
                await late.ping()
        await server.require_password("")
        async with Redis.from_url(server.url, protocol=2) as late:
            assert await late.ping()


async def test_sentinels_replace_a_primary_that_was_killed() -> None:
    async with SentinelGroup(replicas=1) as group:
        first = await group.primary()
        assert first is group.servers[0]
        await first.kill()

        async def replaced() -> bool:
            return await group.primary() is group.servers[1]

        await until_async(replaced)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_the_nodes_of_a_cluster_share_the_slots_and_move_them(nodes: int) -> None:
    async with ClusterGroup(nodes) as group:
        owner = await group.owner("{tag}key")
        await owner.command("SET", "{tag}key", "1")
        target = group.servers[(group.servers.index(owner) + 1) % nodes]
        await group.move("{tag}key", target)
        assert await target.command("GET", "{tag}key") == b"1"
        assert await group.owner("{tag}key") is target


async def test_a_server_whose_owner_is_killed_is_killed_too_even_if_paused() -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(await owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    await owner.wait()

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"

    await until(gone)
