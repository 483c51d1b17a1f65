"""Parts of answers that the gateway itself writes."""

import json

import pytest

from policies import (
    SLO_UNREACHABLE,
    Displaced,
    Expired,
    QueueFull,
    QueueRefusal,
    Shed,
    Unpublished,
    Unserved,
)
from router.errors import (
    NoWorker,
    Overloaded,
    RequestExpired,
    StreamBroken,
    UpstreamError,
    WorkerRefused,
    WorkerSilent,
)
from router.gateway.answer import error_event, error_of, without_worker
from router.gateway.endpoints import Endpoint

ERROR = StreamBroken('reset\nwhile "streaming"')


@pytest.mark.parametrize(("endpoint", "name"), [(Endpoint.CHAT, ""), (Endpoint.MESSAGES, "error")])
def test_an_error_event_stands_alone_behind_an_event_that_has_ended(endpoint: Endpoint, name: str) -> None:
    stream = b"data: {}\n\n" + error_event(endpoint.encode(), ERROR, b"req-1")
    _, event, rest = stream.decode().split("\n\n")
    fields = dict(line.split(": ", 1) for line in event.split("\n"))
    assert fields.get("event", "") == name
    assert json.loads(fields["data"])["error"]["message"] == ERROR.message
    if name:
        assert json.loads(fields["data"])["error"]["type"] == "api_error"
        assert json.loads(fields["data"])["request_id"] == "req-1"
    else:
        assert json.loads(fields["data"])["error"]["code"] == "upstream_stream_broken"
    assert rest == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WorkerRefused("http://10.0.0.7:30000 refuses connections"), 502),
        (WorkerSilent("http://10.0.0.7:30000 did not answer within 5 s"), 504),
        (ERROR, 502),
    ],
)
def test_an_error_can_be_told_without_its_worker(error: UpstreamError, status: int) -> None:
    shown = without_worker(error)
    assert (shown.status, shown.code, shown.kind) == (status, error.code, error.kind)
    assert "10.0.0.7" not in shown.message
    assert error.message not in shown.message


def test_what_says_nothing_of_a_worker_is_told_as_it_is() -> None:
    for error in (RequestExpired(5.0), WorkerSilent("The request took 5 s.", code="request_timeout")):
        assert without_worker(error) is error


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (QueueFull(5, 10, 2.0), 429, "queue_full"),
        (Displaced(2.0), 429, "request_displaced"),
        (Expired(2.0, by_operator=True), 408, "request_expired"),
        (Unserved(ValueError("a mistake of ours")), 500, "internal_error"),
        (Unpublished(), 500, "internal_error"),
        (Shed("no_worker", 2.0), 503, "no_worker_available"),
        (Shed(SLO_UNREACHABLE, 2.0, "ttft of 3.3 s predicted, 2 s promised"), 429, SLO_UNREACHABLE),
    ],
)
def test_every_outcome_has_an_error(refusal: QueueRefusal, status: int, code: str) -> None:
    error = error_of(refusal)
    assert (error.status, error.code) == (status, code)


def test_what_a_request_found_out_itself_is_its_error() -> None:
    found = NoWorker("nobody", retry_after_s=3)
    assert error_of(Unserved(found)) is found


def test_a_full_queue_says_how_full_it_is() -> None:
    error = error_of(QueueFull(5, 10, 2.0))
    assert error.message == "5 requests with 10 uncached tokens are waiting already."
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 2.0


def test_a_wait_that_expired_says_how_long_it_was() -> None:
    assert error_of(Expired(0.5)).message.startswith("The request's deadline passed after 0.5")
