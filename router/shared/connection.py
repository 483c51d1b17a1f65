"""One connection of redis-py to one Redis server: commands out, answers in, in the same order.

redis-py connects, speaks TLS, logs in, parses answers and names errors. This module adds concurrency: any
number of calls may be under way, and answers belong to them in turn (decision 0053).

    call --pack--> redis-py --> server --> redis-py --> task that reads --> oldest call that waits

A call that is cancelled keeps its place, and its answer is dropped. There is one timer per connection and
none per call: the connection is lost when an answer is due and *nothing at all* came for the timeout, so a
large answer may take longer than that. The timer looks twice, so that a stall of this process, behind which
the answer waits unread, is not taken for the server's silence.

Commands beyond `PIECE_BYTES` are written piece by piece, never faster than the socket takes them and
without holding the event loop; other calls wait for their turn behind them.

    open --AUTH SELECT CLIENT--> in use --lost or closed--> every call fails, for good
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import hiredis
from redis.asyncio.connection import (
    AbstractConnection,
    DefaultParser,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import RedisError, ResponseError

from router.shared.address import Endpoint
from router.shared.failures import RedisLost, text_of

Argument = bytes | str | int
Command = tuple[Argument, ...]

PIECE_BYTES = 128 * 1024
# Long enough for one turn of the event loop to read the bytes that have come meanwhile.
SECOND_LOOK_S = 0.01
CLOSE_S = 1.0

# Its type hints know tuples of one only.
_packed: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]


class _Parser(DefaultParser):  # type: ignore[misc, valid-type]
    """redis-py's parser, which reports when bytes have come: an answer that trickles in is not overdue."""

    def __init__(self, heard: Callable[[], None], socket_read_size: int) -> None:
        super().__init__(socket_read_size)
        self._heard = heard

    async def read_from_socket(self) -> bool:
        await super().read_from_socket()
        self._heard()
        return True


class Connection:
    """An open connection; make it with `open`.

    Attributes:
        endpoint: Server that it leads to.
        lost: Reason why this connection is of no more use; None while it is.
    """

    def __init__(self, endpoint: Endpoint, options: Mapping[str, Any], timeout_s: float) -> None:
        self.endpoint = endpoint
        self.lost: str | None = None
        self._timeout_s = timeout_s
        self._redis = _made(endpoint, options, timeout_s, partial(_Parser, self._heard))
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Task[None] | None = None
        # Per call: the answers so far, how many it expects, and the future that waits for the last one.
        self._waiting: deque[tuple[list[Any], int, asyncio.Future[list[Any]]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_since_s = 0.0
        self._looked = False
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls, endpoint: Endpoint, options: Mapping[str, Any], timeout_s: float, name: str = "cacheway"
    ) -> Self:
        """Connect and log in.

        Args:
            endpoint: Server to connect to.
            options: As in `RedisAddress`.
            timeout_s: Longest wait to connect, and once more to log in; then the longest silence while an
                answer is due or the socket takes no more.
            name: Shown to operators (``CLIENT LIST``).

        Raises:
            RedisLost: No server there, not in time, or the login was refused.
        """
        connection = cls(endpoint, options, timeout_s)
        try:
            async with asyncio.timeout(2 * timeout_s):
                await connection._redis.connect()  # type: ignore[no-untyped-call]
                connection._reading = asyncio.create_task(connection._read(), name="redis-answers")
                # Any answer is a sign of life, and a refusal of this command does no harm.
                await connection.exchange([("CLIENT", "SETNAME", name)])
        except BaseException as error:
            await connection.aclose()
            if isinstance(error, TimeoutError):
                raise RedisLost(f"no connection to {endpoint} within {2 * timeout_s:g} s") from None
            if isinstance(error, RedisError):
                said = text_of(error).replace(options.get("password") or "\n", "***")
                raise RedisLost(f"no connection to {endpoint}: {said}") from None
            raise
        return connection

    @property
    def silence_s(self) -> float:
        """Time without any byte although an answer is due, seconds; 0 if none is."""
        return time.monotonic() - self._quiet_since_s if self._waiting else 0.0

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send some commands and wait for all their answers, errors (`ResponseError`) included.

        Raises:
            RedisLost: The connection ended before the last answer.
        """
        data = _packed(commands[0]) if len(commands) == 1 else b"".join(map(_packed, commands))
        async with self._turn:
            if self.lost is not None:
                raise RedisLost(self.lost)
            if not self._waiting:
                self._quiet_since_s = time.monotonic()
                if self._timer is None:
                    self._timer = self._loop.call_later(self._timeout_s, self._look)
            done: asyncio.Future[list[Any]] = self._loop.create_future()
            self._waiting.append(([], len(commands), done))
            try:
                if len(data) <= PIECE_BYTES:
                    await self._redis.send_packed_command(data, check_health=False)
                else:
                    await self._send_pieces(data)
            except RedisError as error:
                self.lose(text_of(error))
            except BaseException:
                done.cancel()
                self.lose("a command was cut off half-way")
                raise
        return await done

    def lose(self, reason: str) -> None:
        """Give the connection up: every call under way fails, and every later one."""
        self._fail(reason)
        if self._reading is not None:
            self._reading.cancel()

    async def aclose(self) -> None:
        """Close, and wait until the socket is."""
        self.lose("closed")
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=CLOSE_S)
        await self._redis.disconnect(nowait=True)

    # -- inside

    async def _read(self) -> None:
        """Give answers to the calls that wait for them, the oldest first.

        Runs until the connection ends, and closes the socket then. redis-py raises those error answers after
        which a connection is of no more use: a password that is missing, a server that loads its data.
        """
        waiting, reason = self._waiting, "closed"
        try:
            while True:
                reply: Any
                try:
                    reply = await self._redis.read_response(disconnect_on_error=False)
                except ResponseError as error:
                    reply = error
                if not waiting:
                    reason = f"an answer without a call for it: {reply!r:.100}"
                    return
                replies, expected, done = waiting[0]
                replies.append(reply)
                if len(replies) == expected:
                    waiting.popleft()
                    if not done.done():
                        done.set_result(replies)
        except (RedisError, ValueError) as error:
            # ValueError: redis-py takes some error answers apart, and these may make no sense.
            reason = text_of(error)
        finally:
            self._fail(reason)
            if self._redis._writer is not None:
                # redis-py would first send the rest, to a server that may take no more.
                self._redis._writer.transport.abort()
            await self._redis.disconnect(nowait=True)

    def _fail(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, _, done in self._waiting:
            if not done.done():
                done.set_exception(RedisLost(reason))
        self._waiting.clear()

    async def _send_pieces(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if self.lost is not None:
                return  # redis-py would connect again
            await self._redis.send_packed_command(data[start : start + PIECE_BYTES], check_health=False)
            self._heard()  # the server takes the bytes sent, so it is not silent
            await asyncio.sleep(0)

    def _heard(self) -> None:
        self._quiet_since_s = time.monotonic()
        self._looked = False

    def _look(self) -> None:
        """Give the connection up if the server has been silent for too long."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._timeout_s - self.silence_s
        if left_s <= 0 and self._looked:
            self.lose(f"no answer within {self._timeout_s:g} s")
            return
        self._looked = left_s <= 0
        self._timer = self._loop.call_later(SECOND_LOOK_S if self._looked else left_s, self._look)


def _made(
    endpoint: Endpoint, options: Mapping[str, Any], timeout_s: float, parser: partial[_Parser]
) -> AbstractConnection:
    """Return a connection of redis-py that is not open yet.

    Without ``socket_timeout``: it would bound a whole answer, not silence, make a task for each command, and
    on Python 3.11 now and then swallow a cancellation (`asyncio.wait_for`).
    """
    taken = {
        **options,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "driver_info": None,
        "parser_class": parser,
    }
    tls = taken.pop("tls", None)
    if not endpoint.port:
        return UnixDomainSocketConnection(path=endpoint.host, **taken)
    if tls is None:
        return TcpConnection(host=endpoint.host, port=endpoint.port, **taken)
    connection = SSLConnection(host=endpoint.host, port=endpoint.port, **taken)
    # redis-py's own would trust the system's authorities beside those that were given.
    connection.ssl_context.context = tls
    return connection
