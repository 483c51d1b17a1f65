"""What the gateway writes into answers itself."""

import json

import pytest

from router.errors import StreamBroken
from router.gateway.answer import error_event
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
