"""The worker that keeps a response, and access to it. On sockets: `tests/integration/test_sessions.py`."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fakes.gateway import Bench, FakeClient

from router.errors import ClientError, NoWorker
from router.proxy import ClientRequest, RequestHead
from router.relaying import Relaying, Routes
from router.relaying.responses import IdReader, fields_of, worker_of
from router.shared import StoredResponses
from router.tenant import ANONYMOUS, Tenant

ACME = Tenant("acme")

Ask = Callable[..., FakeClient]


@pytest.fixture
def ask(bench: Bench, responses: StoredResponses) -> Ask:
    """Send ``POST /v1/responses``."""
    relaying = Relaying(bench.gateway, Routes(bench.settings), lambda *_: None, responses)  # type: ignore[arg-type, return-value]

    def post(**fields: Any) -> FakeClient:
        client = FakeClient()
        bench.clients.append(client)
        body = orjson.dumps({"model": "m", "input": "Hello", **fields})
        path, now_s = b"/v1/responses", bench.gateway.now_s()
        relaying(ClientRequest(RequestHead(b"POST", path), body, "", now_s), client)
        return client

    return post


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"input": "x"}', ("", True)),
        (b'{"previous_response_id": "resp_1"}', ("resp_1", True)),
        (b'{"previous_response_id": null, "store": false}', ("", False)),
        (b'{"store": null, "input": "\\u00fc"}', ("", True)),
        (b'{"\\u0070revious_response_id": "resp_2"}', ("resp_2", True)),
        (b'{"input": "\\"previous_response_id\\": \\"resp_3\\""}', ("", True)),
        (b'{"previous_response_id": "a", "previous_response_id": "b"}', ("b", True)),
        (b'{"previous_response_id": 5}', ("", True)),
        (b'{"previous_response_id"', ("", True)),
    ],
)
def test_the_fields_are_found_however_they_are_written(body: bytes, expected: tuple[str, bool]) -> None:
    assert fields_of(body) == expected


def test_a_response_is_gone_on_from_where_it_is(bench: Bench, ask: Ask) -> None:
    """Even if others are cheaper: they do not know the response."""
    ask()
    first = bench.upstream.pool
    bench.upstream.answer(b'{"id":"resp_1","object":"response"}')
    for number in range(2, 6):
        ask(input=f"Something else, {number}.", previous_response_id=f"resp_{number - 1}")
        assert bench.upstream.pool is first
        bench.upstream.answer(b'{"id":"resp_%d"}' % number)


def test_a_response_that_is_not_stored_is_not_remembered(
    bench: Bench, ask: Ask, responses: StoredResponses
) -> None:
    ask(store=False)
    bench.upstream.answer(b'{"id":"resp_1"}')
    assert len(responses) == 0


def test_a_response_whose_worker_is_gone_says_so(bench: Bench, ask: Ask) -> None:
    ask()
    url = bench.upstream.pool.url
    bench.upstream.answer(b'{"id":"resp_1"}')
    (gone,) = [each.worker.worker_id for each in bench.registry.all() if each.worker.url == url]
    bench.registry.remove(gone)
    client = ask(previous_response_id="resp_1")
    assert (client.status, client.error["code"]) == (410, "response_gone")


@pytest.mark.parametrize(("named", "status"), [(None, 503), ("w9:80", 410)])
def test_what_other_replicas_say_counts(ask: Ask, responses: Any, named: str | None, status: int) -> None:
    responses.elsewhere = named
    assert ask(previous_response_id="resp_7").status == status


def test_a_tenant_has_its_own_responses_only(bench: Bench, responses: StoredResponses) -> None:
    responses.keep("acme", "resp_1", "w0:80")
    heard: list[str | None] = []
    for tenant in (ACME, Tenant("other"), ANONYMOUS):
        responses.find(tenant.name, "resp_1", heard.append)
    assert heard == ["w0:80", "", ""]
    with pytest.raises(ClientError) as caught:
        worker_of(bench.gateway, Tenant("other"), "resp_1", "")
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")
    assert worker_of(bench.gateway, ANONYMOUS, "resp_1", "") is None
    found = worker_of(bench.gateway, ACME, "resp_1", "w0:80")
    assert found is not None
    assert found.worker.worker_id == "w0:80"
    with pytest.raises(NoWorker):
        worker_of(bench.gateway, ACME, "resp_1", None)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b'{"id": "resp_a", "output": []}'], ["resp_a"]),
        (
            [b'event: response.created\ndata: {"response":{"id":"re', b'sp_b","x":1}}\n\n', b"more"],
            ["resp_b"],
        ),
        ([b'{"previous_response_id":"resp_a","output":[{"id":"msg_1"}]}'], []),
        ([b'{"text":"\\"id\\":\\"resp_c\\""}'], []),
        ([b"x" * 70_000, b'{"id":"resp_d"}'], []),
    ],
)
def test_the_id_is_read_at_the_begin_of_an_answer(pieces: list[bytes], expected: list[str]) -> None:
    found: list[str] = []
    client = FakeClient()
    reader = IdReader(client, found.append)
    reader.send_head(200, b"", body=pieces[0])
    for piece in pieces[1:]:
        reader.send_body(piece)
    assert found == expected
    assert client.body == b"".join(pieces)


def test_an_error_names_no_response() -> None:
    found: list[str] = []
    reader = IdReader(FakeClient(), found.append)
    reader.send_head(400, b"", body=b'{"id":"resp_a"}')
    assert found == []
