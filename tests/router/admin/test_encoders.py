"""Encoders that register themselves."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from router.admin.encoders import add_encoders
from router.errors import RouterError
from router.fleet import Registry
from tests.fakes.gateway import FakeShared, VirtualTime, registry


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
