"""Prompts, completions and keys stay between a client and its worker in all failures.

Marked text goes through every endpoint and every failure that a test can cause; then all output of the
process is searched for it: log records at the level of debug with all their fields, Redis, metrics, answers
and streams of the admin API, the spans, the file of the request trace, and the bytes that other workers and
clients got.
"""

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from fakes.attacker import Attacker, post, worker
from fakes.collector import Collector, collecting
from fakes.running import Fleet, RunningGateway, until

from router.gateway.endpoints import Endpoint
from router.tenants.keys import digest_of

PROMPT, COMPLETION, TOOL, MEDIA = "canary-prompt", "canary-completion", "canary-tool", "canary-media"
TENANT_KEY, GATEWAY_KEY, WORKER_KEY = "canary-tenant-key", "canary-gateway-key", "canary-worker-key"
SALT = "canary-salt-0123456789"
AS_DATA = "data:image/png;base64," + base64.b64encode(MEDIA.encode() * 10).decode()
MARKS = [b"canary-", base64.b64encode(MEDIA.encode() * 10)[:40], base64.b64encode(PROMPT.encode())[:12]]

MESSAGES = [
    {"role": "system", "content": PROMPT},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": PROMPT * 300},
            {"type": "image_url", "image_url": {"url": AS_DATA}},
            {"type": "image_url", "image_url": {"url": f"http://{MEDIA}.example/{MEDIA}.png"}},
        ],
    },
    {
        "role": "assistant",
        "tool_calls": [
            {"id": TOOL, "type": "function", "function": {"name": TOOL, "arguments": json.dumps({"a": TOOL})}}
        ],
    },
]
BODIES: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": TOOL}}]},
    Endpoint.MESSAGES: {"messages": [{"role": "user", "content": PROMPT * 300}], "system": PROMPT},
    Endpoint.RESPONSES: {"input": PROMPT * 300, "instructions": PROMPT},
    Endpoint.COMPLETIONS: {"prompt": PROMPT * 300, "prompt_cache_key": PROMPT, "user": PROMPT},
    Endpoint.EMBEDDINGS: {"input": [PROMPT, PROMPT * 300]},
    Endpoint.GENERATE: {"text": PROMPT * 300},
}

ADMIN_PATHS = {
    *("/workers", "/queue", "/tenants", "/events"),
    *("/decisions", "/audit", "/settings", "/settings/history", "/replicas", "/tree", "/tree/workers"),
}

ECHO = json.dumps({"error": {"message": f"bad input: {PROMPT} {COMPLETION}", "code": COMPLETION}}).encode()
USAGE = b'"usage":{"prompt_tokens":900,"completion_tokens":2}'
ANSWERS: dict[str, bytes] = {
    "served": b'{"choices":[{"text":"%b"}],%b}' % (COMPLETION.encode(), USAGE),
    "no JSON": b"<html>%b</html>" % COMPLETION.encode(),
    "usage of another kind": b'{"usage":{"prompt_tokens":"canary-completion","completion_tokens":[]}}',
}


class Engine:
    """Answers as configured, and always with some of the client's text."""

    def __init__(self) -> None:
        self.mood = "served"

    async def serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        match self.mood:
            case "error 400" | "error 500" | "error 503":
                writer.write(head % (self.mood[6:].encode() + b" canary-", len(ECHO), ECHO))
            case "stream":
                event = b'data: {"choices":[{"delta":{"content":"%b"}}],%b}\n\n' % (
                    COMPLETION.encode(),
                    USAGE,
                )
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            case "broken stream":
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ncanary")
                writer.close()
            case "cut":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + COMPLETION.encode())
                writer.close()
            case "nonsense":
                writer.write(b"canary-completion canary\r\n\r\n" + COMPLETION.encode())
                writer.close()
            case "header":
                writer.write(b"HTTP/1.1 200 OK\r\ncanary-completion\r\n\r\n")
                writer.close()
            case "closed":
                writer.close()
            case mood:
                writer.write(head % (b"200 OK", len(ANSWERS[mood]), ANSWERS[mood]))


MOODS = (
    *ANSWERS,
    *("error 400", "error 500", "error 503"),
    *("stream", "broken stream", "cut", "nonsense", "header", "closed"),
)


async def all_in_redis(url: str, namespace: str) -> bytes:
    """Every byte that any key of a namespace holds."""
    found = b""
    async with redis.asyncio.from_url(url) as client:
        async for key in client.scan_iter(f"*{namespace}*"):
            found += key
            kind = await client.type(key)
            if kind == b"stream":
                found += repr(await client.xrange(key)).encode()
            elif kind == b"hash":
                found += repr(await client.hgetall(key)).encode()
            elif kind == b"string":
                found += await client.get(key) or b""
            elif kind == b"zset":
                found += repr(await client.zrange(key, 0, -1)).encode()
            else:
                found += await client.dump(key) or b""
    return found


async def all_the_admin_api_says(gateway: RunningGateway) -> bytes:
    """Every GET of the OpenAPI document that needs no parameter, and the document."""
    headers = {"authorization": f"Bearer {GATEWAY_KEY}"}
    document = await gateway.client.get("/openapi.json", headers=headers)
    said = document.content
    paths = document.json()["paths"]
    assert paths.keys() >= ADMIN_PATHS
    for path, methods in paths.items():
        if "get" in methods and "{" not in path and path != "/events":  # it has no end: `streamed`
            answer = await gateway.client.get(path, headers=headers)
            said += answer.content + repr(answer.headers).encode()
    return said


async def streamed(gateway: RunningGateway, said: bytearray) -> None:
    """All that ``GET /events`` sends, until the gateway ends."""
    headers = {"authorization": f"Bearer {GATEWAY_KEY}"}
    with contextlib.suppress(httpx.TransportError):
        async with gateway.client.stream("GET", "/events", headers=headers) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_raw():
                said.extend(piece)


def logged(records: list[logging.LogRecord]) -> bytes:
    """Every field of every record, tracebacks included."""
    formatted = logging.Formatter()
    said = []
    for record in records:
        if record.name.startswith(("router", "uvicorn", "httpx", "httpcore")):
            said.append(repr({key: value for key, value in vars(record).items() if key != "args"}))
            said.append(formatted.format(record))
    return "\n".join(said).encode()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


async def test_nothing_of_a_request_or_an_answer_leaves_the_process_but_to_its_client(
    fleet: Fleet,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    collector: Collector,
) -> None:
    caplog.set_level(logging.DEBUG)
    keys, trace = tmp_path / "keys.yaml", tmp_path / "trace.jsonl"
    keys.write_text(
        f"tenants: {{acme: {{keys: [sha256:{digest_of(TENANT_KEY.encode()).hex()}], salt: {SALT}, "
        "limits: {requests_per_minute: 100000, tokens_per_minute: 100000000}}}\n"
    )
    requests: list[dict[str, object]] = []
    engine, second = Engine(), Engine()
    async with worker(engine.serve) as url, worker(second.serve) as other:
        gateway = await fleet.gateway(
            *(url, other),
            server={"api_key": GATEWAY_KEY},
            fleet={"worker_api_key": WORKER_KEY},
            tenancy={"keys_file": str(keys)},
            observability={
                "request_trace": str(trace),
                "log_level": "debug",
                "enable_trace": True,
                "otlp_traces_endpoint": collector.url,
                "trace_ratio": 1.0,
            },
            reliability={"retry_max_retries": 1, "disable_circuit_breaker": True},
        )
        log = gateway.process.gateway.reports
        monkeypatch.setattr(log, "request_log", requests.append)
        await until(lambda: sum(w.health == "healthy" for w in gateway.process.registry.all()) == 2)

        events = bytearray()
        watching = asyncio.create_task(streamed(gateway, events))

        async def ask(path: str, content: bytes, key: str = TENANT_KEY) -> None:
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            with contextlib.suppress(httpx.TransportError):
                await gateway.client.post(path, content=content, headers=headers)

        for mood in MOODS:
            engine.mood = second.mood = mood
            for endpoint, body in BODIES.items():
                content = json.dumps({"model": "m", "stream": "stream" in mood, **body}).encode()
                await ask(endpoint.value, content)
        engine.mood = second.mood = "served"
        explained = b""

        for path in (
            *(endpoint.value for endpoint in BODIES),
            "/tokenize",
            "/encode",
            "/workers",
            "/nowhere",
        ):
            for malformed in (
                b'{"model":"m","prompt":"canary-prompt',
                b'{"model":"canary-prompt","prompt":"canary-prompt"}'[:-1] + b",}",
                b'"canary-prompt"',
                b'{"model":"m","max_tokens":"canary-prompt","messages":"canary-prompt"}',
                b'{"model":"m","messages":[{"role":"canary-prompt\xff"}]}',
                b"canary-prompt" * 40_000,
            ):
                await ask(path, malformed)
                await ask(path, malformed, GATEWAY_KEY)
        for key in ("canary-wrong-key", ""):
            await ask("/v1/completions", b'{"model":"m","prompt":"canary-prompt"}', key)
            await ask("/workers", b'{"url":"http://canary-prompt"}', key)
        attacker = await Attacker.connect(gateway)
        await attacker.send(post(b"canary-prompt", b"content-encoding: gzip")).received()
        attacker = await Attacker.connect(gateway)
        await attacker.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nx: canary-prompt\0\r\n\r\n"
        ).received()

        for endpoint, body in BODIES.items():
            question = {"endpoint": endpoint.value, "request": {"model": "m", **body}}
            answer = await gateway.client.post(
                "/explain", json=question, headers={"authorization": f"Bearer {GATEWAY_KEY}"}
            )
            assert answer.status_code == 200, answer.text
            explained += answer.content

        # A defect in the gateway, in the middle of a request.
        def crash(*_: object, **__: object) -> None:
            raise RuntimeError("a mistake")

        with monkeypatch.context() as patched:
            patched.setattr(gateway.process.gateway.placing.decider, "decide", crash)
            await ask("/v1/chat/completions", json.dumps({"model": "m", **BODIES[Endpoint.CHAT]}).encode())
        assert any(getattr(record, "event", "") == "request.crashed" for record in caplog.records)

        await until(gateway.idle)
        await asyncio.sleep(1.5)  # a snapshot
        places = {
            "log": logged(caplog.records),
            "request log": repr(requests).encode(),
            "redis": await all_in_redis(fleet.redis_url, fleet.namespace),
            "metrics": gateway.process.metrics.exposition()[0],
            "admin API": await all_the_admin_api_says(gateway),
            "explanations": explained,
            "request trace": trace.read_bytes(),
        }
        gateway.server.should_exit = True  # then the last spans are sent
        await asyncio.wait_for(asyncio.gather(asyncio.shield(gateway.task), watching), 20)
        places["events"] = bytes(events)
        places["spans"] = b"".join(request.SerializeToString() for _, request in collector.requests)
    assert collector.names().count("dispatch") > 50
    assert b"event: decision" in places["events"]
    assert len(requests) > 100
    for place, said in places.items():
        assert len(said) > 500, place
        for mark in MARKS:
            at = said.find(mark)
            assert at < 0, (place, said[max(0, at - 300) : at + 100])


async def test_the_marks_are_found_where_they_are(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """The search itself works: it finds text that is there."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("router.x").debug("fine", extra={"detail": {"inner": PROMPT}})
    assert PROMPT.encode() in logged(caplog.records)
    async with redis.asyncio.from_url(fleet.redis_url) as client:
        await client.xadd(f"cw:{fleet.namespace}:log", {"b": PROMPT})
    assert PROMPT.encode() in await all_in_redis(fleet.redis_url, fleet.namespace)
