"""Engines on real sockets, as a client of the whole engine sees them."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from loadtest.engine import EmulatedEngine, EngineSettings, Fault
from loadtest.engine.faults import FaultKind
from loadtest.engine.server import Connection

SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 100}
DIALECTS = pytest.mark.parametrize("dialect", ["sglang", "vllm"])


def chat(*messages: Any, **more: Any) -> Any:
    return {"model": "emulated", "messages": [SYSTEM, *messages], "max_tokens": 20, "ignore_eos": True} | more


LONG: Any = {"tpot_ms": 10.0, "max_model_len": 10_000}
"""Settings of an engine whose `endless` streams take a minute. Tokens that are due at once are one chunk, so
on a busy machine a short stream may have one chunk only, and end before a fault that waits for the second."""


def endless(**more: Any) -> Any:
    return chat(user("x"), stream=True, max_tokens=6_000, **more)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def cached(answer: Any) -> Any:
    details = answer.json()["usage"]["prompt_tokens_details"]
    return details["cached_tokens"] if details else 0


def events(text: str) -> Any:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def read_into(pieces: list[bytes], client: httpx.AsyncClient, body: Any) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for data in answer.aiter_bytes():
            pieces.append(data)  # noqa: PERF401 - the pieces before the break are kept


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition knows of no event
            await asyncio.sleep(0.005)


@DIALECTS
async def test_each_turn_of_a_conversation_finds_the_ones_before(start: Any, dialect: str) -> None:
    engine, client = await start(dialect=dialect, block_tokens=16)
    messages = [user("hello")]
    first = await client.post("/v1/chat/completions", json=chat(*messages))
    messages += [first.json()["choices"][0]["message"], user("and now?")]
    second = await client.post("/v1/chat/completions", json=chat(*messages))

    usage = first.json()["usage"]
    assert cached(first) == 0
    assert usage["completion_tokens"] == 20
    # All of the first prompt and its answer but the last, uncomputed token, in whole blocks.
    assert cached(second) == (usage["total_tokens"] - 1) // 16 * 16
    assert engine.scheduler.held_tokens >= cached(second)


async def test_a_full_cache_forgets_the_oldest_conversation(start: Any) -> None:
    """A prompt takes about 1,020 tokens; the cache has room for three."""
    _, client = await start(cache_tokens=3500, block_tokens=16)
    prompts = [[number] * 1000 for number in range(4)]
    body = {"max_tokens": 20, "ignore_eos": True}
    for prompt in prompts:
        await client.post("/v1/completions", json=body | {"prompt": prompt})
    kept = await client.post("/v1/completions", json=body | {"prompt": prompts[3]})
    gone = await client.post("/v1/completions", json=body | {"prompt": prompts[0]})

    assert cached(kept) == 992
    # The tail of the oldest made room; it lost no more than needed.
    assert cached(gone) < 992


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("cache_tokens", [512, 65_536])
@pytest.mark.parametrize("profile", ["mimo-v2-flash", "mimo-v2.5-pro", "kimi-linear-1t"])
async def test_a_profile_with_a_small_cache_serves_whatever_fits_into_it(
    profile: str, cache_tokens: int, dialect: Any
) -> None:
    settings = EngineSettings.of(profile, cache_tokens=cache_tokens, dialect=dialect, speed=1000.0)
    body = {"prompt": [1] * (settings.context_tokens_max - 8), "max_tokens": 8, "ignore_eos": True}
    async with (
        EmulatedEngine(settings) as engine,
        httpx.AsyncClient(base_url=engine.url, timeout=60) as client,
    ):
        answer = (await client.post("/v1/completions", json=body)).json()

    assert answer["choices"][0]["finish_reason"] == "length"


async def test_adapters_and_salts_have_caches_of_their_own(start: Any) -> None:
    _, client = await start(loras=("adapter",))
    for more in ({}, {"model": "adapter"}, {"cache_salt": "tenant"}):
        assert cached(await client.post("/v1/chat/completions", json=chat(user("x"), **more))) == 0
        assert cached(await client.post("/v1/chat/completions", json=chat(user("x"), **more))) > 0


@DIALECTS
async def test_a_stream_has_the_same_text_and_usage_as_the_whole_answer(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    whole = await client.post("/v1/chat/completions", json=chat(user("x")))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await client.post("/v1/chat/completions", json=chat(user("x"), **options))
    chunks = events(streamed.text)

    text = "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks[:-1])
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_a_stream_tells_its_usage_only_if_asked(start: Any) -> None:
    _, client = await start()
    streamed = await client.post("/v1/chat/completions", json=chat(user("x"), stream=True))

    assert all(chunk.get("usage") is None for chunk in events(streamed.text))


async def test_the_openai_sdk_works_unchanged(start: Any) -> None:
    engine, _ = await start(dialect="vllm")
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    client: Any
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x") as client:
        assert [model.id async for model in client.models.list()] == ["emulated"]
        answer = await client.chat.completions.create(
            model="emulated", messages=[user("x")], tools=tools, tool_choice="required", n=2
        )
        assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["weather"] * 2
        vector = await client.embeddings.create(model="emulated", input=["a", "b"], dimensions=8)
        assert [len(one.embedding) for one in vector.data] == [8, 8]
        async with client.responses.stream(model="emulated", input="hi", max_output_tokens=500) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[0] == "response.created"
        assert final.output_text
        assert final.usage
        assert final.usage.output_tokens > 0
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=[user("x")])
        pieces = [
            chunk.choices[0].delta.tool_calls[0].function.arguments
            async for chunk in await client.chat.completions.create(
                model="emulated", messages=[user("x")], tools=tools, tool_choice="required", stream=True
            )
            if chunk.choices[0].delta.tool_calls
        ]
        assert json.loads("".join(pieces)) == {}


@DIALECTS
async def test_a_client_that_leaves_frees_its_place_at_once(start: Any, dialect: str) -> None:
    """One is decoding, one waits for its slot; both are gone when their clients are."""
    engine, client = await start(dialect=dialect, max_running=1, tpot_ms=1000.0)
    async with client.stream("POST", "/v1/chat/completions", json=chat(user("x"), stream=True)) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat(user("y"))))
        await until(lambda: engine.stats()["waiting"] == 1)
        waiting.cancel()
        await until(lambda: engine.stats()["waiting"] == 0)
        assert engine.stats()["running"] == 1
    await until(lambda: engine.stats()["running"] == 0)

    stats = engine.stats()
    assert stats["aborted"] == 2
    assert stats["cache"]["used_tokens"] == 0


async def test_a_slow_reader_costs_no_memory_and_loses_nothing(start: Any) -> None:
    """The answer is some 6 MB of events, far above what sockets buffer; the client pauses its reading."""
    engine, client = await start(tpot_ms=0.01, emit_interval_ms=0.0, max_model_len=10**6)
    body = chat(user("x"), stream=True, max_tokens=20_000, stream_options={"include_usage": True})
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        await until(lambda: engine.stats()["finished"])
        text = "".join([piece async for piece in stream.aiter_text()])
    chunks = events(text)
    content = "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks[:-1])

    assert len(content) == 4 * 20_000
    assert chunks[-1]["usage"]["completion_tokens"] == 20_000


async def test_a_refusing_engine_is_back_when_asked_through_a_sibling() -> None:
    siblings: dict[int, EmulatedEngine] = {}
    async with (
        EmulatedEngine(EngineSettings(), siblings) as engine,
        EmulatedEngine(EngineSettings(), siblings) as other,
        httpx.AsyncClient(timeout=60) as client,
    ):
        await client.post(f"{engine.url}/_fault", json={"kind": "refuse"})
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{engine.url}/health")
        assert (await client.get(f"{other.url}/health")).status_code == 200
        await client.delete(f"{other.url}/_fault", params={"port": engine.port})
        assert (await client.get(f"{engine.url}/health")).status_code == 200


async def test_a_refusing_engine_comes_back_by_itself_when_told_how_long(start: Any) -> None:
    engine, client = await start()
    engine.inject(Fault("refuse", seconds=0.05))
    statuses = []
    async with asyncio.timeout(60):
        while 200 not in statuses:
            try:
                statuses.append((await client.get("/health")).status_code)
            except httpx.TransportError:
                await asyncio.sleep(0.005)


async def test_a_crash_resets_every_answer_and_loses_the_cache(start: Any) -> None:
    engine, client = await start(tpot_ms=1000.0)
    async with client.stream("POST", "/v1/chat/completions", json=chat(user("x"), stream=True)) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        engine.inject(Fault("crash"))
        with pytest.raises(httpx.ReadError):
            [line async for line in lines]
    engine.mend()

    stats = (await client.get("/_stats")).json()
    assert (stats["requests"], stats["cache"]["held_tokens"], stats["running"]) == (0, 0, 0)


async def test_a_connection_that_was_accepted_in_the_moment_of_a_crash_is_reset(start: Any) -> None:
    engine, _ = await start()
    _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    try:
        engine.inject(Fault("crash"))
        late = Connection(engine)
        late.connection_made(writer.transport)
        assert writer.transport.is_closing()
        late.connection_lost(None)
    finally:
        writer.close()
        engine.mend()


async def test_an_unhealthy_engine_still_serves(start: Any) -> None:
    engine, client = await start()
    engine.inject(Fault("unhealthy"))

    assert (await client.get("/health")).status_code == 503
    assert (await client.get("/health_generate")).status_code == 503
    assert (await client.post("/v1/chat/completions", json=chat(user("x")))).status_code == 200
    engine.mend()
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("kind", "error"), [("reset", httpx.ReadError), ("close", httpx.RemoteProtocolError)]
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after_chunks", [0, 2])
async def test_a_broken_answer_breaks_where_it_is_told_to_and_only_once(
    start: Any, kind: FaultKind, error: Any, stream: bool, after_chunks: int
) -> None:
    engine, client = await start(**LONG)
    engine.inject(Fault(kind, after_chunks=after_chunks, count=1))
    body = endless() if stream else chat(user("x"), max_tokens=2)
    pieces: list[bytes] = []
    with pytest.raises(error):
        await read_into(pieces, client, body)
    got = b"".join(pieces)

    if stream:
        # The first chunk is the role with the first token.
        assert len(events(got.decode())) == (after_chunks + 1 if after_chunks else 0)
    assert b"[DONE]" not in got
    assert (await client.post("/v1/chat/completions", json=body | {"max_tokens": 2})).status_code == 200
    await until(lambda: engine.stats()["running"] == 0)


async def test_garbage_is_no_http(start: Any) -> None:
    engine, client = await start(**LONG)
    engine.inject(Fault("garbage", count=1))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/v1/chat/completions", json=chat(user("x")))
    engine.inject(Fault("garbage", count=1, after_chunks=1))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/v1/chat/completions", json=endless())


@DIALECTS
async def test_an_error_has_the_status_and_shape_asked_for(start: Any, dialect: str) -> None:
    engine, client = await start(dialect=dialect)
    engine.inject(Fault("error", count=1, status=503))
    answer = await client.post("/v1/chat/completions", json=chat(user("x")))
    engine.inject(Fault("error", count=1, after_chunks=1))
    whole = await client.post("/v1/chat/completions", json=chat(user("x")))

    assert answer.status_code == 503
    assert (answer.json() if dialect == "sglang" else answer.json()["error"])["code"] == 503
    assert whole.status_code == 500


async def test_an_error_within_a_stream_is_its_last_event(start: Any) -> None:
    engine, client = await start(dialect="vllm", **LONG)
    engine.inject(Fault("error", count=1, after_chunks=2))
    answer = await client.post("/v1/chat/completions", json=endless())

    assert answer.status_code == 200
    assert events(answer.text)[-1]["error"]["code"] == 500
    assert len(events(answer.text)) == 4
    await until(lambda: engine.stats()["aborted"] == 1)
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("kind", ["stall", "slow"])
@pytest.mark.parametrize("after_chunks", [0, 1])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_delayed_answer_is_complete_in_the_end(
    start: Any, kind: FaultKind, after_chunks: int, stream: bool
) -> None:
    engine, client = await start()
    engine.inject(Fault(kind, seconds=0.05, count=1, after_chunks=after_chunks))
    answer = await client.post("/v1/chat/completions", json=chat(user("x"), stream=stream))
    again = await client.post("/v1/chat/completions", json=chat(user("x"), stream=stream))

    def text(one: Any) -> Any:
        if not stream:
            return one.json()["choices"][0]["message"]["content"]
        return "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in events(one.text))

    assert text(answer) == text(again)
    assert len(text(again)) == 80


@pytest.mark.parametrize("after_chunks", [0, 1])
async def test_a_stall_without_an_end_is_silent_until_the_client_leaves(
    start: Any, after_chunks: int
) -> None:
    engine, client = await start(**LONG)
    engine.inject(Fault("stall", count=1, after_chunks=after_chunks))
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/v1/chat/completions", json=endless(), timeout=httpx.Timeout(60, read=0.2))

    answer = await client.post("/v1/chat/completions", json=chat(user("x"), max_tokens=2))
    assert answer.status_code == 200


async def test_a_wrong_fault_or_control_path_is_refused(start: Any) -> None:
    _, client = await start()

    assert (await client.post("/_fault", json={"kind": "nope"})).status_code == 400
    assert (await client.post("/_fault", content=b"{")).status_code == 400
    assert (await client.get("/_nope")).status_code == 404
    assert (await client.get("/_stats", params={"port": 1})).status_code == 404


async def test_closing_drops_whoever_is_connected() -> None:
    async with (
        EmulatedEngine(EngineSettings(tpot_ms=1000.0)) as engine,
        httpx.AsyncClient(timeout=60) as client,
    ):
        body = chat(user("x"), stream=True)
        async with client.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            engine.close()
            with pytest.raises(httpx.ReadError):
                [line async for line in lines]


async def test_engines_of_one_process_share_what_they_computed_through_a_pool(start: Any) -> None:
    """The second engine never saw the prompt of 15 full blocks and more."""
    shared = {"cache_tokens": 4_000, "host_tokens": 8_000, "pool_tokens": 100_000}
    engine, client = await start(**shared)
    body = {"prompt": [1] * 1_000, "max_tokens": 1}
    await client.post("/v1/completions", json=body)
    async with EmulatedEngine(engine.settings, pool=engine.pool) as second:
        answer = await client.post(f"{second.url}/v1/completions", json=body)

    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 960}


async def test_sglang_joins_two_fields_to_a_salt_and_its_messages_api_hears_neither(start: Any) -> None:
    _, client = await start(dialect="sglang")
    for more, known in (
        ({"cache_salt": "ab", "extra_key": "c"}, False),
        ({"cache_salt": "a", "extra_key": "bc"}, True),
        ({"extra_key": "abc"}, True),
        ({"extra_key": "ab"}, False),
    ):
        answer = await client.post("/v1/chat/completions", json=chat(user("x"), **more))
        assert (cached(answer) > 0) is known, more
    prompt = {"text": "word " * 500, "sampling_params": {"max_new_tokens": 1}}
    for more, known in (({}, False), ({"extra_key": "a"}, False), ({"extra_key": "a"}, True)):
        answer = await client.post("/generate", json={**prompt, **more})
        assert (answer.json()["meta_info"]["cached_tokens"] > 0) is known, more
    message = {"model": "emulated", "max_tokens": 1, "messages": [user("word " * 500)]}
    for more, known in (({}, False), ({"cache_salt": "a"}, True)):
        answer = await client.post("/v1/messages", json={**message, **more})
        assert (answer.json()["usage"].get("cache_read_input_tokens", 0) > 0) is known, more
