"""One connection to one Redis server: commands out, answers in, in the same order.

    call --pack--> socket --> server --> socket --hiredis--> oldest call that waits

Any number of calls may be under way; answers belong to them in turn. A call that is cancelled keeps
its place, and its answer is dropped. There is one timer per connection and none per call: the
connection is lost when an answer is due and *nothing at all* came for the timeout, so a large answer
may take longer than that. The timer looks twice, so that a stall of this process, behind which
the answer waits unread, is not taken for the server's silence.

Commands beyond `LARGE_BYTES` are written piece by piece, never faster than the socket takes them and
without holding the event loop; other calls wait for their turn behind them.

    open --AUTH SELECT CLIENT--> in use --lost or closed--> every call fails, for good
"""

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import hiredis

from router.shared.address import Endpoint, Login
from router.shared.failures import RedisLost, failure_of

Argument = bytes | str | int
Command = tuple[Argument, ...]

LARGE_BYTES = 256 * 1024
PIECE_BYTES = 128 * 1024
# Long enough for one turn of the event loop to read what has come meanwhile.
SECOND_LOOK_S = 0.01
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


class Connection(asyncio.Protocol):
    """An open connection; make it with `open`.

    Args:
        timeout_s: Longest silence while an answer is due or the socket takes no more.
        endpoint: Where it leads.
    """

    def __init__(self, timeout_s: float, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._waiting: deque[_Batch] = deque()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._lost: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_since_s = 0.0
        self._looked = False
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, login: Login, tls: ssl.SSLContext | None, timeout_s: float
    ) -> Self:
        """Connect and log in.

        Raises:
            RedisLost: Nobody there, not in time, or the login was refused.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                if endpoint.port:
                    _, connection = await loop.create_connection(
                        lambda: cls(timeout_s, endpoint), endpoint.host, endpoint.port, ssl=tls
                    )
                else:
                    _, connection = await loop.create_unix_connection(
                        lambda: cls(timeout_s, endpoint), endpoint.host
                    )
        except TimeoutError as error:
            raise RedisLost(f"no connection to {endpoint} within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            # ssl raises ValueError subclasses for names that are no names.
            raise RedisLost(f"no connection to {endpoint}: {error}") from error
        try:
            await connection._enter(login)
        except BaseException:
            connection.lose("the login failed")
            raise
        return connection

    @property
    def lost(self) -> str | None:
        """Why this connection is of no more use; None while it is."""
        return self._lost

    @property
    def silence_s(self) -> float:
        """How long nothing has come although an answer is due, seconds; 0 if none is."""
        return time.monotonic() - self._quiet_since_s if self._waiting else 0.0

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send some commands and wait for all their answers, errors (`hiredis.ReplyError`) included.

        Raises:
            RedisLost: The connection ended before the last answer.
        """
        if self._turn.locked() or _has_large(commands):
            async with self._turn:
                done = await self._write_large(commands)
        else:
            self._write(_packed(commands[0]) if len(commands) == 1 else b"".join(map(_packed, commands)))
            done = self._expect(len(commands))
        return await done

    def lose(self, reason: str) -> None:
        """Give the connection up: every call under way fails, and every later one."""
        if self._lost is not None:
            return
        self._lost = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        for batch in self._waiting:
            if not batch.done.done():
                batch.done.set_exception(RedisLost(reason))
        self._waiting.clear()
        self._make_room()

    async def aclose(self) -> None:
        """Close, and wait until the socket is."""
        self.lose("closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._closed)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (uvloop's is no `asyncio.Transport`, only like it)."""
        self._transport = transport  # type: ignore[assignment]

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
        except hiredis.ProtocolError as error:
            self.lose(f"this is not Redis's protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is under way."""
        self.lose(str(error) if error else "the server closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Hold back large commands."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Go on with them."""
        self._make_room()

    # -- inside

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def _write(self, data: bytes | memoryview) -> None:
        if self._lost is not None:
            raise RedisLost(self._lost)
        assert self._transport is not None
        self._transport.write(data)

    def _expect(self, answers: int) -> asyncio.Future[list[Any]]:
        if self._lost is not None:
            raise RedisLost(self._lost)
        if not self._waiting:
            self._quiet_since_s = time.monotonic()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._look)
        batch = _Batch(answers, self._loop.create_future())
        self._waiting.append(batch)
        return batch.done

    async def _write_large(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        done = self._expect(len(commands))
        try:
            for piece in _pieces(commands):
                self._write(piece)
                # The server takes what is sent, so it is not silent.
                self._quiet_since_s = time.monotonic()
                await asyncio.sleep(0)
                if self._room is not None:
                    await asyncio.shield(self._room)
        except RedisLost:
            return done
        except BaseException:
            done.cancel()
            self.lose("a command was cut off half-way")
            raise
        return done

    def _look(self) -> None:
        """Whether the server has been silent for too long."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._timeout_s - self.silence_s
        if left_s <= 0 and self._looked:
            self.lose(f"no answer within {self._timeout_s:g} s")
            return
        self._looked = left_s <= 0
        self._timer = self._loop.call_later(SECOND_LOOK_S if self._looked else left_s, self._look)

    async def _enter(self, login: Login) -> None:
        commands: list[Command] = []
        if login.password:
            commands.append(("AUTH", login.user, login.password) if login.user else ("AUTH", login.password))
        if login.database:
            commands.append(("SELECT", login.database))
        # Last, and whatever the answer: it asks for a sign of life, and its refusal harms nobody.
        commands.append(("CLIENT", "SETNAME", login.name))
        replies = await self.exchange(commands)
        for command, reply in zip(commands, replies, strict=True):
            if not isinstance(reply, hiredis.ReplyError):
                continue
            if command[0] == "AUTH":
                # Some servers repeat the arguments of a command they do not know.
                raise RedisLost(f"the login was refused: {str(reply).partition(' ')[0]}")
            if command[0] == "SELECT" or not str(failure_of(reply)).startswith(("NOPERM", "ERR unknown")):
                raise RedisLost(f"the connection was refused: {reply}")


def _has_large(commands: Sequence[Command]) -> bool:
    for command in commands:
        for part in command:
            if type(part) is bytes and len(part) > LARGE_BYTES:
                return True
    return False


def _pieces(commands: Sequence[Command]) -> Iterator[bytes | memoryview]:
    """Commands in the Redis protocol, in pieces of `PIECE_BYTES` at most; large values are not copied."""
    for command in commands:
        head = b"*%d\r\n" % len(command)
        for argument in command:
            value = argument if isinstance(argument, bytes) else str(argument).encode()
            head += b"$%d\r\n" % len(value)
            if len(value) <= PIECE_BYTES // 2:
                head += value + b"\r\n"
                if len(head) < PIECE_BYTES // 2:
                    continue
            else:
                yield head
                view = memoryview(value)
                for start in range(0, len(value), PIECE_BYTES):
                    yield view[start : start + PIECE_BYTES]
                yield b"\r\n"
                head = b""
                continue
            yield head
            head = b""
        if head:
            yield head
