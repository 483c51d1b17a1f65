"""The pool: reuse, bounds, stale connections, connecting, TLS and closing."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trustme

from router.errors import StreamBroken, WorkerRefused, WorkerUnreachable
from router.proxy import RequestHead, UpstreamRules, WorkerPool
from router.proxy.connection import STALE_S, WorkerConnection
from router.proxy.upstream import CHECKED_AT_ONCE

Until = Callable[..., Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_the_request_is_written_as_a_worker_expects_it(
    worker: Any, new_sink: Any, until: Until
) -> None:
    url = await worker.answer_with(OK)
    pool = WorkerPool(url + "/base/")
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/v1/x", b"a=1"), b"authorization: Bearer x\r\n", [b"{", b"}"], sink)
    await until(lambda: sink.done)

    head, body = worker.requests[0]
    host = url.removeprefix("http://").encode()
    assert head == (
        b"POST /base/v1/x?a=1 HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer x\r\ncontent-length: 2\r\n\r\n"
        % host
    )
    assert body == b"{}"
    pool.close()


async def test_the_sink_hears_nothing_before_send_returns(worker: Any, new_sink: Any, until: Until) -> None:
    pool = WorkerPool(await worker.answer_with(OK), waiting_max=0)
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    assert not sink.done
    await until(lambda: sink.done)

    assert sink.error.code == "upstream_pool_full"
    pool.close()


async def test_a_connection_is_used_again(worker: Any, new_sink: Any, until: Until) -> None:
    pool = WorkerPool(await worker.answer_with(OK))
    for _ in range(5):
        sink = new_sink()
        pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], sink)
        await until(lambda sink=sink: sink.done)
        assert sink.body == b"ok"

    assert (worker.connections, pool.opened, pool.reused, pool.idle, pool.in_use) == (1, 1, 4, 1, 0)
    pool.close()


async def test_connections_are_bounded_and_requests_wait_in_order(
    worker: Any, new_sink: Any, until: Until
) -> None:
    pool = WorkerPool(await worker.answer_with(OK), UpstreamRules(connections_max=2))
    sinks = [new_sink() for _ in range(20)]
    for number, sink in enumerate(sinks):
        pool.send(RequestHead(b"POST", b"/"), b"", [b"%d" % number], sink)
    assert pool.waiting == 20
    await until(lambda: all(sink.done for sink in sinks))

    assert all(sink.ended for sink in sinks)
    assert worker.connections == 2
    bodies = [int(body) for _, body in worker.requests]
    assert all(abs(place - number) <= 1 for place, number in enumerate(bodies))
    pool.close()


async def test_a_request_beyond_the_queue_fails_and_one_that_waits_too_long_too(
    worker: Any, new_sink: Any, until: Until
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        await reader.read()

    pool = WorkerPool(
        await worker.start(script),
        UpstreamRules(0.1, 60.0, 60.0, connections_max=1),
        waiting_max=1,
    )
    busy, waits, beyond = new_sink(), new_sink(), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], busy)
    await until(lambda: pool.in_use == 1)
    pool.send(RequestHead(b"POST", b"/"), b"", [], waits)
    pool.send(RequestHead(b"POST", b"/"), b"", [], beyond)
    await until(lambda: beyond.done)
    assert not waits.done
    await until(lambda: waits.done)

    assert (beyond.error.code, waits.error.code) == ("upstream_pool_full", "upstream_pool_full")
    assert type(waits.error) is WorkerUnreachable
    assert not busy.done
    pool.close()


async def test_an_aborted_request_leaves_the_queue(worker: Any, new_sink: Any, until: Until) -> None:
    pool = WorkerPool(await worker.answer_with(OK), UpstreamRules(connections_max=1))
    first, second, third = new_sink(), new_sink(), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"1"], first)
    pool.send(RequestHead(b"POST", b"/"), b"", [b"2"], second).abort()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"3"], third)
    await until(lambda: third.done)

    assert [body for _, body in worker.requests] == [b"1", b"3"]
    assert not second.done
    pool.close()


async def test_a_request_on_a_stale_connection_is_sent_once_more(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """The worker answers once per connection and closes at its next request."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(OK)
        await reader.readexactly(1)

    pool = WorkerPool(await worker.start(script))
    told: list[int] = []
    pool.on_idle_closed = lambda: told.append(1)
    for _ in range(3):
        sink = new_sink()
        pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], sink)
        await until(lambda sink=sink: sink.done)
        assert sink.ended

    assert (worker.connections, pool.retried, pool.reused, len(told)) == (3, 2, 2, 2)
    assert [body for _, body in worker.requests] == [b"x"] * 3
    pool.close()


async def test_a_request_is_sent_once_more_only_once(worker: Any, new_sink: Any, until: Until) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        if worker.connections == 1:
            writer.write(OK)
            await reader.readexactly(1)

    pool = WorkerPool(await worker.start(script))
    first, second = new_sink(), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], first)
    await until(lambda: first.done)
    pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], second)
    await until(lambda: second.done)

    assert type(second.error) is WorkerUnreachable
    assert worker.connections == 2
    pool.close()


async def _second_request(
    worker: Any,
    new_sink: Any,
    until: Until,
    after: Callable[[asyncio.StreamReader], Awaitable[None]],
    **how: Any,
) -> tuple[WorkerPool, Any]:
    """Send a second request on the connection of the first; the worker runs a function, then closes."""
    body, may_resend = how.pop("body", b"x"), how.pop("may_resend", True)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(OK)
        await after(reader)

    pool = WorkerPool(await worker.start(script, limit=2**16), may_resend=lambda: may_resend)
    first, second = new_sink(), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], first)
    await until(lambda: first.done)
    pool.send(RequestHead(b"POST", b"/"), b"", [body], second, **how)
    await until(lambda: second.done)
    assert pool.reused == 1
    pool.close()
    return pool, second


async def test_a_request_that_a_worker_has_worked_on_is_not_sent_again(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """The request may be the reason why the worker closed the connection, three times `STALE_S` later."""

    async def works(reader: asyncio.StreamReader) -> None:
        await worker.request(reader)
        await asyncio.sleep(3 * STALE_S)

    pool, sink = await _second_request(worker, new_sink, until, works)
    assert type(sink.error) is WorkerUnreachable
    assert sink.error.asked
    assert (pool.retried, len(worker.requests)) == (0, 2)


@pytest.mark.parametrize("how", [{"may_resend": False}, {"resend": False}])
async def test_no_request_is_sent_again_where_that_is_forbidden(
    worker: Any, new_sink: Any, until: Until, how: dict[str, Any]
) -> None:
    async def hangs_up(reader: asyncio.StreamReader) -> None:
        await worker.request(reader)

    pool, sink = await _second_request(worker, new_sink, until, hangs_up, **how)
    assert type(sink.error) is WorkerUnreachable
    assert (pool.retried, len(worker.requests)) == (0, 2)


async def test_a_request_that_has_not_left_yet_is_sent_again(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """The worker cannot have begun: it has read one byte of 32 MB."""

    async def hangs_up(reader: asyncio.StreamReader) -> None:
        await reader.readexactly(1)
        await asyncio.sleep(3 * STALE_S)

    pool, sink = await _second_request(worker, new_sink, until, hangs_up, body=bytes(2**25))
    assert sink.ended
    assert (pool.retried, worker.connections) == (1, 2)


async def test_a_worker_that_is_gone_when_a_request_is_sent_again_has_been_asked(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """A request that ends the worker's process at once has reached a worker."""

    async def dies(reader: asyncio.StreamReader) -> None:
        await worker.request(reader)
        worker._server.close()

    pool, sink = await _second_request(worker, new_sink, until, dies)
    assert type(sink.error) is WorkerRefused
    assert sink.error.asked
    assert pool.retried == 1


async def test_an_idle_connection_that_the_worker_closes_is_forgotten(
    worker: Any, new_sink: Any, until: Until
) -> None:
    pool = WorkerPool(await worker.answer_once_with(OK))
    told: list[int] = []
    pool.on_idle_closed = lambda: told.append(pool.open)
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: sink.done)
    await until(lambda: pool.open == 0)

    assert pool.idle == 0
    assert told == [0]
    pool.close()


async def test_an_idle_worker_that_speaks_is_cut_off(worker: Any, new_sink: Any, until: Until) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(OK)
        await speak.wait()
        writer.write(OK)
        await reader.read()

    speak = asyncio.Event()
    pool = WorkerPool(await worker.start(script))
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: pool.idle == 1)
    speak.set()
    await until(lambda: pool.open == 0)
    pool.close()


async def test_idle_connections_are_closed_after_their_time(worker: Any, new_sink: Any, until: Until) -> None:
    pool = WorkerPool(await worker.answer_with(OK), UpstreamRules(keepalive_s=0.05))
    told: list[int] = []
    pool.on_idle_closed = lambda: told.append(1)
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: sink.done)
    await until(lambda: pool.open == 0)
    await until(lambda: worker.closed_connections == 1)
    assert told == []
    pool.close()


class Unanswered:
    """The transport of a connection whose worker takes all bytes and sends none."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def write(self, data: bytes) -> None:
        pass

    def get_extra_info(self, name: str) -> socket.socket:
        return self._socket

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def ignored(self, *_: object) -> None:
        pass

    pause_reading = resume_reading = set_write_buffer_limits = abort = ignored


async def test_silence_is_noticed_on_every_one_of_many_connections(new_sink: Any, until: Until) -> None:
    """One connection of every fifty, among more than one turn of the loop checks; the others are paused."""
    pool = WorkerPool("http://worker:1", rules=UpstreamRules(5.0, 0.1, 5.0))
    sinks = [new_sink() for _ in range(2 * CHECKED_AT_ONCE + 1)]
    silent = sinks[::50]
    with socket.socket() as sock:
        for sink in sinks:
            connection = WorkerConnection(pool, asyncio.get_running_loop())
            connection.connection_made(cast("asyncio.Transport", Unanswered(sock)))
            pool._connections.add(connection)
            pool.release(connection)
            request = pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], sink)
            if sink not in silent:
                request.pause()
        pool._connect_more()
        await until(lambda: all(sink.done for sink in silent))

    assert {sink.error.code for sink in silent} == {"upstream_timeout"}
    assert sum(sink.done for sink in sinks) == len(silent)
    pool.close()


async def test_nobody_listening_is_unreachable(new_sink: Any, until: Until) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        pool = WorkerPool(f"http://127.0.0.1:{port}")
        sinks = [new_sink() for _ in range(3)]
        for sink in sinks:
            pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
        await until(lambda: all(sink.done for sink in sinks))

    assert {sink.error.code for sink in sinks} == {"upstream_unreachable"}
    pool.close()


async def test_a_worker_that_does_not_accept_is_a_connect_timeout(new_sink: Any, until: Until) -> None:
    """A full backlog: the kernel leaves further connection attempts unanswered."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fillers = []
        for _ in range(2):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
            fillers.append(filler)
        pool = WorkerPool(f"http://127.0.0.1:{sock.getsockname()[1]}", rules=UpstreamRules(0.1, 5.0, 5.0))
        sink = new_sink()
        pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
        await until(lambda: sink.done)
        for filler in fillers:
            filler.close()

    assert type(sink.error) is WorkerUnreachable
    assert sink.error.code == "upstream_connect_timeout"
    pool.close()


async def test_close_fails_what_waits_and_what_is_in_flight(worker: Any, new_sink: Any, until: Until) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        await reader.read()

    pool = WorkerPool(await worker.start(script), UpstreamRules(connections_max=1))
    flying, waiting, late = new_sink(), new_sink(), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], flying)
    await until(lambda: flying.pieces)
    pool.send(RequestHead(b"POST", b"/"), b"", [], waiting)
    pool.close()
    pool.close()
    pool.send(RequestHead(b"POST", b"/"), b"", [], late)
    await until(lambda: late.done)

    assert type(flying.error) is StreamBroken
    assert type(waiting.error) is WorkerUnreachable
    assert late.error.code == "upstream_pool_closed"
    assert pool.open == 0
    await until(lambda: worker.closed_connections == 1)


async def test_drain_lets_requests_in_flight_finish_and_keeps_nothing(
    worker: Any, new_sink: Any, until: Until
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        await answer.wait()
        writer.write(OK)
        await reader.read()

    answer = asyncio.Event()
    pool = WorkerPool(await worker.start(script))
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [], sink)
    await until(lambda: pool.in_use == 1)
    pool.drain()
    answer.set()
    await until(lambda: sink.done)

    assert sink.ended
    assert pool.open == 0
    pool.close()


async def test_a_worker_behind_tls_is_verified(worker: Any, new_sink: Any, until: Until) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await worker.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    url = await worker.start(script, ssl=server)
    good, bad = WorkerPool(url, ssl=trusting), WorkerPool(url)
    body = bytes(range(256)) * 4000
    for _ in range(2):
        sink = new_sink()
        good.send(RequestHead(b"POST", b"/"), b"", [body], sink)
        await until(lambda sink=sink: sink.done)
        assert sink.body == body
    refused = new_sink()
    bad.send(RequestHead(b"POST", b"/"), b"", [], refused)
    await until(lambda: refused.done)

    assert good.reused == 1
    assert type(refused.error) is WorkerUnreachable
    good.close()
    bad.close()


async def test_a_worker_may_have_an_ipv6_address(new_sink: Any, until: Until) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        writer.close()

    try:
        server = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    port = server.sockets[0].getsockname()[1]
    pool = WorkerPool(f"http://[::1]:{port}")
    sink = new_sink()
    pool.send(RequestHead(b"GET", b"/"), b"", [], sink)
    await until(lambda: sink.done)

    assert heads[0] == b"GET / HTTP/1.1\r\nhost: [::1]:%d\r\n\r\n" % port
    pool.close()
    server.close()


@pytest.mark.parametrize(
    "url", ["", "worker:8000", "ftp://a", "http://", "http://a?b", "http://u:p@a", "http://ä"]
)
async def test_a_url_that_names_no_worker_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match="not a worker URL"):
        WorkerPool(url)


async def test_a_name_may_be_as_long_as_names_may_be() -> None:
    """63 characters, as pods have them; the port does not count."""
    WorkerPool(f"http://{'a' * 63}:30000").close()


async def test_other_timeouts_hold_for_what_is_in_flight(worker: Any, new_sink: Any, until: Until) -> None:
    """A silent worker is given up after the new time."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await worker.request(reader)
        await reader.read()

    hour = UpstreamRules(3600, 3600, 3600, keepalive_s=3600)
    pool, sink = WorkerPool(await worker.start(script), hour), new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], sink)
    await until(lambda: pool.in_use == 1)
    pool.rules = UpstreamRules(3600, 0.01, 3600, keepalive_s=0.01)
    await until(lambda: sink.done)
    assert sink.error.code == "upstream_timeout"
    assert pool._tick_s() == 0.0025
    pool.close()


async def test_a_connection_is_made_to_the_first_of_the_resolved_addresses_that_answers(
    worker: Any, new_sink: Any, until: Until
) -> None:
    """No process listens at 127.0.0.9; the name itself has no address, so it cannot have been used."""
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.9", "127.0.0.1"]

    url = await worker.answer_with(OK)
    port = int(url.rpartition(":")[2])
    pool = WorkerPool(f"http://worker.invalid:{port}", resolve=resolve)
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], sink)
    await until(lambda: sink.done)

    assert (sink.body, asked) == (b"ok", [("worker.invalid", port)])
    assert b"host: worker.invalid:%d\r\n" % port in worker.requests[0][0]
    pool.close()


async def test_a_name_without_an_address_that_is_allowed_is_an_unreachable_worker(
    new_sink: Any, until: Until
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError(f"{host} is where no workers may be")

    pool = WorkerPool("http://worker.invalid:1", resolve=resolve)
    sink = new_sink()
    pool.send(RequestHead(b"POST", b"/"), b"", [b"x"], sink)
    await until(lambda: sink.done)

    assert isinstance(sink.error, WorkerUnreachable)
    assert "where no workers may be" in str(sink.error)
    pool.close()
