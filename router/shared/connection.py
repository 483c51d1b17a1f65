"""One connection to one Redis server: commands out, answers in, in the same order.

redis-py connects, speaks TLS, logs in and names errors; then this module is the protocol of its transport
(decision 0053). Any number of calls may be under way, and answers belong to them in turn.

    call --pack--> transport --> server --> transport --> parser --> oldest call that waits

A call that is cancelled keeps its place, and its answer is dropped. There is one timer per connection and
none per call: the connection is lost when an answer is due and *nothing at all* came for the timeout, so a
large answer may take longer than that. The timer looks twice, so that a stall of this process, behind which
the answer waits unread, is not taken for the server's silence.

Commands beyond `PIECE_BYTES` are written piece by piece, never faster than the socket takes them and
without holding the event loop; other calls wait for their turn behind them.

    open --AUTH SELECT CLIENT--> in use --lost or closed--> every call fails, for good
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import hiredis
from redis.asyncio.connection import (
    AbstractConnection,
    DefaultParser,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.connection import Connection as TcpConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError

from router.shared.address import Endpoint
from router.shared.failures import RedisLost, text_of

Argument = bytes | str | int
Command = tuple[Argument, ...]

PIECE_BYTES = 128 * 1024
# Long enough for one turn of the event loop to read the bytes that have come meanwhile.
SECOND_LOOK_S = 0.01
CLOSE_S = 1.0
CLOSED = "Connection closed by server."

# Its type hints know tuples of one only.
_packed: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]
_INCOMPLETE = object()


class Connection(asyncio.Protocol):
    """An open connection; make it with `open`.

    Attributes:
        endpoint: Server that it leads to.
        lost: Reason why this connection is of no more use; None while it is.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.lost: str | None = None
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._redis: AbstractConnection | None = None
        self._answers = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_INCOMPLETE
        )
        # Per call: the answers so far, how many it expects, and the future that waits for the last one.
        self._waiting: deque[tuple[list[Any], int, asyncio.Future[list[Any]]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_since_s = 0.0
        self._looked = False
        self._turn = asyncio.Lock()
        # Clear while the socket takes no more; also set when the connection is lost.
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

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
        connection, redis = cls(endpoint, timeout_s), _made(endpoint, options, timeout_s)
        try:
            async with asyncio.timeout(2 * timeout_s):
                try:
                    await redis.connect()  # type: ignore[no-untyped-call]
                    connection._take_over(redis)
                except BaseException:
                    await redis.disconnect(nowait=True)
                    raise
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
        if len(data) <= PIECE_BYTES and not self._turn.locked() and self._writable.is_set():
            done = self._expect(len(commands))
            assert self._transport is not None
            self._transport.write(data)
        else:
            done = await self._sent_in_turn(data, len(commands))
        return await done

    def lose(self, reason: str) -> None:
        """Give the connection up: every call under way fails, and every later one."""
        self._fail(reason)
        if self._transport is not None:
            # Its buffer may hold bytes for a server that takes no more.
            self._transport.abort()

    async def aclose(self) -> None:
        """Close, and wait until the socket is."""
        self.lose("closed")
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._closed.wait()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Give answers to the calls that wait for them, the oldest first.

        Some error answers end the connection: a password that is missing, a server that loads its data.
        """
        self._quiet_since_s = time.monotonic()
        self._looked = False
        answers, waiting = self._answers, self._waiting
        try:
            answers.feed(data)
            while (reply := answers.gets()) is not _INCOMPLETE:
                if isinstance(reply, RedisConnectionError):
                    raise reply
                if not waiting:
                    self.lose(self.lost or f"an answer without a call for it: {reply!r:.100}")
                    return
                replies, expected, done = waiting[0]
                replies.append(reply)
                if len(replies) == expected:
                    waiting.popleft()
                    if not done.done():
                        done.set_result(replies)
        except (RedisError, ValueError) as error:
            # ValueError: redis-py takes some error answers apart, and these may make no sense.
            self.lose(text_of(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every call under way."""
        self._closed.set()
        self._fail(CLOSED if exc is None else text_of(exc))
        if self._redis is not None:
            self._redis._reader = self._redis._writer = None  # else it warns that it was not closed

    def pause_writing(self) -> None:
        """Hold back commands: the socket takes no more."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let commands go again."""
        self._writable.set()

    # -- inside

    def _take_over(self, redis: AbstractConnection) -> None:
        """Become the protocol of an open connection's transport."""
        reader, writer = redis._reader, redis._writer
        assert reader is not None
        assert writer is not None
        self._redis, self._transport = redis, writer.transport
        writer.transport.set_protocol(self)
        early = bytes(reader._buffer)  # type: ignore[attr-defined]  # came behind the login
        if early:
            self.data_received(early)
        if reader._eof or writer.transport.is_closing():  # type: ignore[attr-defined]
            self.lose(CLOSED)
            self.connection_lost(None)

    def _expect(self, answers: int) -> asyncio.Future[list[Any]]:
        """Note a call that is sent now; `RedisLost` if it cannot be."""
        if self.lost is not None:
            raise RedisLost(self.lost)
        if not self._waiting:
            self._quiet_since_s = time.monotonic()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._look)
        done: asyncio.Future[list[Any]] = self._loop.create_future()
        self._waiting.append(([], answers, done))
        return done

    async def _sent_in_turn(self, data: bytes, answers: int) -> asyncio.Future[list[Any]]:
        """Send a large command, or one behind it, piece by piece."""
        async with self._turn:
            done = self._expect(answers)
            try:
                for start in range(0, len(data), PIECE_BYTES):
                    await self._writable.wait()
                    if self.lost is not None or self._transport is None:
                        break
                    self._transport.write(data[start : start + PIECE_BYTES])
                    self._heard()  # the server takes the bytes sent, so it is not silent
                    await asyncio.sleep(0)
            except BaseException:
                done.cancel()
                self.lose("a command was cut off half-way")
                raise
        return done

    def _fail(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, _, done in self._waiting:
            if not done.done():
                done.set_exception(RedisLost(reason))
        self._waiting.clear()

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


def _made(endpoint: Endpoint, options: Mapping[str, Any], timeout_s: float) -> AbstractConnection:
    """Return a connection of redis-py that is not open yet.

    Without ``socket_timeout``: it would bound each answer of the login with a task of its own, and on
    Python 3.11 now and then swallow a cancellation (`asyncio.wait_for`).
    """
    taken = {
        **options,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "driver_info": None,
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
