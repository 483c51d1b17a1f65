"""What the gateway writes into answers itself."""

import json

import pytest

from router.errors import RequestExpired, StreamBroken, UpstreamError, WorkerRefused, WorkerSilent
from router.gateway.answer import error_event, without_worker
from router.gateway.endpoints import Endpoint

ERROR = StreamBroken('reset\nwhile "streaming"')


@pytest.mark.parametrize(("endpoint", "name"), [(Endpoint.CHAT, ""), (Endpoint.MESSAGES, "error")])
def test_an_error_event_stands_alone_behind_an_event_that_has_ended(endpoint: Endpoint, name: str) -> None:
    stream = b"data: {}\n\n" + error_event(endpoint, ERROR)
    _, event, rest = stream.decode().split("\n\n")
    fields = dict(line.split(": ", 1) for line in event.split("\n"))
    assert fields.get("event", "") == name
    assert json.loads(fields["data"])["error"]["message"] == ERROR.message
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
