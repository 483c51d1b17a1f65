"""The admin API over scripted workers: what an operator reads there, and how it fails."""

from dataclasses import replace

import httpx
import pytest
from fakes.admin import WELL, Setup, code, unreachable

from router.fleet import ServedModel

# Health.


@pytest.mark.parametrize("path", ["/health", "/liveness"])
async def test_a_process_that_answers_is_alive(setup: Setup, path: str) -> None:
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/readiness", "/health_generate"])
async def test_a_replica_is_ready_while_a_worker_takes_requests(setup: Setup, path: str) -> None:
    assert (await setup.client.get(path)).status_code == 503
    a, _ = setup.add("a", "b")
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()["workers"]) == (200, {"healthy": 2, "total": 2})
    setup.registry.probed(a, ok=False, refused=True, detail="")
    assert (await setup.client.get(path)).json()["workers"] == {"healthy": 1, "total": 2}
    setup.registry.change("b:80", draining=True)
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()["status"]) == (503, "no_healthy_worker")


async def test_a_replica_that_shuts_down_is_alive_and_not_ready(setup: Setup) -> None:
    setup.add("a")
    setup.shutting_down = True
    answer = await setup.client.get("/readiness")
    assert (answer.status_code, answer.json()["status"]) == (503, "shutting_down")
    assert (await setup.client.get("/liveness")).status_code == 200


async def test_a_lost_redis_is_said_and_does_not_make_a_replica_unready(setup: Setup) -> None:
    setup.add("a")
    setup.status = replace(
        WELL, connected=False, degraded_reason="unreachable", buffered_ops=3, dropped_ops=2, skipped_ops=1
    )
    answer = await setup.client.get("/readiness")
    shared = answer.json()["shared"]
    assert (answer.status_code, shared["degraded"]) == (200, "unreachable")
    assert (shared["buffered_ops"], shared["dropped_ops"], shared["skipped_ops"]) == (3, 2, 1)


async def test_metrics_are_prometheus_text(setup: Setup) -> None:
    answer = await setup.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "cacheway_build_info" in answer.text


async def test_links_remote_prefill_and_roles_have_views(setup: Setup) -> None:
    """What they say is tested with each of them."""
    assert (await setup.client.get("/links")).json() == {"links": []}
    assert (await setup.client.get("/offload")).json()["threshold_tokens"] == 7
    assert (await setup.client.get("/roles")).json()["mode"] == "recommend"


# The key.


@pytest.mark.parametrize("path", ["/health", "/liveness", "/readiness", "/metrics"])
async def test_probes_and_scrapers_need_no_key(locked: Setup, path: str) -> None:
    assert (await locked.client.get(path)).status_code != 401


@pytest.mark.parametrize("path", ["/workers", "/v1/models", "/openapi.json", "/docs", "/nowhere", "/health/"])
async def test_everything_else_asks_for_the_key(locked: Setup, path: str) -> None:
    answer = await locked.client.get(path)
    assert (answer.status_code, code(answer)) == (401, "invalid_api_key")
    assert (await locked.client.get(path, headers={"authorization": "Bearer ours"})).status_code != 401


async def test_every_answer_carries_the_requests_id(locked: Setup) -> None:
    for path in ("/health", "/workers", "/nowhere"):
        answer = await locked.client.get(path, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-cacheway-worker"] == "none"


# Errors.


async def test_errors_have_the_openai_shape(setup: Setup) -> None:
    assert code(await setup.client.get("/nowhere")) == "not_found"
    wrong = await setup.client.put("/health")
    assert (code(wrong), wrong.status_code, wrong.headers["allow"]) == ("method_not_allowed", 405, "GET")


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


# Models.


async def test_models_are_merged_with_the_length_that_every_worker_takes(setup: Setup) -> None:
    a, b, c = setup.add("a", "b", "c")
    setup.registry.described(a, (ServedModel("m", 8192, "vllm"), ServedModel("x")), "", 0)
    setup.registry.described(b, (ServedModel("m", 4096),), "", 0)
    setup.registry.described(c, (ServedModel("m"),), "", 0)
    listed = (await setup.client.get("/v1/models")).json()
    models = {model["id"]: (model["workers"], model["max_model_len"]) for model in listed["data"]}
    assert models == {"m": (3, 4096), "x": (1, None)}
    assert (await setup.client.get("/v1/models/m")).json()["owned_by"] == "vllm"
    missing = await setup.client.get("/v1/models/org/name")
    assert (missing.status_code, code(missing)) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/get_model_info", "/get_server_info", "/server_info"])
async def test_what_a_worker_says_of_itself_passes_through(setup: Setup, path: str) -> None:
    a, _ = setup.add("a", "b")
    setup.registry.probed(a, ok=False, refused=True, detail="")
    setup.answer = lambda request: httpx.Response(203, json={"path": request.url.path})
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()) == (203, {"path": path})
    assert answer.headers["x-cacheway-worker"] == "b:80"


async def test_a_mistake_of_ours_has_the_openai_shape_too(setup: Setup) -> None:
    """An answer that httpx cannot make sense of is no case anybody planned for."""
    setup.add("a:1")
    setup.answer = lambda _: 1 / 0
    transport = httpx.ASGITransport(setup.api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (500, "internal_error")


async def test_without_a_worker_to_ask_the_answer_says_when_to_come_back(setup: Setup) -> None:
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (503, "no_worker_available")
    assert answer.headers["retry-after"] == "2"


async def test_a_worker_that_does_not_answer_is_a_bad_gateway(setup: Setup) -> None:
    setup.add("a")
    setup.answer = unreachable
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (502, "upstream_error")
