"""The older routers' dialect of the admin API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fakes.admin import Setup, code, unreachable
from fakes.running import until
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from router.admin.peers import add_encoders
from router.engines import Description
from router.errors import RouterError
from router.fleet import HealthRules, Registry, ServedModel, normal_url, worker_id_of
from tests.fakes.gateway import FakeShared, VirtualTime, registry


async def shown(setup: Setup, worker_id: str) -> dict[str, Any]:
    answer = await setup.client.get(f"/workers/{worker_id}")
    return dict(answer.json())


async def added(setup: Setup, **params: Any) -> httpx.Response:
    """Add a worker whose first probe succeeds while its adder waits."""
    asked = asyncio.ensure_future(setup.client.post("/add_worker", params=params))
    worker_id = worker_id_of(normal_url(params["url"]))
    await until(lambda: setup.registry.get(worker_id) is not None or asked.done())
    local = setup.registry.get(worker_id)
    if local is not None and not asked.done():
        setup.registry.probed(local, ok=True, refused=False, detail="")
    return await asked


async def test_the_older_routers_spelling_works(setup: Setup) -> None:
    """Their status codes, and their words."""
    answer = await added(setup, url="http://a")
    assert (answer.status_code, answer.text) == (200, "Successfully added worker: http://a")
    assert setup.registry.get("a:80") is not None
    again = await setup.client.post("/add_worker", params={"url": "http://a"})
    assert (again.status_code, code(again)) == (400, "worker_exists")
    assert (await setup.client.get("/list_workers")).json() == {"urls": ["http://a:80"]}
    for _ in range(2):
        removed = await setup.client.post("/remove_worker", params={"url": "http://a:80"})
        assert (removed.status_code, removed.text) == (200, "Successfully removed worker: http://a:80")
    assert (await setup.client.post("/add_worker")).status_code == 400


async def test_a_worker_that_does_not_come_up_is_not_added(setup: Setup) -> None:
    setup.registry.rules = HealthRules(worker_startup_timeout_s=0.05)
    answer = await setup.client.post("/add_worker", params={"url": "http://dead"})
    assert (answer.status_code, code(answer)) == (400, "worker_not_healthy")
    assert (await setup.client.get("/list_workers")).json() == {"urls": []}


async def test_an_adder_hears_if_its_worker_is_removed_meanwhile(setup: Setup) -> None:
    asked = asyncio.ensure_future(setup.client.post("/add_worker", params={"url": "http://a"}))
    await until(lambda: setup.registry.get("a:80") is not None)
    setup.registry.remove("a:80")
    assert code(await asked) == "worker_not_found"


async def test_the_older_spelling_names_roles_and_ports(setup: Setup) -> None:
    said: dict[str, Any] = {"url": "http://a:1", "worker_type": "prefill", "bootstrap_port": 9000}
    assert (await added(setup, **said)).status_code == 200
    one = await shown(setup, "a:1")
    assert (one["role"], one["labels"]) == ("prefill", {"bootstrap_port": "9000"})
    wrong = await setup.client.post("/add_worker", params={"url": "http://b", "bootstrap_port": 70000})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "bootstrap_port")


@pytest.fixture
def workers() -> Registry:
    return registry(FakeShared(), VirtualTime())


@pytest.fixture
async def client(workers: Registry) -> AsyncIterator[httpx.AsyncClient]:
    api = FastAPI()
    add_encoders(api, workers)

    @api.exception_handler(RouterError)
    async def refused(_: Request, error: RouterError) -> JSONResponse:
        return JSONResponse({"code": error.code}, error.status)

    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_an_encoder_comes_and_goes(workers: Registry, client: httpx.AsyncClient) -> None:
    """Registered twice, it is there once; the address of the call is the engine's own."""
    for _ in range(2):
        assert (await client.post("/register_encoder_url", json={"url": "http://e:1/"})).status_code == 200
    workers.add("http://p:1")
    local = workers.get("e:1")
    assert local is not None
    assert local.worker.role == "encode"
    assert (await client.get("/list_encoder_urls")).json() == {"encoder_urls": ["http://e:1"]}

    assert (
        await client.request("DELETE", "/unregister_encoder_url", json={"url": "http://e:1"})
    ).status_code == 200
    assert workers.get("e:1") is None


@pytest.mark.parametrize("url", ["http://e:1", "http://p:1"])
async def test_only_an_encoder_can_be_unregistered(
    workers: Registry, client: httpx.AsyncClient, url: str
) -> None:
    workers.add("http://p:1")
    gone = await client.request("DELETE", "/unregister_encoder_url", json={"url": url})
    assert (gone.status_code, gone.json()["code"]) == (404, "worker_not_found")
    assert workers.get("p:1") is not None


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
async def test_no_other_worker_becomes_an_encoder(
    workers: Registry, client: httpx.AsyncClient, role: str
) -> None:
    """One request would end the service of a fleet with one worker."""
    workers.add("http://p:1", role=role)
    for url in ("http://p:1", "http://P:1/", "p:1", "https://p:1"):
        answer = await client.post("/register_encoder_url", json={"url": url})
        assert (answer.status_code, answer.json()["code"]) == (409, "worker_exists")
    local = workers.get("p:1")
    assert local is not None
    assert local.worker.role == role


async def test_an_encoder_that_others_named_stays_as_it_is(
    workers: Registry, client: httpx.AsyncClient
) -> None:
    workers.add("http://e:1", role="encode", labels={"zone": "b"}, capacity_tokens=7)
    workers.change("e:1", draining=True)
    before = workers.all()[0].worker
    assert (await client.post("/register_encoder_url", json={"url": "http://e:1"})).status_code == 200
    gone = await client.request("DELETE", "/unregister_encoder_url", json={"url": "http://e:1"})
    assert (gone.status_code, gone.json()["code"]) == (409, "not_registered")
    assert workers.all()[0].worker == before


async def test_an_encoder_leaves_after_somebody_changed_it(
    workers: Registry, client: httpx.AsyncClient
) -> None:
    await client.post("/register_encoder_url", json={"url": "http://e:1"})
    workers.change("e:1", labels={"zone": "b"})
    gone = await client.request("DELETE", "/unregister_encoder_url", json={"url": "http://e:1"})
    assert gone.status_code == 200
    assert workers.all() == []


async def test_models_are_merged_with_the_length_that_every_worker_takes(setup: Setup) -> None:
    a, b, c = setup.add("a", "b", "c")
    setup.registry.described(a, (ServedModel("m", 8192, "vllm"), ServedModel("x")), Description("", 0))
    setup.registry.described(b, (ServedModel("m", 4096),), Description("", 0))
    setup.registry.described(c, (ServedModel("m"),), Description("", 0))
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


async def test_without_a_worker_to_ask_the_answer_says_when_to_come_back(setup: Setup) -> None:
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (503, "no_worker_available")
    assert answer.headers["retry-after"] == "2"


async def test_a_worker_that_does_not_answer_is_a_bad_gateway(setup: Setup) -> None:
    setup.add("a")
    setup.answer = unreachable
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (502, "upstream_error")
