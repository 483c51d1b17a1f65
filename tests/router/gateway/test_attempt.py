"""One attempt: the calls to its request in each state. ``test_exchange.py`` covers the clients' view."""

import asyncio
import gc
from typing import Any, cast

import pytest
from fakes.gateway import SSE, Bench, chat

from loadtest.bench.request import EVENT, STREAM_HEAD, Stage, small_answer, small_request, streamed_answer
from router.errors import WorkerSilent
from router.gateway.attempt import NO_HEAD, WorkerAttempt
from router.gateway.exchange import RequestExchange
from router.gateway.phase import Phase


def attempt_of(exchange: RequestExchange) -> WorkerAttempt:
    assert exchange._attempt is not None
    return exchange._attempt


def phase_of(exchange: RequestExchange) -> Phase:
    return exchange._record.phase


def alive() -> int:
    kinds = (RequestExchange, WorkerAttempt)  # the record stays for the views
    return sum(isinstance(each, kinds) for each in gc.get_objects())


def test_an_answer_goes_through_the_states(bench: Bench) -> None:
    exchange, client = bench.start(chat(stream=True))
    attempt = attempt_of(exchange)
    assert (phase_of(exchange), attempt.head) == (Phase.SENT, NO_HEAD)
    bench.upstream.head(200, SSE)
    assert (phase_of(exchange), attempt.head.status, client.status) == (Phase.SENT, 200, None)
    bench.upstream.data(b"data: 1\n\n")
    assert (phase_of(exchange), client.status) == (Phase.ANSWERING, 200)
    assert not attempt.said_all()
    bench.upstream.data(b"data: [DONE]\n\n")
    assert attempt.said_all()
    bench.upstream.end()
    assert phase_of(exchange) is Phase.DONE
    assert exchange._attempt is None


def test_an_attempt_that_failed_is_followed_by_another_one(bench: Bench) -> None:
    exchange, client = bench.start(chat())
    first = attempt_of(exchange)
    bench.upstream.fail(WorkerSilent("silent"))
    second = attempt_of(exchange)
    assert second is not first
    assert (phase_of(exchange), first.reservation.released) == (Phase.SENT, True)
    bench.upstream.answer()
    assert (client.status, phase_of(exchange)) == (200, Phase.DONE)


def test_between_two_attempts_there_is_none(bench: Bench) -> None:
    """Both workers fail it, and one attempt is left: after a pause it goes to one of them again."""
    exchange, client = bench.start(chat())
    for _ in range(2):
        bench.upstream.fail(WorkerSilent("silent"))
    assert (phase_of(exchange), exchange._attempt) == (Phase.BETWEEN, None)
    exchange.interrupt()
    assert (client.status, phase_of(exchange)) == (503, Phase.DONE)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_one_call_is_that_of_three(bench: Bench, stream: bool) -> None:
    body = b'{"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}'
    seen = []
    for whole in (False, True):
        before = len(bench.shared.ops)
        exchange, client = bench.start(chat(stream=stream))
        record, upstream = exchange._record, bench.upstream
        if whole:
            upstream.over = True
            attempt_of(exchange).upstream_whole(200, b"content-type: application/json\r\n", body)
        else:
            upstream.answer(body)
        told = client.headers[b"content-type"], client.headers[b"x-cacheway-worker"]
        seen.append(
            (
                (client.status, told, client.length, client.body, client.finished),
                (record.bytes_sent, record.pieces, record.usage, record.outcome, record.first_byte_s),
                [type(op) for op in bench.shared.ops[before:]],
            )
        )
    assert seen[0] == seen[1]
    assert seen[0][1][2].completion_tokens == 3


class Noting:
    """A transport whose writes are noted only."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self.write = written.append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_whole_chunks_pass_as_they_came_and_count_as_if_parsed() -> None:
    """After the first events, which the parser sees; a torn event goes the long way again."""
    stage = Stage()
    client = stage._clients[0]
    written: list[bytes] = []
    client.transport = cast("asyncio.Transport", Noting(client.transport, written))
    client.data_received(small_request(stream=True))
    await asyncio.sleep(0)
    (connection,) = stage._asked["plain"]
    request = connection._request
    assert request is not None
    attempt = cast("WorkerAttempt", request.sink)
    record = attempt.record
    chunk = b"%X\r\n%b\r\n" % (len(EVENT), EVENT)
    torn = [b"%X\r\n%b\r\n" % (len(part), part) for part in (EVENT[:20], EVENT[20:])]
    for read in (STREAM_HEAD + chunk, chunk, chunk):
        connection.data_received(read)
    assert written[-1] is chunk
    assert b"%x\r\n%b\r\n" % (len(EVENT), EVENT) in written[0]
    before = len(written)
    connection.data_received(torn[0])
    assert len(written) == before
    connection.data_received(torn[1])
    connection.data_received(chunk)
    assert b"".join(written[before:]).count(b"data: ") == 2
    assert not attempt.said_all()  # it counts what passed
    assert (record.pieces, record.bytes_sent) == (6, 5 * len(EVENT))
    assert record.tail.bytes() == EVENT * 5
    connection.data_received(chunk)
    client.connection_lost(None)
    assert (request.passed, attempt.passed) == (None, None)
    assert (record.pieces, record.bytes_sent) == (7, 6 * len(EVENT))
    stage.close()


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_ended_is_freed_at_once(pairs: bool, stream: bool) -> None:
    """In a cycle it would keep its record and the end of its answer until the collector comes."""
    stage = Stage(pairs=pairs)
    answer = streamed_answer() if stream else small_answer()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        await stage.round(small_request(stream=stream), answer)
        assert alive() == before
    finally:
        gc.enable()
        stage.close()
