"""A client without a credential, or with a tenant's, changes the fleet, or gets the key of its workers.

Before, one request to the data port turned the only worker into an encoder for all replicas, and health
checks sent ``fleet.worker_api_key`` to any registered URL.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.running import PLAIN, WITHIN_S, Fleet, RunningGateway, until, until_async

from loadtest.processes import free_port
from router.fleet import worker_id_of
from router.tenants.keys import digest_of

FLEET_KEY = "fleet-worker-secret"
OURS = {"authorization": "Bearer ours"}
MESSAGE = {"model": "emulated", "prompt": "hello", "max_tokens": 2}


@contextlib.asynccontextmanager
async def listener() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A stranger's server, which answers everything well, and the heads of its requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length: "):
                        await reader.readexactly(int(line[16:]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


@contextlib.asynccontextmanager
async def operating(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway's admin port."""
    url = f"http://127.0.0.1:{gateway.process.settings.admin.port}"
    async with httpx.AsyncClient(base_url=url, timeout=WITHIN_S, verify=PLAIN, trust_env=False) as client:
        yield client


def keys_file(folder: Path, head: str, entry: str, **named: str) -> str:
    """A file of hashes; each name is its own secret."""
    lines = [
        f"  {name}: {{{entry % digest_of(name.encode()).hex()}{more}}}\n" for name, more in named.items()
    ]
    file = folder / f"{head}.yaml"
    file.write_text(f"{head}:\n{''.join(lines)}")
    return str(file)


def tokens(folder: Path) -> str:
    """A file of tokens of ann, who reads, and bob, who writes."""
    return keys_file(folder, "tokens", "hash: 'sha256:%s'", ann=", role: read", bob=", role: write")


def tenants(folder: Path) -> str:
    """A keys file of a tenant called acme."""
    return keys_file(folder, "tenants", "keys: ['sha256:%s']", acme="")


CREDENTIALS = ["key", "tenants", "key and tenants", "tokens", "tokens and key", "all"]


def configured(folder: Path, what: str) -> dict[str, dict[str, Any]]:
    """Sections of settings with some credentials, and a separate admin port."""
    admin: dict[str, Any] = {"port": free_port()}
    sections: dict[str, dict[str, Any]] = {"admin": admin, "server": {}, "tenancy": {}}
    if "key" in what or what == "all":
        sections["server"]["api_key"] = "ours"
    if "tenants" in what or what == "all":
        sections["tenancy"]["keys_file"] = tenants(folder)
    if "tokens" in what or what == "all":
        admin["tokens_file"] = tokens(folder)
    return sections


def changes(url: str) -> list[tuple[str, str, dict[str, Any]]]:
    """All changes of the fleet on the data port, in all notations."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for prefix in ("", "/admin"):
        found += [
            ("POST", f"{prefix}/register_encoder_url", {"json": {"url": url}}),
            ("DELETE", f"{prefix}/unregister_encoder_url", {"json": {"url": url}}),
            ("POST", f"{prefix}/workers", {"json": {"url": url}}),
            ("POST", f"{prefix}/add_worker", {"params": {"url": url}}),
            ("POST", f"{prefix}/remove_worker", {"params": {"url": url}}),
            ("POST", f"{prefix}/flush_cache", {}),
            ("PATCH", f"{prefix}/settings", {"json": {"values": {"queue.size": 1}}}),
        ]
    return found


@pytest.mark.parametrize("port", ["own", "shared"])
@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=pytest.mark.deep if " and " in what else ()) for what in CREDENTIALS],
)
async def test_nobody_changes_the_fleet_without_a_credential_where_one_is_configured(
    fleet: Fleet, tmp_path: Path, what: str, port: str
) -> None:
    """On no port, in no notation; and a tenant's key does not administer."""
    engine = await fleet.engine()
    sections = configured(tmp_path, what)
    if port == "shared":
        sections["admin"]["port"] = 0
    gateway = await fleet.gateway(engine.url, **sections)
    async with contextlib.AsyncExitStack() as stack:
        clients = [gateway.client]
        if port == "own":
            clients.append(await stack.enter_async_context(operating(gateway)))
        for client in clients:
            for method, path, more in changes(engine.url) + changes("http://127.0.0.1:9"):
                for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
                    answer = await client.request(method, path, **more, headers=headers)
                    assert answer.status_code in (401, 404, 405), (path, answer.text)
                    if "encoder" in path and client is gateway.client:
                        assert answer.status_code == 401
                if "tenants" in what or what == "all":
                    headers = {"authorization": "Bearer acme"}
                    answer = await client.request(method, path, **more, headers=headers)
                    assert answer.status_code in (403, 404, 405), (path, answer.text)
    (local,) = gateway.process.registry.all()
    assert (local.worker.url, local.worker.role, local.worker.draining) == (engine.url, "plain", False)
    assert not len(gateway.process.fleet.audit)
    headers = {} if what == "tokens" else {"authorization": "Bearer acme"}
    if what in ("key", "tokens and key"):
        headers = OURS
    answer = await gateway.client.post("/v1/completions", json=MESSAGE, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("what", "secret", "actor"),
    [("tokens", "bob", "bob"), ("key", "ours", "api_key"), ("all", "ours", "api_key"), ("all", "bob", "bob")],
)
async def test_an_encoder_registers_with_a_credential_and_is_in_the_audit(
    fleet: Fleet, tmp_path: Path, what: str, secret: str, actor: str
) -> None:
    engine, encoder = await fleet.engine(), await fleet.engine()
    sections = configured(tmp_path, what)
    gateway = await fleet.gateway(engine.url, **sections)
    for headers in ({"authorization": f"Bearer {secret}"}, {"x-api-key": secret}):
        answer = await gateway.client.post(
            "/register_encoder_url", json={"url": encoder.url}, headers=headers
        )
        assert answer.status_code == 200
    refused = await gateway.client.post(
        "/register_encoder_url", json={"url": engine.url}, headers={"authorization": f"Bearer {secret}"}
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "worker_exists")
    if what == "all":
        reader = await gateway.client.post(
            "/register_encoder_url", json={"url": "http://e:1"}, headers={"authorization": "Bearer ann"}
        )
        assert (reader.status_code, reader.json()["error"]["code"]) == (403, "read_only")
    async with operating(gateway) as operator:
        token = {"authorization": f"Bearer {'ours' if what == 'key' else 'bob'}"}
        told = (await operator.get("/audit", headers=token)).json()["changes"]
    assert [(each["actor"], each["action"], each["target"]) for each in told] == [
        (actor, "POST /register_encoder_url", encoder.url)
    ]
    roles = {local.worker.url: local.worker.role for local in gateway.process.registry.all()}
    assert roles == {engine.url: "plain", encoder.url: "encode"}


async def test_an_encoder_of_the_settings_cannot_be_unregistered(fleet: Fleet) -> None:
    engine, encoder = await fleet.engine(), await fleet.engine()
    gateway = await fleet.gateway(engine.url, fleet={"encode": [encoder.url]})
    for url, code in ((encoder.url, "not_registered"), (engine.url, "worker_not_found")):
        answer = await gateway.client.request("DELETE", "/unregister_encoder_url", json={"url": url})
        assert answer.json()["error"]["code"] == code
    assert len(gateway.process.registry.all()) == 2


def named_by(url: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        ("POST", "/register_encoder_url", {"json": {"url": url}}),
        ("POST", "/workers", {"json": {"url": url, "labels": {"kv_events": "tcp://127.0.0.1:9"}}}),
        ("POST", "/add_worker", {"params": {"url": url}}),
    ]


@pytest.mark.parametrize("number", range(3))
async def test_who_names_a_worker_is_not_told_the_fleets_key(fleet: Fleet, number: int) -> None:
    """Not by a health check, a look at its models and metrics, a flush, a question or a request."""
    async with listener() as (url, heads):
        gateway = await fleet.gateway(
            fleet={"worker_api_key": FLEET_KEY}, admission={"engine_metrics_interval_s": 0.05}
        )
        method, path, more = named_by(url)[number]
        assert (await gateway.client.request(method, path, **more)).is_success
        worker_id = worker_id_of(url)
        local = gateway.process.registry.get(worker_id)
        assert local is not None
        await until(lambda: local.health == "healthy" and any(b"GET /metrics" in head for head in heads))
        if number:
            for body_path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                await gateway.client.post(body_path, json={**MESSAGE, "messages": []})
            assert any(head.startswith(b"POST /v1/completions ") for head in heads)
        await gateway.client.post("/flush_cache")
        shown = (await gateway.client.get(f"/workers/{worker_id}")).json()
    assert any(head.startswith(b"POST /flush_cache ") for head in heads)
    assert not [head for head in heads if FLEET_KEY.encode() in head or b"authorization" in head.lower()]
    assert shown["key_withheld"] is True


@pytest.mark.parametrize("networks", [["127.0.0.0/8"], []])
async def test_workers_of_the_settings_and_of_their_networks_are_shown_it(
    fleet: Fleet, networks: list[str]
) -> None:
    """In every request and question."""
    async with listener() as (named, heads), listener() as (added, others):
        gateway = await fleet.gateway(named, fleet={"worker_api_key": FLEET_KEY, "worker_networks": networks})
        await gateway.client.post("/workers", json={"url": added})
        registry = gateway.process.registry
        await until(lambda: all(local.health == "healthy" for local in registry.all()))
        for number in range(8):
            await gateway.client.post("/v1/completions", json={**MESSAGE, "prompt": f"{number}" * 400})
        await gateway.client.post("/flush_cache")
    for seen, shown in ((heads, True), (others, bool(networks))):
        assert any(head.startswith(b"POST /flush_cache ") for head in seen)
        assert {f"Bearer {FLEET_KEY}".encode() in head for head in seen} == {shown}
        assert all(head.lower().count(b"authorization:") <= 1 for head in seen)


async def test_another_key_reaches_connections_that_are_there(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("former")
    async with listener() as (url, heads):
        gateway = await fleet.gateway(url, fleet={"worker_api_key": "former"})
        await until(lambda: any(b"Bearer former" in head for head in heads))
        gateway.process.workers.use_key(b"newer")
        await until(lambda: b"Bearer newer" in heads[-1])
        await gateway.client.post("/v1/completions", json=MESSAGE)
        request = next(head for head in heads if head.startswith(b"POST"))
    assert b"authorization: Bearer newer" in request


@pytest.mark.parametrize("admin_port", [True, False])
async def test_a_page_whose_name_leads_here_gets_nothing(fleet: Fleet, *, admin_port: bool) -> None:
    """DNS rebinding: for its browser the page and the gateway are one site."""
    engine = await fleet.engine()
    admin = {"allowed_hosts": ["console.example"], "port": free_port() if admin_port else 0}
    gateway = await fleet.gateway(engine.url, admin=admin)
    async with contextlib.AsyncExitStack() as stack:
        client = gateway.client
        if admin_port:
            client = await stack.enter_async_context(operating(gateway))

        async def asked(host: str, method: str, path: str, **more: Any) -> tuple[int, str]:
            headers = {"host": host, **more.pop("headers", {})}
            answer = await client.request(method, path, headers=headers, **more)
            return answer.status_code, answer.json()["error"]["code"] if answer.is_error else ""

        change = {"json": {"values": {"queue.size": 9999}}}
        for host in (
            "evil.example",
            "evil.example:29100",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ):
            origin = {"origin": f"http://{host}"}
            for prefix in ("", "/admin"):
                wanted = (403, "other_host")
                assert await asked(host, "GET", f"{prefix}/workers") == wanted
                assert await asked(host, "GET", f"{prefix}/settings") == wanted
                assert await asked(host, "PATCH", f"{prefix}/settings", headers=origin, **change) == wanted
                assert await asked(host, "DELETE", f"{prefix}/workers/x", headers=origin) == wanted
                assert await asked(host, "POST", f"{prefix}/explain", headers=origin, json={}) == wanted
            register = {"json": {"url": "http://127.0.0.1:9"}, "headers": origin}
            if not admin_port:
                assert (await asked(host, "POST", "/register_encoder_url", **register))[0] == 403
        for said in ("cross-site", "same-site"):
            headers = {"sec-fetch-site": said}
            refused = await asked("localhost", "PATCH", "/settings", headers=headers, **change)
            assert refused == (403, "other_site")
        assert gateway.process.settings.queue.size != 9999
        for host in ("localhost:29100", "127.0.0.1", "[::1]:29100", "console.example", "10.1.2.3:80"):
            assert (await asked(host, "GET", "/workers"))[0] == 200
        assert (await asked("console.example", "PATCH", "/settings", **change))[0] < 300
    assert gateway.process.settings.queue.size == 9999


async def test_the_data_port_serves_clients_by_any_name(fleet: Fleet) -> None:
    """Names of Services, of balancers, of hosts: clients' requests are no administration."""
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    headers = {"host": "cacheway.llm.svc:30000"}

    async def served() -> bool:
        answer = await gateway.client.post("/v1/completions", json=MESSAGE, headers=headers)
        return answer.status_code == 200

    await until_async(served)
    for path in ("/v1/models", "/health", "/readiness", "/metrics"):
        assert (await gateway.client.get(path, headers=headers)).status_code == 200
    registered = await gateway.client.post(
        "/register_encoder_url", json={"url": "http://127.0.0.1:9"}, headers=headers
    )
    assert registered.status_code == 200
