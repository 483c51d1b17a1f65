"""What a call to Redis costs by our link, by redis-py's connection and by redis-py's client.

    python -m loadtest.bench.redis_link

CPU of the event loop's thread for one call after the other, on a Valkey of its own behind a Unix socket.
The ways take turns, and each figure is the median of the rounds: a noisy neighbour disturbs all alike.
"""

import statistics
import time
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

ROUNDS = 7
CALLS = 2000
ENTRIES = 4
"""In the stream that is read; a reply in the log has three or four (`loadtest.bench.shared_log`)."""

KEY = "cw:{bench}:log"
APPEND: Command = ("XADD", KEY, "MAXLEN", "~", 1_000_000, "*", "v", 1, "r", b"a/01234567", "o", bytes(400))
READ: Command = ("XREAD", "COUNT", 256, "BLOCK", 200, "STREAMS", KEY, "0-0")

Call = Callable[[Command], Awaitable[Any]]


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
                "redis-py's connection, without, hiredis packs": exchange,
                "ours (router.shared.server.RedisLink)": lambda command: link.call(*command),
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
    return {
        way: [statistics.median(column) for column in zip(*rows, strict=True)] for way, rows in taken.items()
    }


async def _round(ways: dict[str, Call], command: Command) -> dict[str, float]:
    """Microseconds of each way for one call."""
    figures = {}
    for way, call in ways.items():
        began_s = time.thread_time()
        for _ in range(CALLS):
            await call(command)
        figures[way] = (time.thread_time() - began_s) / CALLS * 1e6
    return figures


if __name__ == "__main__":
    main()
