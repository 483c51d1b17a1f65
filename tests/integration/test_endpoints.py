"""Every endpoint of the engines, through a real gateway, at workers that serve any path."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
import wsproto.utilities
from fakes.echo_worker import EchoWorker
from fakes.running import Fleet, RunningGateway, until
from fakes.web_socket import Socket
from wsproto.events import AcceptConnection, CloseConnection, TextMessage

from loadtest.processes import free_port
from router.gateway.endpoints import ENDPOINTS, UPLOADS, Endpoint


@pytest.fixture
async def worker() -> AsyncIterator[EchoWorker]:
    async with EchoWorker() as worker:
        yield worker


LISTED = {"unlisted_models": "refuse"}
"""Settings of a fleet that refuses models which no worker lists."""


async def in_front_of(fleet_of: Fleet, /, *workers: EchoWorker, **sections: dict[str, Any]) -> RunningGateway:
    """A gateway that found its workers healthy, and knows their models."""
    gateway = await fleet_of.gateway(*(each.url for each in workers), **sections)
    registry = gateway.process.registry
    await until(lambda: all(local.models for local in registry.all()))
    await until(lambda: len(registry.eligible(None, registry.now_us())) == len(workers))
    return gateway


async def test_each_endpoint_with_a_json_body_reaches_a_worker(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    for path in ENDPOINTS:
        answer = await gateway.client.post(path.decode() + "?beta=true", json={"model": "m", "n": 1})
        assert (answer.status_code, answer.json()["path"]) == (200, path.decode() + "?beta=true"), path
    assert [each.path.encode() for each in worker.got] == list(ENDPOINTS)
    await until(gateway.idle)


async def test_a_stored_response_is_asked_for_ended_and_deleted(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    for method, path in (
        ("GET", "/v1/responses/resp_1?stream=true"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/version"),
    ):
        answer = await gateway.client.request(method, path)
        assert (answer.status_code, answer.json()["path"], answer.json()["method"]) == (200, path, method)
    assert gateway.process.gateway.sending.inflight == 0


FORM = {"model": "m", "language": "en"}


@pytest.mark.parametrize("endpoint", sorted(UPLOADS))
async def test_a_form_reaches_a_worker_byte_for_byte(
    fleet: Fleet, worker: EchoWorker, endpoint: Endpoint
) -> None:
    gateway = await in_front_of(fleet, worker)
    audio = bytes(range(256)) * 8000
    request = gateway.client.build_request("POST", endpoint, data=FORM, files={"file": ("a.wav", audio)})
    sent = await request.aread()
    answer = await gateway.client.send(request)
    assert answer.status_code == 200
    (got,) = worker.got
    assert (bytes(got.body), got.headers["content-length"]) == (sent, str(len(sent)))
    assert got.headers["content-type"] == request.headers["content-type"]
    again = await gateway.client.post(endpoint, data=FORM, files={"file": ("a.wav", b"short")})
    assert again.status_code == 200
    await until(gateway.idle)
    assert gateway.process.clients.held.count == 0


async def test_an_upload_is_at_its_worker_before_it_has_ended(fleet: Fleet, worker: EchoWorker) -> None:
    """The gateway does not hold the body: the first half arrives before the client sends the second."""
    gateway = await in_front_of(fleet, worker)
    more = asyncio.Event()
    half = b"x" * 300_000

    async def body() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + half
        await more.wait()
        yield half + b"\r\n--B--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=B"}
    asked = asyncio.create_task(
        gateway.client.post("/v1/audio/transcriptions", content=body(), headers=headers)
    )
    await until(lambda: worker.got and len(worker.got[0].body) > len(half))
    assert not asked.done()
    more.set()
    assert (await asked).status_code == 200
    assert worker.got[0].body.count(b"x") == 2 * len(half)


async def test_a_worker_that_does_not_read_holds_the_client_back(fleet: Fleet, worker: EchoWorker) -> None:
    """The gateway takes as much of 64 MB as fits into buffers, and goes on when the worker does."""
    gateway = await in_front_of(fleet, worker)
    worker.reads.clear()
    sent = 0
    begin = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--B\r\n\r\n'
    piece, end = b"x" * 65536, b"\r\n--B--\r\n"

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        yield begin
        for _ in range(1024):
            sent += len(piece)
            yield piece
        yield end

    length = str(len(begin) + 1024 * len(piece) + len(end))
    headers = {"content-type": "multipart/form-data; boundary=B", "content-length": length}
    asked = asyncio.create_task(
        gateway.client.post("/v1/audio/transcriptions", content=body(), headers=headers)
    )
    protocol = gateway.server.server_state.connections
    await until(lambda: any(each.flow.held for each in protocol))  # type: ignore[attr-defined]
    assert sent < 48 << 20
    assert gateway.process.clients.held.count < 1 << 20
    worker.reads.set()
    assert (await asked).status_code == 200
    await until(gateway.idle)


async def test_where_the_file_comes_first_the_form_is_held_until_its_model_is_known(fleet: Fleet) -> None:
    """As curl sends it, to a fleet of two models; in a fleet of one no form has to wait for it."""
    audio = b"x" * 700_000
    form = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + audio + b"\r\n"
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nbig\r\n--B--\r\n'
    )
    headers = {"content-type": 'multipart/form-data; charset=utf-8; boundary="B"'}
    async with EchoWorker("small") as small, EchoWorker("big") as big:
        gateway = await in_front_of(fleet, small, big)
        for _ in range(4):
            answer = await gateway.client.post("/v1/audio/transcriptions", content=form, headers=headers)
            assert answer.status_code == 200
        assert (len(small.got), len(big.got)) == (0, 4)
        assert all(bytes(each.body) == form for each in big.got)
    await until(lambda: gateway.process.clients.held.count == 0)


@pytest.mark.parametrize(
    ("content_type", "form", "status", "code"),
    [
        ("application/json", b"{}", 415, "unsupported_media_type"),
        ("multipart/form-data", b"--B--\r\n", 415, "unsupported_media_type"),
        ("multipart/form-data; boundary=B", b"--B\r\n" + b"a" * 9000, 400, "invalid_form"),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nnone\r\n--B--\r\n',
            404,
            "model_not_found",
        ),
    ],
)
async def test_a_form_that_cannot_be_served_is_refused_before_it_has_come(
    fleet: Fleet, worker: EchoWorker, content_type: str, form: bytes, status: int, code: str
) -> None:
    async with EchoWorker("other") as other:
        gateway = await in_front_of(fleet, worker, other)

        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "POST /v1/audio/translations HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n"
        writer.write(f"{head}content-type: {content_type}\r\n\r\n".encode() + form)
        answer = (await reader.readuntil(b"\r\n\r\n")) + await reader.read()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert code in answer.decode()
        assert b"connection: close" in answer
        writer.close()
        assert worker.got == other.got == []
        await until(gateway.idle)


async def test_a_worker_that_refuses_an_upload_at_once_is_heard(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    worker.refuses = 413
    answer = await gateway.client.post(
        "/v1/audio/transcriptions", data=FORM, files={"file": ("a.wav", b"x" * 5_000_000)}
    )
    assert (answer.status_code, answer.json()) == (413, {"error": "refused"})
    await until(gateway.idle)


async def test_an_upload_beyond_the_limit_ends_where_the_limit_is(fleet: Fleet, worker: EchoWorker) -> None:
    """The body's length was not declared, so its worker has seen a part of it."""
    gateway = await in_front_of(fleet, worker, server={"body_bytes_max": 100_000, "held_bytes_max": 0})

    async def body() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--B\r\n\r\n'
        for _ in range(20):
            yield b"x" * 10_000

    headers = {"content-type": "multipart/form-data; boundary=B"}
    answer = await gateway.client.post("/v1/audio/transcriptions", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    await until(gateway.idle)
    assert not any(each.complete for each in worker.got)


async def test_a_field_of_the_gateways_ends_an_upload_wherever_it_comes(
    fleet: Fleet, worker: EchoWorker
) -> None:
    """The worker has begun to read by then, and gets no end of the body."""
    gateway = await in_front_of(fleet, worker)
    come = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 100_000
        await come.wait()
        yield b'\r\n--B\r\nContent-Disposition: form-data; name="vllm_xargs"\r\n\r\n{}\r\n--B--\r\n'

    headers = {"content-type": "multipart/form-data; boundary=B"}
    asked = asyncio.create_task(
        gateway.client.post("/v1/audio/transcriptions", content=body(), headers=headers)
    )
    await until(lambda: worker.got and worker.got[0].body)
    come.set()
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "forbidden_field")
    await until(gateway.idle)
    assert not worker.got[0].complete


async def test_an_upload_goes_to_another_worker_if_nobody_listens_at_the_first(fleet: Fleet) -> None:
    async with EchoWorker() as alive:
        dead = EchoWorker()
        async with dead:
            gateway = await in_front_of(fleet, alive, dead, fleet={"health_check_interval_s": 60.0})
        for _ in range(6):
            answer = await gateway.client.post(
                "/v1/audio/transcriptions", data=FORM, files={"file": ("a.wav", b"x" * 100_000)}
            )
            assert answer.status_code == 200
        assert len(alive.got) == 6


# ---- configured paths ------------------------------------------------------------------------------------


async def test_paths_that_the_operator_names_pass_and_others_do_not(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker, fleet=LISTED)
    assert (await gateway.client.post("/omni/speak", json={"model": "m"})).status_code == 404
    change = {"values": {"upstream.pass_through": ["/omni/*", "/v1/videos"]}}
    assert (await gateway.client.patch("/settings", json=change)).status_code == 200
    for path in ("/omni/speak", "/v1/videos"):
        assert (await gateway.client.post(path, json={"model": "m"})).json()["path"] == path
        assert (await gateway.client.get(path)).json()["method"] == "GET"
        form = await gateway.client.post(path, data={"model": "m"}, files={"f": b"x"})
        assert form.status_code == 200
        two = {"content-type": 'multipart/form-data; boundary=a; x="; boundary=b"'}
        assert (await gateway.client.post(path, content=b"--a--", headers=two)).status_code == 415
        missing = await gateway.client.post(path, json={"model": "nobody"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    before = len(worker.got)
    for path in ("/omni/flush_cache", "/omni/%66lush_cache", "/omni/../flush_cache", "/v1/videos/x"):
        request = httpx.Request("POST", gateway.url, extensions={"target": path.encode()}, content=b"{}")
        assert (await gateway.client.send(request)).status_code == 404
    assert len(worker.got) == before
    back = {"values": {"upstream.pass_through": []}}
    assert (await gateway.client.patch("/settings", json=back)).status_code == 200
    assert (await gateway.client.post("/v1/videos", json={"model": "m"})).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/reset_prefix_cache", "/v1/load_lora_adapter", "/start_profile", "/pd_role_switch", "/collective_rpc"],
)
async def test_no_client_administers_an_engine(fleet: Fleet, worker: EchoWorker, path: str) -> None:
    port = free_port()
    gateway = await in_front_of(fleet, worker, admin={"port": port})
    for method in ("GET", "POST", "PUT", "DELETE"):
        answer = await gateway.client.request(method, path, json={"model": "m"})
        assert answer.status_code in (404, 405)
    change = {"values": {"upstream.pass_through": [path]}}
    refused = await gateway.client.patch(f"http://127.0.0.1:{port}/settings", json=change)
    assert (refused.status_code, worker.got) == (400, [])


# ---- WebSockets ------------------------------------------------------------------------------------------


async def test_a_websocket_is_a_tunnel_to_one_worker(fleet: Fleet) -> None:
    async with EchoWorker("a") as a, EchoWorker("b") as b:
        gateway = await in_front_of(fleet, a, b)
        socket = await Socket.at(gateway.url, "/v1/realtime?model=b", authorization="Bearer k")
        accepted = await socket.event()
        assert isinstance(accepted, AcceptConnection)
        assert b"set-cookie" not in dict(accepted.extra_headers)
        assert gateway.process.gateway.sending.inflight == 1
        for text in ("hello", "x" * 500_000):
            socket.writer.write(socket.ws.send(TextMessage(text)))
            frame = await until_echoed(b, text)
            assert frame
        assert (len(a.got), len(b.got)) == (0, 1)
        assert b.got[0].headers["authorization"] == "Bearer k"
        await socket.close()
        await until(gateway.idle)
        counts = (await gateway.client.get("/metrics")).text
        assert 'endpoint="/v1/realtime",outcome="completed"' in counts


async def test_the_websockets_of_a_session_are_one_part_of_a_split(fleet: Fleet) -> None:
    async with EchoWorker("a") as a, EchoWorker("b") as b:
        gateway = await in_front_of(fleet, a, b, models={"splits": {"a": {"ratio": 0.5, "model": "b"}}})
        for _ in range(8):
            socket = await Socket.at(gateway.url, "/v1/realtime?model=a", **{"x-session-id": "s"})
            assert isinstance(await socket.event(), AcceptConnection)
            await socket.close()
        await until(gateway.idle)
        assert sorted((len(a.got), len(b.got))) == [0, 8]


async def until_echoed(worker: EchoWorker, text: str) -> bool:
    """Frames are masked, so the test compares their length."""
    before = len(text)
    await until(lambda: len(worker.got[0].body) >= before)
    return True


async def test_bytes_of_a_tunnel_come_back_as_they_are(fleet: Fleet, worker: EchoWorker) -> None:
    """The worker echoes frames unread, and so does the gateway, in both directions."""
    gateway = await in_front_of(fleet, worker)
    socket = await Socket.at(gateway.url)
    assert isinstance(await socket.event(), AcceptConnection)
    sent = bytes(range(256)) * 8192
    socket.writer.write(sent)
    assert await socket.reader.readexactly(len(sent)) == sent
    worker.tunnels[0].close()
    assert await socket.reader.read() == b""
    await socket.close()
    await until(gateway.idle)


async def test_bytes_behind_the_offer_wait_for_the_worker(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\nearly"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
    assert await reader.readexactly(5) == b"early"
    writer.close()
    await until(gateway.idle)


async def test_what_is_no_websocket_is_told_so(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    answer = await gateway.client.get("/v1/realtime")
    assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")
    missing = await Socket.at(gateway.url, "/v1/realtime?model=" + "n" * 1000)
    with contextlib.suppress(wsproto.utilities.RemoteProtocolError):
        assert not isinstance(await missing.event(), AcceptConnection)
    await missing.close()
    assert worker.got == []


async def test_a_tunnel_ends_with_its_process(fleet: Fleet, worker: EchoWorker) -> None:
    """The connection would never end by itself, and would delay the shutdown for all of its grace."""
    gateway = await in_front_of(fleet, worker, server={"shutdown_grace_s": 600.0, "shutdown_delay_s": 0.0})
    socket = await Socket.at(gateway.url)
    assert isinstance(await socket.event(), AcceptConnection)
    gateway.server.end("test")
    assert await socket.reader.read() == b""
    await socket.close()
    await until(gateway.idle)
    await until(gateway.task.done)


async def test_a_silent_tunnel_ends(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker, upstream={"idle_timeout_s": 0.3})
    socket = await Socket.at(gateway.url)
    assert isinstance(await socket.event(), AcceptConnection)
    assert await socket.reader.read() == b""
    await socket.close()
    await until(gateway.idle)


async def test_a_websocket_closes_as_its_protocol_says(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    socket = await Socket.at(gateway.url)
    assert isinstance(await socket.event(), AcceptConnection)
    frame = socket.ws.send(CloseConnection(code=1000))
    socket.writer.write(frame)
    assert await socket.reader.readexactly(len(frame)) == frame
    await socket.close()
    await until(gateway.idle)


# ---- errors ----------------------------------------------------------------------------------------------


async def test_errors_speak_the_dialect_of_what_was_asked(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(
        fleet, worker, server={"body_bytes_max": 2000, "held_bytes_max": 0}, fleet=LISTED
    )
    worker.breaks = {"/v1/messages"}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        too_large = await gateway.client.post(path, content=b"x" * 3000)
        assert too_large.json() == {
            "type": "error",
            "error": {"type": "request_too_large", "message": too_large.json()["error"]["message"]},
            "request_id": too_large.headers["x-request-id"],
        }
        packed = await gateway.client.post(path, content=b"x", headers={"content-encoding": "gzip"})
        assert (packed.status_code, packed.json()["error"]["type"]) == (415, "invalid_request_error")
    unknown = await gateway.client.post("/v1/messages", json={"model": "none", "messages": []})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    nowhere = await gateway.client.post("/v1/messages/nowhere", json={})
    assert (nowhere.status_code, nowhere.json()["error"]["type"]) == (404, "not_found_error")
    wrong = await gateway.client.get("/v1/messages")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
    stream = await gateway.client.post("/v1/messages", json={"model": "m", "messages": [], "stream": True})
    assert stream.text.endswith("\n\n")
    event = stream.text.split("\n\n")[-2]
    assert event.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')
    chat = await gateway.client.post("/v1/chat/completions", content=b"x" * 3000)
    assert chat.json()["error"]["code"] == "request_too_large"


async def test_anthropics_sdk_understands_the_gateways_errors(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker, server={"api_key": "ours"}, fleet=LISTED)
    async with anthropic.AsyncAnthropic(api_key="ours", base_url=gateway.url, max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(model="none", max_tokens=1, messages=[])
        assert (unknown.value.type, unknown.value.status_code) == ("not_found_error", 404)
        assert "'none' is not served" in unknown.value.message
        counted = await client.messages.with_raw_response.count_tokens(model="m", messages=[])
        assert counted.http_response.json()["path"] == "/v1/messages/count_tokens"
    async with anthropic.AsyncAnthropic(api_key="no", base_url=gateway.url, max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await client.messages.count_tokens(model="m", messages=[])
        assert refused.value.type == "authentication_error"


async def test_openais_sdk_uploads_and_asks_for_stored_responses(fleet: Fleet, worker: EchoWorker) -> None:
    gateway = await in_front_of(fleet, worker)
    async with openai.AsyncOpenAI(api_key="k", base_url=f"{gateway.url}/v1", max_retries=0) as client:
        heard = await client.audio.transcriptions.with_raw_response.create(
            model="m", file=("a.wav", b"x" * 1_000_000)
        )
        assert heard.http_response.json()["bytes"] > 1_000_000
        stored = await client.responses.with_raw_response.retrieve("resp_1")
        assert stored.http_response.json()["path"] == "/v1/responses/resp_1"
        ended = await client.responses.with_raw_response.cancel("resp_1")
        assert ended.http_response.json()["path"] == "/v1/responses/resp_1/cancel"
