import pytest
from fakes.gateway import Bench, chat
from fakes.proxy_stream import Proxy

from policies import FirstToken
from router.errors import WorkerUnreachable
from router.fleet import LocalWorker
from router.picker.exchange import OneAttempt, PickedExchange


def sent(bench: Bench) -> tuple[Proxy, PickedExchange]:
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat(stream=True))
    (exchange,) = bench.gateway.sending.exchanges
    assert isinstance(exchange, PickedExchange)
    return proxy, exchange


def test_a_request_of_a_proxy_is_one_of_the_gateways() -> None:
    bench = Bench()
    proxy, exchange = sent(bench)
    assert bench.gateway.sending.inflight == 1
    assert not exchange.done
    proxy.stream.gone()
    assert exchange.done
    assert bench.upstreams == []  # no connection of ours


def test_the_head_of_an_answer_can_stand_for_its_first_token() -> None:
    bench = Bench()
    _, exchange = sent(bench)
    exchange.answer_began()
    assert len(bench.shared.said(FirstToken)) == 1
    assert exchange.record.first_byte_s
    exchange.client_left()
    exchange.answer_began()
    assert len(bench.shared.said(FirstToken)) == 1


def test_no_second_attempt_is_made() -> None:
    """A failure without an answer counts against the worker; one with a status counts when it ends."""
    bench = Bench()
    _, exchange = sent(bench)
    attempt, dispatcher = exchange._attempt, exchange._dispatcher
    assert attempt is not None
    assert dispatcher is not None
    _, retries = exchange.parties_of(dispatcher)
    assert isinstance(retries, OneAttempt)
    local: LocalWorker = attempt.reservation.local
    assert local.breaker is not None
    error = WorkerUnreachable("gone", code="upstream_reset")
    assert not retries.redispatched(attempt, error, 503)
    assert not retries.redispatched(attempt, error, None)
    assert not retries.may_leave([])
    retries.answers_well()
    with pytest.raises(AssertionError):
        retries.leave(attempt, local, [], error)
    exchange.client_left()
