"""One attempt: the calls to its request in each state. ``test_exchange.py`` covers the clients' view."""

from fakes.gateway import SSE, Bench, chat

from router.errors import WorkerSilent
from router.gateway.attempt import NO_HEAD, WorkerAttempt
from router.gateway.exchange import RequestExchange
from router.gateway.phase import Phase


def attempt_of(exchange: RequestExchange) -> WorkerAttempt:
    assert exchange._attempt is not None
    return exchange._attempt


def phase_of(exchange: RequestExchange) -> Phase:
    return exchange._record.phase


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
