"""Errors of the admin API look like those of the data path."""

import httpx
import pytest
from fakes.admin import Setup, code


async def test_errors_have_the_openai_shape(setup: Setup) -> None:
    assert code(await setup.client.get("/nowhere")) == "not_found"
    wrong = await setup.client.put("/health")
    assert (code(wrong), wrong.status_code, wrong.headers["allow"]) == ("method_not_allowed", 405, "GET")
    assert wrong.json()["error"]["message"] == "/health takes GET, not PUT."
    typed = await setup.client.get("/v1/chat/completions")
    assert (code(typed), typed.status_code, typed.headers["allow"]) == ("method_not_allowed", 405, "POST")
    assert code(await setup.client.post("/v1/chat/completions")) == "not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"{}", "url"),
        (b'{"url": "http://a", "capacity_tokens": -1}', "capacity_tokens"),
        (b'{"url": "http://a", "worker_type": "router"}', "worker_type"),
        (b'{"url": "http://a", "role": "regular"}', "role"),
        (b'{"url": "http://a", "bootstrap_port": 0}', "bootstrap_port"),
        (b'{"url": "http://a", "handover": "rdma"}', "handover"),
        (b'{"url": "http://a", "dp_size": 0}', "dp_size"),
        (b'{"url": "http://a", "bootstrap_host": ""}', "bootstrap_host"),
        (b'{"url": "http://a", "labels": {"zone": 1}}', "labels.zone"),
    ],
)
async def test_a_body_that_is_wrong_says_where(setup: Setup, body: bytes, param: str | None) -> None:
    answer = await setup.client.post("/workers", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, code(answer)) == (400, "invalid_value")
    assert answer.json()["error"]["param"] == param


async def test_who_forgets_to_say_that_it_is_json_is_told(setup: Setup) -> None:
    """``curl -d`` declares its body as a form."""
    forms = {"content-type": "application/x-www-form-urlencoded"}
    for headers in (forms, {"content-type": "text/plain"}, {}):
        answer = await setup.client.post("/workers", content=b'{"url": "http://a:1"}', headers=headers)
        assert (answer.status_code, code(answer)) == (400, "invalid_value")
        assert "content-type: application/json" in answer.json()["error"]["message"]
    answer = await setup.client.post("/workers", content=b"[]", headers={"content-type": "application/json"})
    assert "content-type" not in answer.json()["error"]["message"]


async def test_a_mistake_of_ours_has_the_openai_shape_too(setup: Setup) -> None:
    """An answer that httpx cannot parse is a case without a handler."""
    setup.add("a:1")
    setup.answer = lambda _: 1 / 0
    transport = httpx.ASGITransport(setup.api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (500, "internal_error")


@pytest.mark.parametrize("path", ["/workers?limit=3", "/queue/tickets?limit=3&tenants=a", "/audit?limt=3"])
async def test_a_misspelt_parameter_is_refused_with_those_that_there_are(setup: Setup, path: str) -> None:
    answer = await setup.client.get(path)
    assert (answer.status_code, code(answer)) == (400, "unknown_parameter")
    assert "it knows" in answer.json()["error"]["message"]


async def test_a_slip_removes_no_worker(setup: Setup) -> None:
    """The worker would be removed at once, before it has drained."""
    setup.add("a")
    answer = await setup.client.delete("/workers/a:80?drian=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "drian")
    assert len(setup.registry.all()) == 1


@pytest.mark.parametrize("path", ["/health?t=1", "/v1/models?limit=20", "/list_workers?x=1"])
async def test_probes_and_clients_of_others_may_say_more(setup: Setup, path: str) -> None:
    assert (await setup.client.get(path)).status_code == 200
