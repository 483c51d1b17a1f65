"""Fields with which clients pose as others at an engine, over real sockets.

With another client's id they mix up or end its answer, with its blocks or salt they read its prompts.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.running import Fleet, RunningGateway, until

from router.gateway.bodies import HANDOVER_FIELDS
from router.gateway.endpoints import ENDPOINTS
from router.tenants.keys import digest_of, new_key

PROMPT = {
    "model": "m",
    "prompt": "x",
    "text": "x",
    "input": "x",
    "messages": [],
    "query": "q",
    "documents": [],
}

Seen = list[tuple[dict[bytes, bytes], Any]]


@contextlib.asynccontextmanager
async def recording() -> AsyncIterator[tuple[str, Seen]]:
    """A worker; its URL, and the headers and bodies of its requests."""
    seen: Seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = [line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2]]
                headers = {name.lower(): value for name, value in lines}
                body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
                answer = b'{"data":[{"id":"m"}]}'
                if head.startswith(b"POST"):
                    seen.append((headers, json.loads(body)))
                    answer = b"{}"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


def keys_file(path: Path, **salts: str) -> tuple[str, dict[str, dict[str, str]]]:
    """A file of tenants with their salts, and the headers of each."""
    keys = {name: new_key() for name in salts}
    tenants = {
        name: {"keys": [f"sha256:{digest_of(keys[name].encode()).hex()}"]} | ({"salt": salt} if salt else {})
        for name, salt in salts.items()
    }
    path.write_text(json.dumps({"tenants": tenants}))
    return str(path), {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}


async def ready(gateway: RunningGateway) -> RunningGateway:
    await until(lambda: all(local.state == "healthy" for local in gateway.process.registry.all()))
    return gateway


async def test_a_workers_id_of_a_request_is_ours_and_cannot_be_guessed(fleet: Fleet) -> None:
    """Any header may carry the client's id, which it still gets back."""
    async with recording() as (url, seen):
        gateway = await ready(await fleet.gateway(url))
        for header in ("x-request-id", "x-correlation-id", "x-trace-id", "request-id", "X-Request-ID"):
            answer = await gateway.client.post("/v1/completions", json=PROMPT, headers={header: "theirs"})
            assert answer.headers["x-request-id"] == "theirs"
        unnamed = await gateway.client.post("/v1/completions", json=PROMPT)
        ids = [headers[b"x-request-id"].decode() for headers, _ in seen]
        assert len(set(ids)) == 6
        assert "theirs" not in ids
        assert all(len(name) == 36 and int(name.removeprefix("req-"), 16) >= 0 for name in ids)
        assert len({name[:12] for name in ids}) == 6  # the start of an id does not predict the next one
        assert unnamed.headers["x-request-id"] == ids[-1]
        found = (await gateway.client.get("/decisions", params={"request_id": ids[0]})).json()["decisions"]
        assert [(each["request_id"], each["worker_request_id"]) for each in found] == [("theirs", ids[0])]


@pytest.mark.parametrize("large", [False, True])
async def test_no_body_names_a_request_or_says_how_kv_is_handed_over(fleet: Fleet, large: bool) -> None:
    """At each forwarded endpoint; `router/gateway/test_client_fields` covers every other value."""
    prompt = PROMPT | ({"messages": [{"role": "user", "content": "x" * 400_000}]} if large else {})
    async with recording() as (url, seen):
        gateway = await ready(await fleet.gateway(url))
        for endpoint in ENDPOINTS.values():
            body = {"rid": "theirs", **prompt, "request_id": ["theirs"]}
            assert (await gateway.client.post(endpoint, json=body)).status_code == 200
            assert seen.pop()[1] == prompt
            for name in HANDOVER_FIELDS:
                answer = await gateway.client.post(endpoint, json={**prompt, name: {"remote_host": "evil"}})
                error = answer.json()["error"]
                # Anthropic's errors name no parameter.
                assert (answer.status_code, error.get("param", name)) == (400, name)
                assert name in error["message"]
        assert not seen


async def test_no_header_chooses_a_rank_or_a_partner(fleet: Fleet) -> None:
    steering = {
        "x-data-parallel-rank": "3",
        "x-data-parallel-host": "evil",
        "x-prefill-url": "http://evil",
        "x-prefiller-host-port": "evil:80",
        "x-bootstrap-room": "1",
        "x-smg-target-worker": "0",
        "x-kv-transfer-params": "{}",
    }
    async with recording() as (url, seen):
        gateway = await ready(await fleet.gateway(url))
        answer = await gateway.client.post("/v1/completions", json=PROMPT, headers=steering)
        assert answer.status_code == 200
        assert not {name.decode() for name in seen[0][0]} & steering.keys()


async def test_an_operator_may_trust_clients_with_the_hand_over(fleet: Fleet) -> None:
    async with recording() as (url, seen):
        gateway = await ready(await fleet.gateway(url, fleet={"allow_client_kv_transfer": True}))
        body = PROMPT | {"kv_transfer_params": {"do_remote_prefill": True}, "data_parallel_rank": 1}
        answer = await gateway.client.post("/v1/completions", json=body | {"rid": "theirs"})
        assert answer.status_code == 200
        assert seen[0][1] == body


async def test_no_route_ends_or_reads_another_ones_request(fleet: Fleet) -> None:
    """Engines have such routes; none is forwarded. Stored responses are their tenant's (test_sessions.py)."""
    async with recording() as (url, seen):
        gateway = await ready(await fleet.gateway(url))
        for method, path in (
            ("POST", "/abort_request"),
            ("POST", "/open_session"),
            ("POST", "/close_session"),
            ("POST", "/pause_generation"),
        ):
            answer = await gateway.client.request(method, path, json={"rid": "", "abort_all": True})
            assert answer.status_code in (404, 405), path
        assert not seen


async def test_no_client_shares_the_cache_of_an_isolated_tenant(fleet: Fleet, tmp_path: Path) -> None:
    """Not even a client that knows the salt: neither at the engine, nor in the gateway's prediction."""
    salt = "s3cret-s3cret-s3cret"
    file, headers = keys_file(tmp_path / "keys.json", acme=salt, guest="", other="f" * 20)
    engine = await fleet.engine()
    gateway = await ready(
        await fleet.gateway(engine.url, tenancy={"keys_file": file}, server={"api_key": "operator"})
    )
    headers["operator"] = {"authorization": "Bearer operator"}
    headers["named"] = {"authorization": "Bearer operator", "x-tenant-id": salt}
    prompt = {"model": "emulated", "prompt": "a word " * 2000, "max_tokens": 1}

    async def cached(name: str, **fields: Any) -> tuple[int, int]:
        answer = await gateway.client.post("/v1/completions", json=prompt | fields, headers=headers[name])
        assert answer.status_code == 200, answer.text
        told = int(answer.headers["x-cacheway-cached-tokens"])
        details = answer.json()["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
        return details["cached_tokens"], told

    assert await cached("acme") == (0, 0)
    assert (await cached("acme"))[0] > 1000
    for name in ("guest", "other", "operator", "named"):
        assert await cached(name, cache_salt=salt) == (0, 0), name
        assert (await cached(name, cache_salt=salt))[0] > 1000  # within its tenant a salt counts
    assert await cached("acme", cache_salt=salt) == (0, 0)
