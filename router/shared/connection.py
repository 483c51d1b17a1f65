"""One connection to one Redis server, opened by redis-py: commands out, answers in, in the same order.

redis-py connects, speaks TLS, logs in and names the errors. Then its transport is handed to the protocol
here, which costs a quarter of redis-py's client (decision 0053):

    call --pack--> socket --> server --> socket --hiredis--> oldest call that waits

Any number of calls may be under way; answers belong to them in turn. A call that is cancelled keeps
its place, and its answer is dropped. There is one timer per connection and none per call: the
connection is lost when an answer is due and *nothing at all* came for the timeout, so a large answer
may take longer than that, and a large command as long as the server takes some of it. The timer looks
twice, so that a stall of this process, behind which the answer waits unread, is not taken for the server's
silence.

    open --AUTH SELECT CLIENT--> in use --lost or closed--> every call fails, for good
"""

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import hiredis
from redis._parsers import BaseParser
from redis.asyncio.connection import AbstractConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from router.shared.address import Endpoint
from router.shared.failures import RedisLost, text_of

Argument = bytes | str | int
Command = tuple[Argument, ...]

# Long enough for one turn of the event loop to read what has come meanwhile.
SECOND_LOOK_S = 0.01
# What a socket takes at once, about; of a larger command it may take a part.
LARGE_BYTES = 1 << 16
CLOSE_S = 1.0

# Its type hints know tuples of one only.
_packed: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]


class _Batch:
    """Commands sent together: the answers so far, and who waits for the last one."""

    __slots__ = ("done", "expected", "replies")

    def __init__(self, expected: int, done: asyncio.Future[list[Any]]) -> None:
        self.expected = expected
        self.replies: list[Any] = []
        self.done = done


class _TlsConnection(TcpConnection):
    """redis-py's own would trust the system's authorities beside those that were given."""

    def __init__(self, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls}


class Connection(asyncio.Protocol):
    """An open connection; make it with `open`.

    Args:
        endpoint: Where it leads.
        redis: An open connection of redis-py, of which nothing else is asked any more.
        timeout_s: Longest silence while an answer is due.

    Attributes:
        endpoint: As given.
        lost: Why this connection is of no more use; None while it is.
    """

    def __init__(self, endpoint: Endpoint, redis: AbstractConnection, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.lost: str | None = None
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)
        self._waiting: deque[_Batch] = deque()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_since_s = 0.0
        self._unsent_bytes = 0
        self._looked = False
        assert redis._writer is not None
        self._redis = redis  # for its writer, which closes the transport when it is forgotten
        self._transport = redis._writer.transport
        self._transport.set_protocol(self)

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
    def silence_s(self) -> float:
        """How long nothing has come although an answer is due, seconds; 0 if none is."""
        return time.monotonic() - self._quiet_since_s if self._waiting else 0.0

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send some commands and wait for all their answers, errors (`RedisError`) included.

        Raises:
            RedisLost: The connection ended before the last answer.
        """
        if self.lost is not None:
            raise RedisLost(self.lost)
        data = _packed(commands[0]) if len(commands) == 1 else b"".join(map(_packed, commands))
        self._transport.write(data)
        if len(data) > LARGE_BYTES:
            self._unsent_bytes = self._transport.get_write_buffer_size()
        if not self._waiting:
            self._quiet_since_s = time.monotonic()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._look)
        batch = _Batch(len(commands), self._loop.create_future())
        self._waiting.append(batch)
        return await batch.done

    def lose(self, reason: str) -> None:
        """Give the connection up: every call under way fails, and every later one."""
        if self.lost is not None:
            return
        self.lost = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()
        for batch in self._waiting:
            if not batch.done.done():
                batch.done.set_exception(RedisLost(reason))
        self._waiting.clear()

    async def aclose(self) -> None:
        """Close, and wait until the socket is."""
        self.lose("closed")
        await self._redis.disconnect(nowait=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._closed)

    # -- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Give answers to the calls that wait for them, the oldest first."""
        self._quiet_since_s = time.monotonic()
        self._looked = False
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not waiting:
                    self.lose(f"an answer that nobody asked for: {reply!r:.100}")
                    return
                batch = waiting[0]
                batch.replies.append(reply)
                if len(batch.replies) == batch.expected:
                    waiting.popleft()
                    if not batch.done.done():
                        batch.done.set_result(batch.replies)
        except InvalidResponse as error:
            self.lose(f"this is not Redis's protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is under way."""
        self.lose(str(error) if error else "the server closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)

    # -- inside

    def _look(self) -> None:
        """Whether the server has been silent for too long."""
        self._timer = None
        if not self._waiting:
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._quiet_since_s = time.monotonic()  # it takes what is sent, so it is not silent
        self._unsent_bytes = unsent_bytes
        left_s = self._timeout_s - self.silence_s
        if left_s <= 0 and self._looked:
            self.lose(f"no answer within {self._timeout_s:g} s")
            return
        self._looked = left_s <= 0
        self._timer = self._loop.call_later(SECOND_LOOK_S if self._looked else left_s, self._look)


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
