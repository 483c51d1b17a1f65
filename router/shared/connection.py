"""One connection to one Redis server: redis-py's, watched.

redis-py connects, speaks TLS, logs in, frames and parses. Its client above the connection and its
time-outs cost more than all of that (decision 0053) and are left out. Instead:

    open --AUTH SELECT CLIENT--> exchange, one at a time --lost or closed--> every later one fails, for good

There is one timer per connection and none per exchange: the connection is lost when an answer is due and
*nothing at all* came for the timeout, so a large answer may take longer than that, and a large command as
long as the server takes some of it. The timer looks twice, so that a stall of this process, behind which
the answer waits unread, is not taken for the server's silence.

An exchange that is cancelled loses the connection: its answer would be taken for the next one's.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import hiredis
from redis._parsers import _AsyncHiredisParser
from redis.asyncio.connection import AbstractConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import RedisError, ResponseError

from router.shared.address import Endpoint
from router.shared.failures import RedisLost, text_of

Argument = bytes | str | int
Command = tuple[Argument, ...]

# Long enough for one turn of the event loop to read what has come meanwhile.
SECOND_LOOK_S = 0.01
READ_BYTES = 1 << 16
# What a socket takes at once, about; of a larger command it may take a part.
LARGE_BYTES = 1 << 16

# Its type hints know tuples of one only.
_packed: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]


class _Parser(_AsyncHiredisParser):
    """redis-py's parser, which also knows when anything came last."""

    heard_s = 0.0

    async def read_from_socket(self) -> bool:
        """Read what has come."""
        await super().read_from_socket()  # type: ignore[no-untyped-call]
        self.heard_s = time.monotonic()
        return True


class _TlsConnection(TcpConnection):
    """redis-py's own would trust the system's authorities beside those that were given."""

    def __init__(self, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls}


class Connection:
    """An open connection; make it with `open`.

    Attributes:
        endpoint: Where it leads.
        lost: Why it is of no more use; None while it is, as far as is known.
    """

    def __init__(self, endpoint: Endpoint, redis: AbstractConnection, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.lost: str | None = None
        self._redis = redis
        self._timeout_s = timeout_s
        self._asked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._looked = False
        self._unsent_bytes = 0
        assert redis._writer is not None
        assert redis._reader is not None
        assert isinstance(redis._parser, _Parser)
        # redis-py drops its own references when it fails.
        self._transport, self._incoming, self._parser = redis._writer.transport, redis._reader, redis._parser

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        login: Mapping[str, Any],
        tls: ssl.SSLContext | None,
        timeout_s: float,
        name: str = "cacheway",
    ) -> Self:
        """Connect and log in.

        Args:
            endpoint: Where.
            login: As in `RedisAddress`.
            tls: As in `RedisAddress`.
            timeout_s: Longest wait to connect, and once more to log in; then the longest silence while an
                answer is due.
            name: Shown to operators (``CLIENT LIST``).

        Raises:
            RedisLost: Nobody there, not in time, or the login was refused.
        """
        redis = _made(endpoint, login, tls, timeout_s)
        try:
            async with asyncio.timeout(2 * timeout_s):
                await redis.connect()  # type: ignore[no-untyped-call]
                # Whatever the answer: it asks for a sign of life, and its refusal harms nobody.
                await redis.send_command("CLIENT", "SETNAME", name, check_health=False)
                with contextlib.suppress(ResponseError):
                    await redis.read_response()
            return cls(endpoint, redis, timeout_s)
        except BaseException as error:
            await redis.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise RedisLost(f"no connection to {endpoint} within {2 * timeout_s:g} s") from None
            if isinstance(error, RedisError):
                # Without the cause: some servers repeat the arguments of a command that they do not know.
                said = _without(login.get("password", ""), text_of(error.__cause__ or error))
                raise RedisLost(f"no connection to {endpoint}: {said}") from None
            raise

    @property
    def usable(self) -> bool:
        """Whether it is not known to be lost."""
        return self.lost is None and not self._incoming.at_eof()

    @property
    def silence_s(self) -> float:
        """How long nothing has come although an answer is due, seconds; 0 if none is."""
        return time.monotonic() - max(self._asked_s, self._parser.heard_s) if self._asked_s else 0.0

    async def is_clean(self) -> bool:
        """Whether it is usable, and nothing has come that nobody asked for."""
        return self.usable and not await self._redis.can_read()

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send some commands and wait for all their answers, errors (`ResponseError`) included.

        Raises:
            RedisLost: The connection ended before the last answer.
        """
        if self.lost is not None:
            raise RedisLost(self.lost)
        self._asked_s = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)
        packed = _packed(commands[0]) if len(commands) == 1 else b"".join(map(_packed, commands))
        self._unsent_bytes = len(packed) if len(packed) > LARGE_BYTES else 0
        replies: list[Any] = []
        try:
            await self._redis.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    replies.append(await self._redis.read_response())
                except ResponseError as error:
                    replies.append(error)
        except RedisError as error:
            raise RedisLost(self.lose(text_of(error))) from error
        except BaseException:
            self.lose("a command was cut off half-way")
            raise
        finally:
            self._asked_s = 0.0
        return replies

    def lose(self, reason: str) -> str:
        """Give the connection up: the exchange under way fails, and every later one.

        Returns:
            Why it is lost: for this reason, or for the one that was first.
        """
        if self.lost is None:
            self.lost = reason
            if self._timer is not None:
                self._timer.cancel()
            self._transport.abort()
        return self.lost

    async def aclose(self) -> None:
        """Close, and wait until the socket is."""
        self.lose("closed")
        await self._redis.disconnect()

    def _look(self) -> None:
        """Give the connection up if the server has been silent for too long."""
        self._timer = None
        if not self._asked_s:
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            # The server takes what is sent, so it is not silent.
            self._asked_s, self._unsent_bytes = time.monotonic(), unsent_bytes
        left_s = self._timeout_s - self.silence_s
        if left_s <= 0 and self._looked:
            self.lose(f"no answer within {self._timeout_s:g} s")
            return
        self._looked = left_s <= 0
        wait_s = SECOND_LOOK_S if self._looked else left_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)


def _made(
    endpoint: Endpoint, login: Mapping[str, Any], tls: ssl.SSLContext | None, timeout_s: float
) -> AbstractConnection:
    """A connection of redis-py that is not open yet.

    Without ``socket_timeout``: it would make a task for each command, and on Python 3.11 now and then
    swallow a cancellation (`asyncio.wait_for`).
    """
    options: dict[str, Any] = {
        **login,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "socket_read_size": READ_BYTES,
        "parser_class": _Parser,
        "protocol": 2,
        "driver_info": None,
    }
    if not endpoint.port:
        return UnixDomainSocketConnection(path=endpoint.host, **options)
    if tls is not None:
        return _TlsConnection(tls, host=endpoint.host, port=endpoint.port, **options)
    return TcpConnection(host=endpoint.host, port=endpoint.port, **options)


def _without(password: str, text: str) -> str:
    """What a server said, without what it repeats of the password."""
    said = text.partition(", with args")[0]
    return said.replace(password, "***") if password else said
