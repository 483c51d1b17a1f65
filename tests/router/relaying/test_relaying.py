"""Which exchange serves a path that is no endpoint with a JSON body."""

from typing import Any

import pytest
from fakes.gateway import Bench, FakeClient

from router.proxy import ClientRequest, RequestHead
from router.relaying import Relaying, Routes
from router.relaying.relay import RelayExchange
from router.shared import StoredResponses


@pytest.mark.parametrize("path", [b"/encode", b"/send"])
def test_calls_of_encoders_go_to_their_own_exchange(
    bench: Bench, responses: StoredResponses, path: bytes
) -> None:
    started: list[ClientRequest] = []

    def encode(request: ClientRequest, _: Any) -> Any:
        started.append(request)

    relaying = Relaying(bench.gateway, Routes(bench.settings), encode, responses)
    request = ClientRequest(RequestHead(b"POST", path), b"{}", "", 0.0)
    relaying(request, None)  # type: ignore[arg-type]
    assert started == [request]


def test_a_stored_response_is_asked_for_without_a_body(bench: Bench, responses: StoredResponses) -> None:
    client = FakeClient()
    bench.clients.append(client)
    relaying = Relaying(bench.gateway, Routes(bench.settings), lambda *_: None, responses)  # type: ignore[arg-type, return-value]
    request = ClientRequest(
        RequestHead(b"GET", b"/v1/responses/resp_1", b"stream=true"), b"", "", bench.gateway.now_s()
    )
    assert isinstance(relaying(request, client), RelayExchange)
    sent = bench.upstream.sent
    assert (sent["method"], sent["path"], sent["query"]) == (b"GET", b"/v1/responses/resp_1", b"stream=true")
    bench.upstream.answer()
    assert client.status == 200
