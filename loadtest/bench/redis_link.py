"""CPU of a call to Redis: by redis-py's client, by its connection, by our link, and by a bare protocol.

    python -m loadtest.bench.redis_link

CPU of the event loop's thread per call, on a Valkey of its own behind a Unix socket. The ways take turns;
figures are lower quartiles of the rounds, since noise only adds.
"""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis
import uvloop
from redis.asyncio import Redis
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from router.shared import EmbeddedValkey
from router.shared.connection import Command
from router.shared.server import RedisLink

ROUNDS = 30
CALLS = 300
ENTRIES = 4
"""In the stream that is read; a reply in the log has three or four (`loadtest.bench.shared_log`)."""

KEY = "cw:{bench}:log"
APPEND: Command = ("XADD", KEY, "MAXLEN", "~", 1_000_000, "*", "v", 1, "r", b"a/01234567", "o", bytes(400))
READ: Command = ("XREAD", "COUNT", 256, "BLOCK", 200, "STREAMS", KEY, "0-0")

Call = Callable[[Command], Awaitable[Any]]


class Bare(asyncio.Protocol):
    """The least that pipelines: hiredis on a socket, without time-outs, errors or a login."""

    def __init__(self) -> None:
        self._answers = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Give answers to the calls, the oldest first."""
        self._answers.feed(data)
        while (reply := self._answers.gets()) is not False:
            self._waiting.popleft().set_result(reply)

    async def call(self, command: Command) -> Any:
        """Run one command."""
        self.transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        return await done


def main() -> None:
    """Measure and print."""
    figures = uvloop.run(_measured())
    print(f"{'CPU per call, µs':44}" + "".join(f"{name:>8}" for name in ("PING", "XREAD", "XADD")))
    for way, row in figures.items():
        print(f"{way:44}" + "".join(f"{value:8.1f}" for value in row))


async def _measured() -> dict[str, list[float]]:
    async with EmbeddedValkey() as valkey:
        path = valkey.url.removeprefix("unix://")
        once = Retry(NoBackoff(), 0)
        link = RedisLink(valkey.url, 1.5)
        connection = UnixDomainSocketConnection(path=path, socket_timeout=None, protocol=2)
        transport, bare = await asyncio.get_running_loop().create_unix_connection(Bare, path)
        async with (
            Redis(unix_socket_path=path, protocol=2, retry=once, socket_timeout=1.5) as client,
            Redis(unix_socket_path=path, protocol=2, retry=once, socket_timeout=None) as patient,
        ):

            async def exchange(command: Command) -> Any:
                packed = hiredis.pack_command(command)  # type: ignore[arg-type]
                await connection.send_packed_command(packed, check_health=False)
                return await connection.read_response()

            ways: dict[str, Call] = {
                "redis-py's client, with a time-out": lambda command: client.execute_command(*command),  # type: ignore[no-untyped-call]
                "redis-py's client, without": lambda command: patient.execute_command(*command),  # type: ignore[no-untyped-call]
                "redis-py's connection, one call at a time": exchange,
                "our link (router.shared.server.RedisLink)": lambda command: link.call(*command),
                "a bare protocol, no promise kept": bare.call,
            }
            taken: dict[str, list[list[float]]] = {way: [] for way in ways}
            for _ in range(ROUNDS):
                await client.delete(KEY)
                for _ in range(ENTRIES):
                    await client.execute_command(*APPEND)  # type: ignore[no-untyped-call]
                row = [await _round(ways, command) for command in (("PING",), READ, APPEND)]
                for way in ways:
                    taken[way].append([figure[way] for figure in row])
        await connection.disconnect()
        await link.aclose()
        transport.close()
    return {
        way: [statistics.quantiles(column)[0] for column in zip(*rows, strict=True)]
        for way, rows in taken.items()
    }


async def _round(ways: dict[str, Call], command: Command) -> dict[str, float]:
    figures = {}
    for way, call in ways.items():
        began_s = time.thread_time()
        for _ in range(CALLS):
            await call(command)
        figures[way] = (time.thread_time() - began_s) / CALLS * 1e6
    return figures


if __name__ == "__main__":
    main()
