"""Answers that hide workers and their caches from tenants, if an operator wants that."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.attacker import worker
from fakes.running import Fleet, RunningGateway, until

from router.fleet import Registry
from router.tenants.keys import digest_of, new_key

PROMPT = {"model": "m", "prompt": "a word " * 500, "max_tokens": 1}

OPERATOR = {"authorization": "Bearer operator"}


def keys_file(path: Path) -> str:
    """Write a keys file of one tenant; return its key."""
    key = new_key()
    path.write_text(json.dumps({"tenants": {"acme": {"keys": [f"sha256:{digest_of(key.encode()).hex()}"]}}}))
    return key


async def hiding(
    fleet: Fleet, path: Path, *urls: str, **sections: Any
) -> tuple[RunningGateway, dict[str, str]]:
    """A gateway that hides its workers, and the headers of a tenant of it."""
    key = keys_file(path)
    gateway = await fleet.gateway(
        *urls,
        tenancy={"keys_file": str(path), "answer_details": "none"},
        server={"api_key": "operator"},
        **sections,
    )
    await until(lambda: all(local.state == "healthy" for local in gateway.process.registry.all()))
    return gateway, {"authorization": f"Bearer {key}"}


def told(answer: httpx.Response) -> set[str]:
    return {name for name in answer.headers if name.startswith("x-cacheway-")}


async def test_a_tenant_hears_of_no_worker_and_no_cache_and_the_operator_of_both(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Twice, so that the second answer would reveal a cache. The operator finds the worker by the id."""
    engine = await fleet.engine()
    gateway, tenant = await hiding(fleet, tmp_path / "keys.json", engine.url)
    body = PROMPT | {"model": "emulated"}
    for stream in (False, True):
        answer = await gateway.client.post(
            "/v1/completions", json=body | {"stream": stream}, headers=tenant | {"x-request-id": "mine"}
        )
        assert answer.status_code == 200
        assert told(answer) == set()
        assert answer.headers["x-request-id"] == "mine"
        assert str(engine.url).removeprefix("http://") not in str(answer.headers)
    answer = await gateway.client.post("/v1/completions", json=body, headers=OPERATOR)
    assert answer.headers["x-cacheway-worker"] == engine.url.removeprefix("http://")
    assert int(answer.headers["x-cacheway-cached-tokens"]) > 0
    found = await gateway.client.get("/decisions", params={"request_id": "mine"}, headers=OPERATOR)
    assert {each["worker"] for each in found.json()["decisions"]} == {engine.url.removeprefix("http://")}


@pytest.mark.parametrize("pretence", [{"x-tenant-id": "operator"}, {"x-api-key": "operator"}])
async def test_a_tenant_does_not_pass_for_the_operator(
    fleet: Fleet, tmp_path: Path, pretence: dict[str, str]
) -> None:
    engine = await fleet.engine()
    gateway, tenant = await hiding(fleet, tmp_path / "keys.json", engine.url)
    answer = await gateway.client.post(
        "/v1/completions", json=PROMPT | {"model": "emulated"}, headers=tenant | pretence
    )
    assert (answer.status_code, told(answer)) == (200, set())


async def test_an_error_tells_no_address(fleet: Fleet, tmp_path: Path) -> None:
    """Workers: gone, breaking off, no HTTP, and breaking a stream; the log names the worker."""
    how = iter(range(100))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        answers = (b"", b"nonsense\r\n\r\n", head, head + b"9\r\ndata: 1\n\n\r\n")
        writer.write(answers[next(how) % len(answers)])
        writer.close()

    async with worker(serve) as url:
        gateway, tenant = await hiding(
            fleet,
            tmp_path / "keys.json",
            url,
            reliability={"disable_retries": True, "cb_failure_threshold": 99},
        )
        port = url.rpartition(":")[2]
        codes = set()
        for _ in range(4):
            answer = await gateway.client.post(
                "/v1/completions", json=PROMPT | {"stream": True}, headers=tenant
            )
            assert port not in answer.text
            assert "127.0.0.1" not in answer.text
            assert told(answer) == set()
            codes.add(json.loads(answer.text.rpartition("data: ")[2])["error"]["code"])
        assert codes == {"upstream_unreachable", "upstream_stream_broken"}
        answer = await gateway.client.post("/v1/completions", json=PROMPT, headers=OPERATOR)
        assert port in answer.text


async def test_by_default_a_tenant_sees_a_name_that_only_operators_can_look_up(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Two replicas give a worker one name, and an error has no address in it."""
    engine, path = await fleet.engine(), tmp_path / "keys.json"
    tenant = {"authorization": f"Bearer {keys_file(path)}"}
    names = []
    for _ in range(2):
        gateway = await fleet.gateway(
            engine.url, tenancy={"keys_file": str(path)}, server={"api_key": "operator"}
        )
        registry = gateway.process.registry
        await until(partial(all_healthy, registry))
        body = PROMPT | {"model": "emulated"}
        answer = await gateway.client.post("/v1/completions", json=body, headers=tenant)
        names.append(answer.headers["x-cacheway-worker"])
        assert names[0].startswith("w-")
        shown = (await gateway.client.get("/workers", headers=OPERATOR)).json()["workers"]
        assert [each["opaque_name"] for each in shown] == [names[0]]
        own = await gateway.client.post("/v1/completions", json=body, headers=OPERATOR)
        assert own.headers["x-cacheway-worker"] == engine.url.removeprefix("http://")
    assert names[0] == names[1]


def all_healthy(registry: Registry) -> bool:
    return all(local.state == "healthy" for local in registry.all())
