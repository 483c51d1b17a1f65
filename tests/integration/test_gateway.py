"""The gateway as its users meet it: real sockets, emulated engines, a real Valkey."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import openai
import pytest
from fakes.running import Fleet, until, until_async

from loadtest.engine import EngineSettings
from loadtest.processes import free_port

MODEL = "emulated"
LONG = "The quick brown fox jumps over the lazy dog. " * 200


def chat(text: str = LONG, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


async def events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]


async def test_an_answer_is_the_workers_own_with_our_headers(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    answer = await gateway.client.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-cacheway-worker"] == f"127.0.0.1:{engine.port}"
    assert answer.headers["x-cacheway-cached-tokens"] == "0"
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["usage"]["completion_tokens"] == 8


async def test_the_second_request_is_predicted_and_served_from_the_cache(fleet: Fleet) -> None:
    """About 9,000 bytes: the prediction is within one block of 256 tokens, and the error of the estimate."""
    engines = [await fleet.engine() for _ in range(4)]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    first = await gateway.client.post("/v1/chat/completions", json=chat())
    second = await gateway.client.post("/v1/chat/completions", json=chat(LONG + "And then?"))
    assert second.headers["x-cacheway-worker"] == first.headers["x-cacheway-worker"]
    predicted = int(second.headers["x-cacheway-cached-tokens"])
    usage = second.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]
    assert predicted == pytest.approx(usage["prompt_tokens_details"]["cached_tokens"], abs=300)


async def test_a_stream_passes_event_by_event_with_usage_in_the_end(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    body = chat(stream=True, stream_options={"include_usage": True})
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        got = await events(answer)
    assert got[-1] == "[DONE]"
    assert json.loads(got[-2])["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": LONG, "max_tokens": 4}),
        ("/v1/completions", {"model": MODEL, "prompt": [LONG, "other"], "max_tokens": 4}),
        ("/v1/completions", {"model": MODEL, "prompt": list(range(600)), "max_tokens": 4}),
        ("/v1/embeddings", {"model": MODEL, "input": [LONG, "other"]}),
        ("/v1/responses", {"model": MODEL, "input": LONG, "max_output_tokens": 4}),
        ("/v1/messages", {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}),
        ("/generate", {"text": LONG, "sampling_params": {"max_new_tokens": 4}}),
        ("/generate", {"text": [LONG, "other"], "sampling_params": {"max_new_tokens": 4}}),
        ("/generate", {"input_ids": list(range(600)), "sampling_params": {"max_new_tokens": 4}}),
        ("/tokenize", {"model": MODEL, "prompt": "four"}),
        ("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b", "c"]}),
        ("/v1/score", {"model": MODEL, "text_1": "a", "text_2": "b"}),
    ],
)
async def test_every_route_reaches_a_worker(fleet: Fleet, path: str, body: dict[str, Any]) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    direct = await gateway.client.post(engine.url + path, json=body)
    answer = await gateway.client.post(path, json=body)
    assert answer.status_code == 200
    assert answer.json().keys() == direct.json().keys() if isinstance(direct.json(), dict) else True
    assert "x-cacheway-worker" in answer.headers


async def test_the_openai_sdk_works_unchanged(fleet: Fleet) -> None:
    """Tools, images by URL and by data, n > 1, streams; asynchronous here, synchronous below."""
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, fleet={"unlisted_models": "refuse"})
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    ]
    called = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": LONG}],
        tools=tools,
        tool_choice="required",
        max_tokens=32,
    )
    assert called.choices[0].message.tool_calls
    several = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": LONG}], n=3, max_tokens=4
    )
    assert len(several.choices) == 3
    pictures = await client.chat.completions.create(
        model=MODEL,
        max_tokens=4,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "http://127.0.0.1/cat.png"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                ],
            }
        ],
    )
    assert pictures.choices[0].message.content
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": LONG}], stream=True, max_tokens=6
    )
    text = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(text)
    assert [model.id async for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"
    await client.close()


async def test_the_synchronous_sdk_works_too(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)

    def ask() -> str | None:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}])
            return answer.choices[0].message.content

    assert await asyncio.to_thread(ask)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{not json", 400, "invalid_json"),
        (b"[1]", 400, "not_an_object"),
        (b'{"messages": []}', 400, "missing_model"),
        (b'{"model": "nope", "messages": []}', 404, "model_not_found"),
        (b'{"model": 3, "messages": []}', 400, "invalid_value"),
    ],
)
async def test_bad_input_gets_a_clear_error_and_changes_nothing(
    fleet: Fleet, body: bytes, status: int, code: str
) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, fleet={"unlisted_models": "refuse"})
    answer = await gateway.client.post("/v1/chat/completions", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error.keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    assert answer.headers["x-cacheway-worker"] == "none"
    stats = (await gateway.client.get(f"{engine.url}/_stats")).json()
    assert stats["requests"] == 0


async def test_limits_of_body_and_headers_are_kept(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, server={"body_bytes_max": 2048, "header_count_max": 20})
    large = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    assert large.headers["x-request-id"]
    many = await gateway.client.post(
        "/v1/chat/completions", json=chat("x"), headers={f"x-{n}": "1" for n in range(30)}
    )
    assert (many.status_code, many.json()["error"]["code"]) == (431, "too_many_headers")


async def test_without_a_worker_for_the_model_the_answer_is_503_with_retry_after(fleet: Fleet) -> None:
    gateway = await fleet.gateway(f"http://127.0.0.1:{free_port()}")
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_key_is_asked_for_where_one_is_set(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, server={"api_key": "secret"})
    denied = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (denied.status_code, denied.json()["error"]["code"]) == (401, "invalid_api_key")
    assert (await gateway.client.get("/workers")).status_code == 401
    assert (await gateway.client.get("/health")).status_code == 200
    allowed = {"authorization": "Bearer secret"}
    assert (
        await gateway.client.post("/v1/chat/completions", json=chat(), headers=allowed)
    ).status_code == 200
    assert (await gateway.client.get("/workers", headers=allowed)).status_code == 200


async def test_requests_over_the_limit_in_flight_are_rejected_with_retry_after(fleet: Fleet) -> None:
    engine = await fleet.engine(EngineSettings(prefill_base_ms=300))
    gateway = await fleet.gateway(engine.url, server={"max_concurrent_requests": 2}, queue={"size": 0})
    answers = await asyncio.gather(
        *(gateway.client.post("/v1/chat/completions", json=chat(f"{n} {LONG}")) for n in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
    rejected = next(answer for answer in answers if answer.status_code == 429)
    assert int(rejected.headers["retry-after"]) >= 1


async def test_a_client_that_leaves_frees_its_worker(fleet: Fleet) -> None:
    engine = await fleet.engine(EngineSettings(tpot_ms=50))
    gateway = await fleet.gateway(engine.url)
    async with gateway.client.stream(
        "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=1000)
    ) as answer:
        async for _ in answer.aiter_bytes():
            break

    async def freed() -> bool:
        stats = (await gateway.client.get(f"{engine.url}/_stats")).json()
        return stats["running"] == 0 and stats["aborted"] == 1

    await until_async(freed)
    await until(gateway.idle)


async def test_a_client_that_leaves_during_the_prefill_frees_its_worker_too(fleet: Fleet) -> None:
    engine = await fleet.engine(EngineSettings(prefill_base_ms=60_000))
    gateway = await fleet.gateway(engine.url)
    with pytest.raises(httpx.ReadTimeout):
        await gateway.client.post("/v1/chat/completions", json=chat(stream=True), timeout=0.3)
    await until(gateway.idle)
    match = gateway.process.fleet.tree.match
    assert not any(match(path).matched.any() for path in _paths(gateway))


def _paths(gateway: Any) -> list[bytes]:
    identifier = gateway.process.gateway.reader.identifier
    from router.gateway.endpoints import Endpoint

    return list(identifier.parse(Endpoint.CHAT, json.dumps(chat(stream=True)).encode()).paths)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "reset", "after_chunks": 0, "count": 1},
        {"kind": "error", "status": 500, "count": 1},
        {"kind": "error", "status": 503, "count": 1},
        {"kind": "close", "after_chunks": 0, "count": 1},
        {"kind": "garbage", "count": 1},
    ],
    ids=lambda fault: f"{fault['kind']}{fault.get('status', '')}",
)
async def test_a_failure_before_the_first_byte_goes_to_another_worker(
    fleet: Fleet, fault: dict[str, Any]
) -> None:
    engines = [await fleet.engine() for _ in range(2)]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    await gateway.client.post(f"{engines[0].url}/_fault", json=fault)
    answers = [
        await gateway.client.post("/v1/chat/completions", json=chat(f"{n} {LONG}", stream=n % 2 == 0))
        for n in range(16)
    ]
    assert {answer.status_code for answer in answers} == {200}
    metrics = (await gateway.client.get("/metrics")).text
    assert "cacheway_redispatches_total{" in metrics


async def test_the_only_worker_is_asked_again_when_it_gave_no_answer(fleet: Fleet) -> None:
    """A reset may be the moment's trouble; an answer of the only worker, though, is the answer."""
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    await gateway.client.post(f"{engine.url}/_fault", json={"kind": "close", "after_chunks": 0, "count": 2})
    assert (await gateway.client.post("/v1/chat/completions", json=chat())).status_code == 200
    await gateway.client.post(f"{engine.url}/_fault", json={"kind": "error", "status": 503, "count": 1})
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 503
    assert "code" in answer.json().get("error", answer.json())


async def test_a_worker_that_refuses_is_passed_over_and_found_again(fleet: Fleet) -> None:
    engines = [await fleet.engine() for _ in range(2)]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    await gateway.client.post(f"{engines[0].url}/_fault", json={"kind": "refuse", "seconds": 1.0})
    answers = [await gateway.client.post("/v1/chat/completions", json=chat(f"{n} {LONG}")) for n in range(6)]
    assert {answer.status_code for answer in answers} == {200}

    async def back() -> bool:
        workers = (await gateway.client.get("/workers")).json()["workers"]
        return all(worker["is_healthy"] for worker in workers)

    await until_async(back)


async def test_a_workers_own_error_passes_through_when_retries_are_off(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, reliability={"disable_retries": True})
    await gateway.client.post(f"{engine.url}/_fault", json={"kind": "error", "status": 500, "count": 1})
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 500
    assert answer.headers["x-cacheway-worker"] == f"127.0.0.1:{engine.port}"


async def test_a_stream_that_breaks_ends_with_an_error_event(fleet: Fleet) -> None:
    engine = await fleet.engine(EngineSettings(tpot_ms=20, emit_interval_ms=1))
    gateway = await fleet.gateway(engine.url)
    await gateway.client.post(f"{engine.url}/_fault", json={"kind": "reset", "after_chunks": 3, "count": 1})
    async with gateway.client.stream(
        "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=100)
    ) as answer:
        got = await events(answer)
    assert json.loads(got[-1])["error"]["code"] == "upstream_stream_broken"
    assert "[DONE]" not in got


async def test_a_worker_that_says_nothing_is_given_up_on(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(
        engine.url,
        upstream={"first_byte_timeout_s": 0.5},
        reliability={"disable_retries": True},
        fleet={"health_check_interval_s": 30},
    )
    await gateway.client.post(f"{engine.url}/_fault", json={"kind": "stall", "seconds": 30, "count": 1})
    answer = await gateway.client.post("/v1/chat/completions", json=chat(stream=True))
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_a_request_has_a_deadline(fleet: Fleet) -> None:
    engine = await fleet.engine(EngineSettings(prefill_base_ms=60_000))
    gateway = await fleet.gateway(engine.url, server={"request_timeout_s": 0.4})
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")


async def test_an_unreachable_fleet_answers_502(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, fleet={"health_check_interval_s": 30})
    await gateway.client.post(f"{engine.url}/_fault", json={"kind": "refuse", "seconds": 5.0})
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")


async def test_cookies_and_unknown_headers_never_reach_a_worker(fleet: Fleet) -> None:
    seen: list[bytes] = []

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            seen.append(head.lower())
        body = b'{"data": []}' if b"/v1/models" in head else b"{}"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(worker, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        gateway = await fleet.gateway(f"http://127.0.0.1:{port}")
        await gateway.client.post(
            "/v1/chat/completions",
            json=chat("x"),
            headers={
                "cookie": "a=b",
                "x-strange": "1",
                "authorization": "Bearer client",
                "traceparent": "00-1",
            },
        )
    assert b"cookie" not in seen[0]
    assert b"x-strange" not in seen[0]
    assert b"authorization: bearer client" in seen[0]
    assert b"traceparent: 00-1" in seen[0]
    assert b"x-request-id: req-" in seen[0]


async def test_identical_prompts_meet_on_one_worker(fleet: Fleet) -> None:
    engines = [await fleet.engine() for _ in range(4)]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    workers = [
        (await gateway.client.post("/v1/chat/completions", json=chat())).headers["x-cacheway-worker"]
        for _ in range(12)
    ]
    assert max(workers.count(worker) for worker in workers) >= 10


async def test_tenants_never_share_a_prefix(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    for tenant, expected in (("one", False), ("one", True), ("two", False)):
        answer = await gateway.client.post(
            "/v1/chat/completions", json=chat(), headers={"x-tenant-id": tenant}
        )
        assert (int(answer.headers["x-cacheway-cached-tokens"]) > 0) is expected


async def test_workers_come_and_go_in_both_dialects(fleet: Fleet) -> None:
    engines = [await fleet.engine() for _ in range(2)]
    gateway = await fleet.gateway()
    added = await gateway.client.post("/workers", json={"url": engines[0].url})
    assert added.status_code == 202
    worker_id = added.json()["worker_id"]
    assert (await gateway.client.post("/add_worker", params={"url": engines[1].url})).status_code == 200
    assert (await gateway.client.get("/list_workers")).json() == {"urls": sorted(e.url for e in engines)}

    async def healthy() -> bool:
        return bool((await gateway.client.get("/readiness")).json()["workers"]["healthy"] == 2)

    await until_async(healthy)
    assert (await gateway.client.post("/v1/chat/completions", json=chat())).status_code == 200
    one = (await gateway.client.get(f"/workers/{worker_id}")).json()
    assert (one["state"], one["models"]) == ("healthy", [MODEL])

    assert (await gateway.client.put(f"/workers/{worker_id}", json={"draining": True})).status_code == 202
    for _ in range(3):
        answer = await gateway.client.post("/v1/chat/completions", json=chat())
        assert answer.headers["x-cacheway-worker"] != worker_id
    assert (await gateway.client.delete(f"/workers/{worker_id}")).status_code == 202
    assert (await gateway.client.delete(f"/workers/{worker_id}")).status_code == 404
    assert (await gateway.client.get(f"/workers/{worker_id}")).status_code == 404
    assert (await gateway.client.post("/remove_worker", params={"url": engines[1].url})).status_code == 200
    assert (await gateway.client.get("/list_workers")).json() == {"urls": []}
    wrong = await gateway.client.post("/workers", json={"url": "ftp://x"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_worker_url")


async def test_models_are_merged_over_workers(fleet: Fleet) -> None:
    engines = [
        await fleet.engine(EngineSettings(models=("a",), max_model_len=1000)),
        await fleet.engine(EngineSettings(models=("a",), max_model_len=2000)),
        await fleet.engine(EngineSettings(models=("b",))),
    ]
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    data = (await gateway.client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["workers"]) for model in data] == [("a", 2), ("b", 1)]
    assert (await gateway.client.get("/v1/models/b")).json() == data[1]
    assert (await gateway.client.get("/v1/models/c")).json()["error"]["code"] == "model_not_found"
    assert data[0]["max_model_len"] == 1000
    answer = await gateway.client.post("/v1/chat/completions", json=chat() | {"model": "b"})
    assert answer.headers["x-cacheway-worker"] == f"127.0.0.1:{engines[2].port}"


async def test_answers_teach_bytes_per_token_and_the_engines_capacity_is_asked(fleet: Fleet) -> None:
    engine = await fleet.engine(EngineSettings(cache_tokens=123_456, dialect="vllm"))
    gateway = await fleet.gateway(engine.url, placement={"bytes_per_token": 8.0})

    async def learned() -> bool:
        await gateway.client.post("/v1/chat/completions", json=chat(LONG))
        return gateway.process.fleet.bytes_per_token(MODEL, 0.0) == pytest.approx(4.0, rel=0.2)

    await until_async(learned)  # replicas tell each other at most once a second
    worker = gateway.process.fleet.workers()[0]
    assert worker.capacity_tokens == pytest.approx(123_456, rel=0.01)


async def test_what_the_engine_no_longer_has_is_trimmed(fleet: Fleet) -> None:
    """The engine's cache is flushed behind the gateway's back: one answer corrects the prediction."""
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    for _ in range(2):  # the second answer shows that this engine reports cached tokens
        await gateway.client.post("/v1/chat/completions", json=chat(LONG + "A" * 4000))
    await gateway.client.post(f"{engine.url}/flush_cache")
    await gateway.client.post("/v1/chat/completions", json=chat(LONG + "B" * 4000))
    again = await gateway.client.post("/v1/chat/completions", json=chat(LONG + "A" * 4000))
    predicted = int(again.headers["x-cacheway-cached-tokens"])
    reported = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert predicted == pytest.approx(reported, abs=300)


async def test_flushing_all_caches_forgets_them(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    await gateway.client.post("/v1/chat/completions", json=chat())
    flushed = await gateway.client.post("/flush_cache")
    assert flushed.json() == {"flushed": [f"127.0.0.1:{engine.port}"], "failed": {}}
    answer = await gateway.client.post("/v1/chat/completions", json=chat())
    assert answer.headers["x-cacheway-cached-tokens"] == "0"


async def test_what_happens_is_seen_from_outside(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    body = chat(stream=True, stream_options={"include_usage": True})
    for _ in range(2):
        assert (await gateway.client.post("/v1/chat/completions", json=body)).status_code == 200
    metrics = (await gateway.client.get("/metrics")).text
    for name in (
        "cacheway_ttft_seconds_count 2.0",
        'cacheway_worker_state{state="healthy"',
        "cacheway_log_lag_seconds",
        "cacheway_snapshot_age_seconds",
        'cacheway_degraded{component="redis"} 0.0',
        'cacheway_decisions_total{policy="expected_cost"',
        "cacheway_reported_cached_tokens_total",
        "cacheway_circuit_state",
    ):
        assert name in metrics, name


async def test_routes_that_do_not_exist_answer_in_the_same_shape(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    missing = await gateway.client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert missing.headers["x-cacheway-worker"] == "none"
    assert missing.headers["x-request-id"]
    method = await gateway.client.get("/v1/chat/completions")
    assert method.status_code in (404, 405)
    assert method.json()["error"]["code"] in ("not_found", "method_not_allowed")


async def test_a_slow_client_is_back_pressured_not_buffered(fleet: Fleet) -> None:
    """A worker that would send for ever: only what sockets and one write buffer hold leaves it."""
    sent = 0

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"data: " + b"x" * 65536 + b"\n\n")
                await writer.drain()
                sent += 65536

    server = await asyncio.start_server(worker, "127.0.0.1", 0)
    async with server:
        gateway = await fleet.gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", gateway.process.settings.server.port, limit=1024
        )
        body = json.dumps(chat("x", stream=True)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        history: list[int] = []

        def stopped() -> bool:
            history.append(sent)
            return sent > 0 and len(history) > 40 and len(set(history[-40:])) == 1

        await until(stopped)
        held = sent
        assert held < 64 * 2**20
        await reader.readexactly(held)
        await until(lambda: sent > held)
        writer.transport.abort()
        await until(gateway.idle)
