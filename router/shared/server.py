"""A link to Redis: a connection that is made when it is needed, to the server that is right then.

    call --> connected? --no--> discovery --> connection --.
                 `---------------yes-----------------------+--> exchange --> answer, or an error named
                                                                            by what to do about it

Nothing is ever tried twice here: `router.shared.state` decides on repetitions.
After `RedisLost` the connection is dropped, so that the next call looks for the server again; this is
how a demoted primary, a failover and a slot that moved are left behind. Messages never contain the
URL, which may hold a password.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from router.shared.address import Endpoint, parse_address
from router.shared.connection import Argument, Command, Connection
from router.shared.discovery import connect, replaced
from router.shared.failures import RedisLost, RedisRefused, failure_of

__all__ = [
    "SERVER_INTERVAL_S",
    "Argument",
    "Command",
    "RedisLink",
    "RedisLost",
    "RedisRefused",
    "leave_replaced",
]

SERVER_INTERVAL_S = 1.0
"""Between two looks whether a link still leads to the right server (`RedisLink.replaced`)."""


class RedisLink:
    """One connection to Redis, opened when needed; calls share it and do not wait for each other.

    A blocking command holds back the answers behind it, so it needs a link of its own. Answers are what
    the server sent: bytes, whole numbers, None, and lists of these.

    Args:
        url: As in `router.shared.address`.
        timeout_s: Longest wait to connect, and longest silence while an answer is due.
        home: A key; in a cluster the link leads to the owner of its slot.
        name: Shown to operators (``CLIENT LIST``).
        measured: Told the monotonic seconds just before and after every round trip.

    Raises:
        StateError: The URL makes no sense.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        home: str = "",
        name: str = "cacheway",
        measured: Callable[[float, float], None] | None = None,
    ) -> None:
        self._address = parse_address(url)
        self._home = home
        self._name = name
        self._timeout_s = timeout_s
        self._measured = measured
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """True if there is a connection that is not known to be lost."""
        return self._connection is not None and self._connection.lost is None

    @property
    def endpoint(self) -> Endpoint | None:
        """Server of the connection; None if there is none."""
        return self._connection.endpoint if self._connection is not None and self.connected else None

    @property
    def silence_s(self) -> float:
        """Time without any byte although an answer is due, seconds; 0 if none is."""
        return self._connection.silence_s if self._connection else 0.0

    async def call(self, *command: Argument) -> Any:
        """Run one command.

        Raises:
            RedisLost: No connection, no answer in time, or a server that cannot serve us.
            RedisRefused: The server answered with an error.
        """
        return (await self._exchange((command,)))[0]

    async def calls(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip; raises like `call`, for the first that failed."""
        return await self._exchange(commands) if commands else []

    @property
    def has_sentinels(self) -> bool:
        """True if Sentinels can name another server."""
        return self._address.kind == "sentinel"

    async def replaced(self) -> bool:
        """True if another server is the right one by now, although this one answers."""
        endpoint = self.endpoint
        return endpoint is not None and await replaced(self._address, endpoint, self._timeout_s)

    def lose(self, reason: str) -> None:
        """Give up the connection, if there is one: calls under way fail, and the next call looks again."""
        if self._connection is not None:
            self._connection.lose(reason)

    async def aclose(self) -> None:
        """Close the connection; the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = self._connection
        if connection is None or connection.lost is not None:
            connection = await self._connect()
        started_s = time.monotonic()
        replies = await connection.exchange(commands)
        if self._measured is not None:
            self._measured(started_s, time.monotonic())
        for reply in replies:
            if isinstance(reply, ResponseError):
                failure = failure_of(reply)
                if isinstance(failure, RedisLost):
                    connection.lose(str(failure))
                raise failure from reply
        return replies

    async def _connect(self) -> Connection:
        async with self._connecting:
            connection = self._connection
            if connection is None or connection.lost is not None:
                self._connection = connection = await connect(
                    self._address, self._home, self._timeout_s, self._name
                )
            return connection


async def leave_replaced(*links: RedisLink) -> None:
    """Leave primaries that were replaced, until cancelled; return at once if none can be.

    A wake-up costs an idle gateway more than this look.
    """
    while any(link.has_sentinels for link in links):
        await asyncio.sleep(SERVER_INTERVAL_S)
        for link in links:
            if await link.replaced():
                link.lose("the Sentinels name another primary")
