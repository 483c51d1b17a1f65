"""Requirements of every route, and headers of every answer."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fakes.admin import Setup, code

from router.admin import gate
from router.admin.gate import BODY_BYTES_MAX


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


async def test_every_route_may_be_written_with_a_prefix(setup: Setup) -> None:
    (worker,) = setup.add("a")
    for path in ("/health", "/workers", f"/workers/{worker.worker.worker_id}", "/queue"):
        bare, prefixed = [await setup.client.get(path), await setup.client.get(f"/admin{path}")]
        assert (prefixed.status_code, prefixed.json()) == (bare.status_code, bare.json())
    assert (await setup.client.get("/administer")).status_code == 404


async def test_the_prefix_opens_no_door(locked: Setup) -> None:
    assert (await locked.client.get("/admin/workers")).status_code == 401
    assert (await locked.client.get("/admin/liveness")).status_code == 200


async def test_without_a_key_pages_of_other_sites_change_nothing(setup: Setup) -> None:
    """A page that an operator visits may send such a request by itself."""
    setup.add("a")
    answer = await setup.client.delete("/workers/a:80", headers={"origin": "https://evil.example"})
    assert (answer.status_code, code(answer)) == (403, "other_site")
    assert len(setup.registry.all()) == 1
    own = await setup.client.delete("/workers/a:80", headers={"origin": "http://localhost"})
    assert own.status_code == 202


async def test_an_encoder_that_comes_is_a_change_and_one_that_is_there_is_none(setup: Setup) -> None:
    for _ in range(3):
        answer = await setup.client.post("/register_encoder_url", json={"url": "http://e:1"})
        assert answer.status_code == 200
    (change,) = (await setup.client.get("/audit")).json()["changes"]
    assert (change["actor"], change["target"]) == ("anonymous", "http://e:1")
    assert change["action"] == "POST /register_encoder_url"
    too_long = await setup.client.post("/register_encoder_url", content=b"x" * (BODY_BYTES_MAX + 1))
    assert (too_long.status_code, code(too_long)) == (413, "body_too_large")


async def test_encoders_need_the_key(locked: Setup) -> None:
    for method, path in (("POST", "/register_encoder_url"), ("DELETE", "/unregister_encoder_url")):
        for prefix in ("", "/admin"):
            answer = await locked.client.request(method, prefix + path, json={"url": "http://e:1"})
            assert (answer.status_code, code(answer)) == (401, "invalid_api_key")
    assert (await locked.client.get("/list_encoder_urls")).status_code == 401
    assert locked.registry.all() == []
    headers = {"authorization": "Bearer ours"}
    answer = await locked.client.post("/register_encoder_url", json={"url": "http://e:1"}, headers=headers)
    assert answer.status_code == 200


async def test_with_a_key_it_does_not_matter_where_it_comes_from(locked: Setup) -> None:
    headers = {"authorization": "Bearer ours", "origin": "https://console.example"}
    assert (await locked.client.get("/workers", headers=headers)).status_code == 200


async def test_a_change_is_short(setup: Setup) -> None:
    """A client that may change something may not fill the memory; bodies without length are counted too."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (BODY_BYTES_MAX // 2)

    for content in (b"x" * (BODY_BYTES_MAX + 1), pieces()):
        answer = await setup.client.post("/workers", content=content)
        assert (answer.status_code, code(answer)) == (413, "body_too_large")
    assert setup.registry.all() == []
    padding = "x" * (BODY_BYTES_MAX // 2)  # a field that no route reads
    answer = await setup.client.post("/workers", json={"url": "http://a:80", "padding": padding})
    assert answer.status_code == 202


async def test_a_change_comes_at_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_S_MAX", 0.01)
    never = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    answer = await setup.client.post("/workers", content=pieces())
    assert (answer.status_code, code(answer)) == (408, "read_timeout")


@pytest.mark.parametrize("path", ["/health", "/ping", "/v1/models", "/workers", "/metrics", "/nowhere"])
async def test_head_is_get_without_a_body(setup: Setup, path: str) -> None:
    """Balancers probe with HEAD."""
    head, get = await setup.client.head(path), await setup.client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
