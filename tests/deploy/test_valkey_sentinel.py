"""``valkey.sh`` of the Sentinel component, run as the pods run it: three servers and three Sentinels.

Each pod has a loopback address of its own in place of a name. A stand-in for ``valkey-cli``, which the wheel
of the server does not bring, is on the path.
"""

import asyncio
import contextlib
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes.manifests import KUBERNETES
from fakes.running import until_async
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.shared.embedded import server_binary

SCRIPT = KUBERNETES / "components/valkey-sentinel/valkey.sh"

PASSWORD = "0f1e2d3c4b5a"

HOSTS = ("127.1.0.2", "127.1.0.3", "127.1.0.4")

CLI = """#!{python}
import os, sys
from redis import Redis
host, port, *command = sys.argv[2], int(sys.argv[4]), *sys.argv[5:]
client = Redis(host, port, password=os.environ["REDISCLI_AUTH"], decode_responses=True)
answer = client.execute_command(*command)
print("PONG" if answer is True else "\\n".join(answer) if isinstance(answer, list) else answer)
"""


def free_everywhere() -> int:
    """A port that is free on all addresses of the pods."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind((HOSTS[0], 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError):
                for host in HOSTS[1:]:
                    stack.enter_context(socket.socket()).bind((host, port))
                return port


@dataclass
class Cluster:
    """The pods and their processes."""

    folder: Path
    port: int
    sentinel_port: int
    running: dict[tuple[str, str], asyncio.subprocess.Process] = field(default_factory=dict)

    def environ(self, host: str) -> dict[str, str]:
        data = self.folder / host
        data.mkdir(exist_ok=True)
        return {
            **os.environ,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "HOST": host,
            "LISTEN": host,
            "PEERS": " ".join(HOSTS),
            "DATA": str(data),
            "VALKEY_PORT": str(self.port),
            "SENTINEL_PORT": str(self.sentinel_port),
            "DOWN_AFTER_MS": "500",
            "FAILOVER_TIMEOUT_MS": "2000",
            "PASSWORD_FILE": str(self.folder / "password"),
        }

    async def start(self, host: str, part: str) -> None:
        with (self.folder / f"{host}-{part}.log").open("ab") as log:
            self.running[host, part] = await asyncio.create_subprocess_exec(
                *("sh", str(SCRIPT), part), env=self.environ(host), stdout=log, stderr=log
            )

    async def kill(self, host: str, part: str) -> None:
        process = self.running.pop((host, part))
        if process.returncode is None:
            process.kill()
        await process.wait()

    def client(self, host: str, port: int) -> Redis:
        return Redis(host=host, port=port, password=PASSWORD, decode_responses=True, socket_timeout=2)

    async def primary(self, host: str) -> str:
        async with self.client(host, self.sentinel_port) as client:
            address = await client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "cacheway")
            return str(address[0])

    async def role(self, host: str) -> list[str]:
        async with self.client(host, self.port) as client:
            return [str(part) for part in await client.execute_command("ROLE")]

    async def settled(self, primary: str, hosts: tuple[str, ...]) -> bool:
        """True if Sentinels and servers agree on the primary, and its replicas have a copy."""
        with contextlib.suppress(RedisError, OSError):
            for host in hosts:
                role = await self.role(host)
                expected = "master" if host == primary else "slave"
                if role[0] != expected or (expected == "slave" and role[1:4:2] != [primary, "connected"]):
                    return False
                if await self.primary(host) != primary:
                    return False
            return True
        return False

    async def pings(self, host: str, port: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *("sh", str(SCRIPT), "ping", str(port)), env=self.environ(host)
        )
        return await process.wait()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    (tmp_path / "valkey-server").symlink_to(server_binary())
    cli = tmp_path / "valkey-cli"
    cli.write_text(CLI.format(python=sys.executable))
    cli.chmod(cli.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "password").write_text(PASSWORD)
    started = Cluster(tmp_path, free_everywhere(), free_everywhere())
    try:
        for host in HOSTS:
            await started.start(host, "server")
            await started.start(host, "sentinel")
        yield started
    finally:
        for host, part in list(started.running):
            await started.kill(host, part)


async def test_a_lost_primary_is_replaced_and_comes_back_as_a_replica(cluster: Cluster) -> None:
    first, *rest = HOSTS
    await until_async(lambda: cluster.settled(first, HOSTS), 40)
    await until_async(lambda: knows_all(cluster, HOSTS[1]), 40)
    for port in (cluster.port, cluster.sentinel_port):

        async def answers(port: int = port) -> bool:
            """A probe of a pod that is late fails, and the next one counts."""
            return await cluster.pings(first, port) == 0

        await until_async(answers, 40)
        async with Redis(host=first, port=port) as stranger:
            with pytest.raises(RedisError, match=r"(?i)auth"):
                await stranger.ping()

    # The whole pod is gone: the two Sentinels that are left still have a majority.
    await cluster.kill(first, "server")
    await cluster.kill(first, "sentinel")
    assert await cluster.pings(first, cluster.port) != 0
    await until_async(lambda: replaced(cluster, first), 40)
    second = await cluster.primary(HOSTS[1])
    assert second in rest
    async with cluster.client(second, cluster.port) as client:
        await client.set("kept", "yes")

    await cluster.start(first, "server")
    await cluster.start(first, "sentinel")
    await until_async(lambda: cluster.settled(second, HOSTS), 40)
    async with cluster.client(first, cluster.port) as client:
        assert await client.get("kept") == "yes", "a copy of what the new primary has"
    # The Sentinel that came back is the known one: no ghost counts for a majority.
    assert await knows_all(cluster, HOSTS[1])


async def replaced(cluster: Cluster, lost: str) -> bool:
    with contextlib.suppress(RedisError, OSError):
        primary = await cluster.primary(HOSTS[1])
        return primary != lost and (await cluster.role(primary))[0] == "master"
    return False


async def knows_all(cluster: Cluster, host: str) -> bool:
    """True if a Sentinel knows exactly the two other Sentinels and the two replicas."""
    async with cluster.client(host, cluster.sentinel_port) as client:
        facts = (await client.sentinel_masters())["cacheway"]
    return (facts["num-other-sentinels"], facts["num-slaves"]) == (2, 2)
