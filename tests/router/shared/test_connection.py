"""One connection: answers in any pieces, large values, silence, cancellation, logging in, TLS."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trustme
import uvloop
from redis.exceptions import ResponseError

from router.shared import EmbeddedValkey
from router.shared.address import Endpoint
from router.shared.connection import PIECE_BYTES, Connection
from router.shared.failures import RedisLost

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """Something that listens on a port; it is over when all its connections are."""
    tasks: list[asyncio.Task[None]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(accept(reader, writer)))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    try:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def scripted(script: Script, timeout_s: float = 5.0) -> AsyncIterator[Connection]:
    """A connection to a server that welcomes it and then does what a test says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await received(reader, b"CLIENT")
        writer.write(b"+OK\r\n")
        await script(reader, writer)

    async with listening(serve) as endpoint:
        connection = await Connection.open(endpoint, {}, 60.0)
        assert connection._timer is not None
        connection._timer.cancel()  # it was set for the login, which may take longer
        connection._timer, connection._timeout_s = None, timeout_s
        try:
            yield connection
        finally:
            await connection.aclose()


async def received(reader: asyncio.StreamReader, text: bytes) -> None:
    seen = b""
    while text not in seen:
        seen = seen[-len(text) :] + await reader.read(1 << 16)
        assert not reader.at_eof()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[Connection]:
    endpoint = Endpoint(redis_url.removeprefix("unix://"), 0)
    connection = await Connection.open(endpoint, {}, 10.0)
    yield connection
    await connection.aclose()


async def test_an_answer_may_come_byte_by_byte() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await received(reader, b"B")
        for byte in b"*3\r\n$3\r\nabc\r\n:7\r\n*1\r\n$-1\r\n-OOM no\r\n":
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with scripted(script) as connection:
        list_of_three, error = await connection.exchange([("A",), ("B",)])
    assert list_of_three == [b"abc", 7, [None]]
    assert isinstance(error, ResponseError)


async def test_calls_that_run_together_get_their_own_answers(connection: Connection) -> None:
    answers = await asyncio.gather(
        *(connection.exchange([("ECHO", str(number)), ("ECHO", f"{number}!")]) for number in range(200))
    )
    assert answers == [[b"%d" % number, b"%d!" % number] for number in range(200)]


async def test_a_call_that_was_cancelled_leaves_its_answer_to_nobody(connection: Connection) -> None:
    calls = [asyncio.create_task(connection.exchange([("ECHO", str(number))])) for number in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    assert await calls[0] == [b"0"]
    assert await calls[2] == [b"2"]
    assert calls[1].cancelled()


async def test_large_values_come_back_whole_and_in_turn(connection: Connection, namespace: str) -> None:
    """Sizes around the bound at which commands are cut into pieces."""
    sizes = [1, PIECE_BYTES - 100, PIECE_BYTES, PIECE_BYTES * 3, (20 << 20) + 3]
    writes = [
        connection.exchange([("SET", f"{namespace}{size}", bytes([size % 251]) * size), ("PING",)])
        for size in sizes
    ]
    assert await asyncio.gather(*writes) == [[b"OK", b"PONG"]] * len(sizes)
    for size in sizes:
        (value,) = await connection.exchange([("GETDEL", f"{namespace}{size}")])
        assert value == bytes([size % 251]) * size


async def test_several_large_values_in_one_command(connection: Connection, namespace: str) -> None:
    parts = [b"x" * PIECE_BYTES * 4, b"", b"small", b"y" * (PIECE_BYTES // 2 + 1), b"z" * PIECE_BYTES * 4]
    answers = await connection.exchange([("RPUSH", namespace, *parts), ("LRANGE", namespace, 0, -1)])
    assert answers == [5, parts]
    await connection.exchange([("DEL", namespace)])


async def test_a_large_value_is_written_no_faster_than_it_is_taken_and_holds_nobody_up() -> None:
    """A server that reads nothing yet: the loop goes on, and little of the value is in its buffer."""
    go_on = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await received(reader, b"the end")
        writer.write(b"+OK\r\n:1\r\n")
        await reader.read()

    async with scripted(script) as connection:
        large = asyncio.create_task(connection.exchange([("SET", b"x" * (64 << 20), "the end")]))
        for _ in range(1000):
            await asyncio.sleep(0)
        small = asyncio.create_task(connection.exchange([("INCR", "behind it")]))
        await asyncio.sleep(0)
        assert connection._transport is not None
        assert 0 < connection._transport.get_write_buffer_size() < 4 * PIECE_BYTES
        go_on.set()
        assert await large == [b"OK"]
        assert await small == [1]


async def test_a_command_that_is_cut_off_half_way_ends_the_connection() -> None:
    async with scripted(silent) as connection:
        large = asyncio.create_task(connection.exchange([("SET", b"x" * (64 << 20))]))
        waiting = asyncio.create_task(connection.exchange([("PING",)]))
        await asyncio.sleep(0)
        large.cancel()
        with pytest.raises(asyncio.CancelledError):
            await large
        assert connection.lost == "a command was cut off half-way"
        with pytest.raises(RedisLost, match="cut off"):
            await waiting


async def test_a_server_that_takes_nothing_is_lost() -> None:
    lost = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await lost.wait()

    async with scripted(deaf, timeout_s=0.1) as connection:
        with pytest.raises(RedisLost, match="no answer within"):
            await connection.exchange([("SET", b"x" * (64 << 20))])
        lost.set()


async def test_silence_is_measured_and_ends_every_call() -> None:
    async with scripted(silent, timeout_s=0.1) as connection:
        assert connection.silence_s == 0.0
        calls = [asyncio.create_task(connection.exchange([("PING",)])) for _ in range(2)]
        await asyncio.sleep(0)
        first_s = connection.silence_s
        await asyncio.sleep(0.01)
        assert connection.silence_s > first_s >= 0
        for call in calls:
            with pytest.raises(RedisLost, match="no answer within"):
                await call
        with pytest.raises(RedisLost, match="no answer within"):
            await connection.exchange([("PING",)])
        assert connection.silence_s == 0.0


async def test_an_answer_that_trickles_may_take_longer_than_the_timeout() -> None:
    """Eight pieces 0.05 s apart take twice the timeout; none is further behind than it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await received(reader, b"GET")
        writer.write(b"$8\r\n")
        for byte in b"trickles":
            await asyncio.sleep(0.05)
            writer.write(bytes((byte,)))
        writer.write(b"\r\n")
        await reader.read()

    async with scripted(script, timeout_s=0.2) as connection:
        assert await connection.exchange([("GET", "a")]) == [b"trickles"]


def test_a_stall_of_this_process_is_not_taken_for_silence() -> None:
    """The answer is there, unread, when the timer fires; uvloop serves timers before sockets."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await received(reader, b"PING")
        writer.write(b"+PONG\r\n")
        time.sleep(0.3)  # noqa: ASYNC251 - this is the stall
        await reader.read()

    async def main() -> None:
        async with scripted(script, timeout_s=0.2) as connection:
            assert await connection.exchange([("PING",)]) == [b"PONG"]

    uvloop.run(main())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed by server"),
        (b"+OK\r\n+surprise\r\n", "without a call for it"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Protocol error"),
        (b"-MOVED nowhere\r\n", "not enough values"),
        (b"*2\r\n:1\r\n-LOADING the dataset\r\n-LOADING the dataset\r\n", "LOADING the dataset"),
    ],
)
async def test_a_connection_that_makes_no_sense_is_lost_and_says_why(answer: bytes, why: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await received(reader, b"PING")
        writer.write(answer)

    async with scripted(script) as connection:
        with contextlib.suppress(RedisLost):
            await connection.exchange([("PING",)])
        async with asyncio.timeout(60):
            while connection.lost is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert why in connection.lost


async def test_nobody_there_and_nobody_answering_are_lost(tmp_path: Path) -> None:
    with pytest.raises(RedisLost, match="no connection to /nonexistent"):
        await Connection.open(Endpoint("/nonexistent/v.sock", 0), {}, 5.0)
    async with listening(silent) as endpoint:
        with pytest.raises(RedisLost, match="no answer within"):
            await Connection.open(endpoint, {}, 0.1)
        with pytest.raises(RedisLost, match="no connection"):
            await Connection.open(endpoint, {"tls": ssl.create_default_context()}, 0.1)


async def test_user_password_database_and_name_are_given(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        endpoint = Endpoint(server.url.removeprefix("unix://"), 0)
        plain = await Connection.open(endpoint, {}, 5.0)
        await plain.exchange(
            [("ACL", "SETUSER", "cw", "on", ">let me in", "~*", "+@all"), ("SET", "a", "database 0")]
        )
        known = await Connection.open(
            endpoint, {"username": "cw", "password": "let me in", "db": 3}, 5.0, "replica-7"
        )
        replies = await known.exchange([("ACL", "WHOAMI"), ("CLIENT", "GETNAME"), ("EXISTS", "a")])
        assert replies == [b"cw", b"replica-7", 0]
        with pytest.raises(RedisLost, match=r"no connection to .*: WRONGPASS"):
            await Connection.open(endpoint, {"username": "cw", "password": "hunter2"}, 5.0)
        with pytest.raises(RedisLost, match="DB index is out of range"):
            await Connection.open(endpoint, {"db": 99}, 5.0)
        await plain.exchange([("CONFIG", "SET", "requirepass", "hunter2")])
        with pytest.raises(RedisLost, match="NOAUTH"):
            await Connection.open(endpoint, {}, 5.0)
        await known.aclose()
        await plain.aclose()


async def test_a_server_that_repeats_the_password_in_its_error_is_not_quoted() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await received(reader, b"AUTH")
        writer.write(b"-ERR unknown command 'AUTH' hunter2, with args beginning with: 'hunter2'\r\n")
        await reader.read()

    async with listening(serve) as endpoint:
        with pytest.raises(RedisLost, match="ERR unknown command 'AUTH'") as caught:
            await Connection.open(endpoint, {"password": "hunter2"}, 60.0)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_name_that_may_not_be_given_harms_nobody(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        endpoint = Endpoint(server.url.removeprefix("unix://"), 0)
        first = await Connection.open(endpoint, {}, 5.0)
        await first.exchange([("ACL", "SETUSER", "default", "-client")])
        second = await Connection.open(endpoint, {}, 5.0)
        assert await second.exchange([("PING",)]) == [b"PONG"]
        await first.aclose()
        await second.aclose()


async def test_tls_carries_large_values_both_ways(redis_url: str, namespace: str) -> None:
    """The bundled server speaks no TLS, so something before it does."""
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(redis_url.removeprefix("unix://"))
        await asyncio.gather(carry(reader, to_writer), carry(to_reader, writer))

    async with listening(serve, server_side) as endpoint:
        with pytest.raises(RedisLost, match="certificate"):
            await Connection.open(endpoint, {"tls": ssl.create_default_context()}, 5.0)
        connection = await Connection.open(endpoint, {"tls": client_side}, 5.0)
        value = b"x" * (3 << 20)
        assert await connection.exchange([("SET", namespace, value), ("GETDEL", namespace)]) == [b"OK", value]
        await connection.aclose()
