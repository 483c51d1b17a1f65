"""Every route of both dialects over a real socket; answers in detail are in ``replies``."""

import json
from typing import Any

import pytest

from router.engines.sglang import describe

DIALECTS = pytest.mark.parametrize("dialect", ["sglang", "vllm"])
HELLO = [{"role": "user", "content": "hello"}]


@DIALECTS
async def test_models_are_listed_with_their_context_length(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect, models=("a", "b"), loras=("c",), max_model_len=4096)
    listed = (await client.get("/v1/models")).json()["data"]

    assert [(one["id"], one["parent"], one["max_model_len"]) for one in listed] == [
        ("a", None, 4096),
        ("b", None, 4096),
        ("c", "a", 4096),
    ]


@pytest.mark.parametrize(
    ("dialect", "there", "missing"),
    [
        (
            "sglang",
            ["/health_generate", "/get_server_info", "/server_info", "/get_model_info", "/get_load"],
            ["/version"],
        ),
        ("vllm", ["/version", "/load", "/ping"], ["/get_server_info", "/health_generate"]),
    ],
)
async def test_each_dialect_has_its_own_information(
    start: Any, dialect: str, there: Any, missing: Any
) -> None:
    _, client = await start(dialect=dialect)

    for path in ["/health", "/v1/models", "/metrics", *there]:
        assert (await client.get(path)).status_code == 200
    for path in missing:
        assert (await client.get(path)).status_code == 404


async def test_sizes_are_told_where_gateways_look_for_them(start: Any) -> None:
    _, client = await start(cache_tokens=6400, block_tokens=64)
    info = (await client.get("/get_server_info")).json()

    assert (info["max_total_num_tokens"], info["page_size"]) == (6400, 64)


async def test_host_memory_is_told_as_sglang_does(start: Any) -> None:
    """The gateway reads it from there, with metrics or without."""
    _, client = await start(cache_tokens=6400, block_tokens=64, host_tokens=25_600, dp_ranks=2)
    info = (await client.get("/get_server_info")).json()
    metrics = (await client.get("/metrics")).text

    assert (info["enable_hierarchical_cache"], info["hicache_ratio"]) == (True, 4.0)
    assert describe(info, "").host_tokens == describe(info, metrics).host_tokens == 25_600
    assert describe(info | {"hicache_ratio": None}, metrics).host_tokens == 25_600


async def test_an_engine_without_host_memory_says_so(start: Any) -> None:
    _, client = await start()
    info = (await client.get("/get_server_info")).json()
    assert describe(info, "").host_tokens == 0


@DIALECTS
async def test_an_unknown_model_is_not_found(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    answer = await client.post("/v1/chat/completions", json={"model": "nope", "messages": HELLO})
    body = answer.json() if dialect == "sglang" else answer.json()["error"]

    assert answer.status_code == body["code"] == 404
    assert (body["type"], body["param"]) == ("NotFoundError", "model")


@DIALECTS
async def test_a_prompt_that_is_longer_than_the_context_is_refused(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect, max_model_len=100)
    answer = await client.post("/v1/completions", json={"prompt": [1] * 90, "max_tokens": 11})
    body = answer.json() if dialect == "sglang" else answer.json()["error"]

    assert (answer.status_code, body["param"]) == (400, "input_tokens")
    assert "maximum context length is 100 tokens" in body["message"]
    assert (
        await client.post("/v1/completions", json={"prompt": [1] * 90, "max_tokens": 10})
    ).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 5}', b'{"messages": [{"role": "\xff"}]}'])
async def test_a_body_that_makes_no_sense_is_a_bad_request(start: Any, body: Any) -> None:
    _, client = await start()
    answer = await client.post("/v1/chat/completions", content=body)

    assert answer.status_code == 400


async def test_only_post_brings_work(start: Any) -> None:
    _, client = await start()

    assert (await client.get("/v1/chat/completions")).status_code == 405


async def test_vllm_names_its_answer_after_the_request_id(start: Any) -> None:
    _, client = await start(dialect="vllm")
    body = {"messages": HELLO, "max_tokens": 1}
    answer = await client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "abc-123"})

    assert answer.json()["id"] == "chatcmpl-abc-123"


async def test_sglang_takes_the_request_id_from_the_body(start: Any) -> None:
    _, client = await start()
    single = await client.post("/generate", json={"text": "x", "rid": "abc"})
    batch = await client.post("/generate", json={"text": ["x", "y"], "rid": ["a", "b"]})

    assert single.json()["meta_info"]["id"] == "abc"
    assert [one["meta_info"]["id"] for one in batch.json()] == ["a", "b"]


async def test_the_head_of_a_vllm_stream_comes_before_its_first_token(start: Any) -> None:
    """The prefill never ends, and yet there is a head; SGLang has none to show until then."""
    _, client = await start(dialect="vllm", prefill_base_ms=1e9)
    body = {"messages": HELLO, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200


async def test_an_aborted_request_ends_with_that_reason(start: Any) -> None:
    _, client = await start(tpot_ms=1e6)
    body = {"text": "x", "rid": "abc", "stream": True} | {
        "sampling_params": {"max_new_tokens": 50, "ignore_eos": True}
    }
    for abort in ({"rid": "abc"}, {"abort_all": True}):
        async with client.stream("POST", "/generate", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await client.post("/abort_request", json={"rid": "nope"})
            assert (await client.post("/flush_cache")).status_code == 400
            await client.post("/abort_request", json=abort)
            *_, last = [line async for line in lines if line.startswith("data: {")]

        assert json.loads(last[6:])["meta_info"]["finish_reason"] == {"type": "abort"}


@pytest.mark.parametrize(("dialect", "path"), [("sglang", "/flush_cache"), ("vllm", "/reset_prefix_cache")])
async def test_a_flushed_cache_holds_nothing(start: Any, dialect: str, path: str) -> None:
    engine, client = await start(dialect=dialect)
    await client.post("/v1/completions", json={"prompt": [1] * 1000})
    assert engine.scheduler.held_tokens > 0

    assert (await client.post(path)).status_code == 200
    assert engine.scheduler.held_tokens == 0


@DIALECTS
async def test_text_comes_back_from_its_tokens(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    tokens = (await client.post("/tokenize", json={"prompt": "hello world"})).json()
    text = await client.post("/detokenize", json={"tokens": tokens["tokens"]})

    assert tokens["count"] == 3
    assert text.json() == {"text" if dialect == "sglang" else "prompt": "hello world"}
    assert (await client.post("/detokenize", json={"tokens": "x"})).status_code == 400


@DIALECTS
async def test_tokenized_messages_are_the_prompt_that_the_chat_uses(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect, block_tokens=1)
    tokens = (await client.post("/tokenize", json={"messages": HELLO})).json()
    await client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1})
    answer = await client.post("/v1/completions", json={"prompt": tokens["tokens"], "max_tokens": 1})

    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == tokens["count"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == tokens["count"] - 1


async def test_an_unknown_model_is_refused_in_anthropics_shape(start: Any) -> None:
    _, client = await start(dialect="vllm")
    asked = {"model": "nope", "messages": HELLO, "max_tokens": 1}
    answer = await client.post("/v1/messages", json=asked)
    assert (answer.status_code, answer.json()["type"]) == (404, "error")


@DIALECTS
async def test_counted_tokens_are_those_that_the_message_uses(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    asked = {"messages": HELLO, "system": "Be brief.", "tools": [{"name": "w", "input_schema": {}}]}
    counted = await client.post("/v1/messages/count_tokens", json=asked)
    answer = await client.post("/v1/messages", json={**asked, "max_tokens": 1})

    assert counted.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}
    assert (await client.post("/v1/messages/count_tokens", json={})).status_code == 400


async def test_without_a_cache_report_nothing_is_said_about_the_cache(start: Any) -> None:
    _, client = await start(cache_report=False)
    for _ in range(2):
        answer = await client.post("/v1/completions", json={"prompt": [1] * 1000})

    assert answer.json()["usage"]["prompt_tokens_details"] is None


async def test_a_request_that_breaks_the_emulator_is_answered_with_500(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Tools that are nested 300 deep can be decoded, but not be written out again."""
    _, client = await start()
    tools = "[" * 300 + "]" * 300
    body = '{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": ' + tools + "}]}"
    answer = await client.post("/v1/chat/completions", content=body)

    assert answer.status_code == 500
    assert "request failed" in caplog.text
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_request_names_its_rank_in_a_header(start: Any, dialect: str) -> None:
    engine, client = await start(dialect=dialect, dp_ranks=2, cache_tokens=100_000)
    body = {"prompt": [1] * 1000, "max_tokens": 1}
    for rank, tokens in (("1", [0, 960]), ("1", [0, 960]), ("0", [960, 960])):
        headers = {"x-data-parallel-rank": rank}
        assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
        held = [each.cache.held_tokens // 64 * 64 for each in engine.scheduler.ranks]
        assert held == [min(960, each) for each in held] == tokens
    refused = await client.post("/v1/completions", json=body, headers={"x-data-parallel-rank": "2"})
    assert refused.status_code == 400
    assert "out of range [0, 2)" in refused.text


async def test_sglang_takes_the_header_before_either_field_of_the_body(start: Any) -> None:
    engine, client = await start(dialect="sglang", dp_ranks=4, cache_tokens=100_000)
    used = []
    for fields, header in (
        ({"routed_dp_rank": 3}, None),
        ({"data_parallel_rank": 2}, None),
        ({"routed_dp_rank": 0, "data_parallel_rank": 2}, None),
        ({"routed_dp_rank": 3}, "1"),
    ):
        before = [each.cache.held_tokens for each in engine.scheduler.ranks]
        body = {"prompt": [len(used) + 1] * 1000, "max_tokens": 1, **fields}
        headers = {} if header is None else {"x-data-parallel-rank": header}
        assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
        after = [each.cache.held_tokens for each in engine.scheduler.ranks]
        used += [rank for rank in range(4) if after[rank] > before[rank]]
    assert used == [3, 2, 0, 1]
    for fields, header in (({"routed_dp_rank": 4}, None), ({"routed_dp_rank": -1}, None), ({}, "x")):
        headers = {} if header is None else {"x-data-parallel-rank": header}
        answer = await client.post("/v1/completions", json={"prompt": [1], **fields}, headers=headers)
        assert answer.status_code == 400
