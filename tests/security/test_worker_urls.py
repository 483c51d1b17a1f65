"""A client that may name workers, or a worker itself, sends the gateway to a forbidden place (SSRF)."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes.running import Fleet, RunningGateway, until, until_async

METADATA = "http://169.254.169.254/latest"


@contextlib.asynccontextmanager
async def internal(
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret",
) -> AsyncIterator[Any]:
    """A service that must not be reached; it lists its requests, and mere connections."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(b"")
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                seen.append(head)
                writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


def naming(url: str) -> list[tuple[str, str, dict[str, Any]]]:
    """All requests that name a worker's URL."""
    return [
        ("POST", "/workers", {"json": {"url": url}}),
        (
            "POST",
            "/workers",
            {"json": {"url": "http://engine:1", "bootstrap_host": url.split("/")[2].split(":")[0]}},
        ),
        ("POST", "/add_worker", {"params": {"url": url}}),
        ("POST", "/register_encoder_url", {"json": {"url": url}}),
    ]


@pytest.mark.parametrize("number", range(4))
async def test_no_way_to_name_a_worker_reaches_the_metadata_service(fleet: Fleet, number: int) -> None:
    gateway = await fleet.gateway()
    method, path, more = naming(METADATA)[number]
    answer = await gateway.client.request(method, path, **more)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "worker_host_refused")
    assert not gateway.process.registry.all()


async def test_a_worker_is_not_moved_to_the_metadata_service_later(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    added = await gateway.client.post("/workers", json={"url": "http://engine:1", "role": "prefill"})
    worker_id = added.json()["worker_id"]
    for change in ({"bootstrap_host": "169.254.169.254"}, {"labels": {"bootstrap_host": "[fe80::1]"}}):
        answer = await gateway.client.put(f"/workers/{worker_id}", json=change)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "worker_host_refused")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://10.0.0.1:6379/_FLUSHALL",
        "http://user:pass@10.0.0.1",
        "http://10.0.0.1/?next=x",
        "http://10.0.0.1/#x",
        "http://10.0.0.1\r\nhost: other",
        "http://169.254.169.254@10.0.0.1",
        "http://10.0.0.1\\@169.254.169.254",
        "//10.0.0.1",
        "unix:///run/docker.sock",
    ],
)
async def test_what_is_no_plain_url_is_refused(fleet: Fleet, url: str) -> None:
    gateway = await fleet.gateway()
    for method, path, more in (naming("http://x")[0], naming("http://x")[2], naming("http://x")[3]):
        body = {key: {**value, "url": url} for key, value in more.items()}
        answer = await gateway.client.request(method, path, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_worker_url")


async def test_a_bootstrap_host_that_hides_a_path_is_refused(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    for host in ("engine/admin?x=", "a@b", "a b", "a\r\nb", "a:80"):
        answer = await gateway.client.post(
            "/workers", json={"url": "http://engine:1", "bootstrap_host": host}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


async def asked(gateway: RunningGateway, name: str) -> None:
    """Wait until a worker was probed, and send it a request."""

    async def probed() -> bool:
        (worker,) = (await gateway.client.get("/workers")).json()["workers"]
        return "where no workers may be" in worker["detail"]

    await until_async(probed)
    answer = await gateway.client.post("/v1/completions", json={"model": name, "prompt": "x"})
    assert answer.status_code == 503


async def test_a_name_that_leads_elsewhere_is_not_followed(fleet: Fleet) -> None:
    """The name is fine when it is added; its addresses are judged at each connection."""
    async with internal() as (url, seen):
        gateway = await fleet.gateway(fleet={"disable_loopback_workers": True})
        url = url.replace("127.0.0.1", "localhost")
        assert (await gateway.client.post("/workers", json={"url": url})).status_code == 202
        await asked(gateway, "m")
    assert seen == []


async def test_a_name_that_changes_its_mind_gains_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first answers are harmless, the others are not. No request is sent there."""
    answers = ["127.0.0.1"] * 3
    asked_for: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> Any:
        if host != "rebinding.example":
            return real(host, port, *rest, **more)
        address = answers.pop() if answers else "169.254.66.6"
        asked_for.append(address)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    async with internal(closing) as (url, seen):
        gateway = await fleet.gateway()
        port = url.rpartition(":")[2]
        await gateway.client.post("/workers", json={"url": f"http://rebinding.example:{port}"})
        (worker,) = gateway.process.registry.all()
        await until(lambda: "169.254.66.6, where no workers may be" in worker.detail)
        assert asked_for[:4] == ["127.0.0.1"] * 3 + ["169.254.66.6"]
        assert len([head for head in seen if head]) == 3


async def test_a_redirect_by_a_worker_is_not_followed_and_leads_no_client_elsewhere(fleet: Fleet) -> None:
    async with internal() as (secret, seen):
        moved = b"HTTP/1.1 307 Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % secret.encode()
        healthy = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    writer.write(healthy if head.startswith(b"GET /health ") else moved)
                    if head.startswith(b"POST"):
                        break
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            gateway = await fleet.gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            answer = await gateway.client.post("/v1/completions", json={"model": "m", "prompt": "x"})
            assert answer.status_code == 307
            assert "location" not in answer.headers
            await gateway.client.post("/flush_cache")
            assert (await gateway.client.get("/get_server_info")).status_code == 307
        assert seen == []
