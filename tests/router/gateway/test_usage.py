import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Usage
from router.gateway.endpoints import Endpoint
from router.gateway.usage import find_usage
from router.tail_buffer import TailBuffer


def sse(*events: object) -> bytes:
    lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
    return b"".join(f"data: {line}\n\n".encode() for line in lines)


VLLM_USAGE = {
    "prompt_tokens": 643,
    "total_tokens": 651,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 640, "created_cache_tokens": 0, "multimodal_tokens": None},
}
ANSWERS = {
    "vllm chat": (
        Endpoint.CHAT,
        json.dumps(
            {
                "id": "chatcmpl-1",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": 'say "usage": {}'}}],
                "usage": VLLM_USAGE,
                "prompt_logprobs": None,
                "kv_transfer_params": None,
            }
        ).encode(),
        Usage(643, 640, 8),
    ),
    "vllm without details": (
        Endpoint.CHAT,
        b'{"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":null}}',
        Usage(9, None, 1),
    ),
    "chat stream with usage in the last event": (
        Endpoint.CHAT,
        sse(
            {"choices": [{"delta": {"content": "hi"}}], "usage": None},
            {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
            {"choices": [], "usage": VLLM_USAGE},
            "[DONE]",
        ),
        Usage(643, 640, 8),
    ),
    "chat stream without usage": (
        Endpoint.CHAT,
        sse({"choices": [{"delta": {"content": '"usage":{"prompt_tokens":1}'}}], "usage": None}, "[DONE]"),
        None,
    ),
    "embeddings": (
        Endpoint.EMBEDDINGS,
        b'{"data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":5,"total_tokens":5}}',
        Usage(5, None, None),
    ),
    "sglang generate": (
        Endpoint.GENERATE,
        (
            b'{"text":"x","meta_info":{"id":"r","finish_reason":{"type":"length","length":4},'
            b'"prompt_tokens":300,"completion_tokens":4,"cached_tokens":256,"e2e_latency":0.1}}'
        ),
        Usage(300, 256, 4),
    ),
    "sglang generate stream": (
        Endpoint.GENERATE,
        sse(
            {"text": "a", "meta_info": {"prompt_tokens": 30, "completion_tokens": 1, "cached_tokens": 0}},
            {"text": "ab", "meta_info": {"prompt_tokens": 30, "completion_tokens": 2, "cached_tokens": 16}},
            "[DONE]",
        ),
        Usage(30, 16, 2),
    ),
    "responses stream": (
        Endpoint.RESPONSES,
        sse(
            {"type": "response.created", "response": {"usage": None}},
            {
                "type": "response.completed",
                "response": {
                    "usage": {
                        "input_tokens": 70,
                        "input_tokens_details": {"cached_tokens": 64},
                        "output_tokens": 3,
                        "total_tokens": 73,
                    }
                },
            },
        ),
        Usage(70, 64, 3),
    ),
    "anthropic": (
        Endpoint.MESSAGES,
        (
            b'{"content":[{"type":"tool_use","input":{"usage":{"prompt_tokens":1}}}],"usage":{"input_tokens":10,'
            b'"cache_read_input_tokens":90,"cache_creation_input_tokens":5,"output_tokens":7}}'
        ),
        Usage(105, 90, 7),
    ),
    "anthropic stream": (
        Endpoint.MESSAGES,
        sse(
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 25, "cache_read_input_tokens": 75, "output_tokens": 1}},
            },
            {"type": "content_block_delta", "delta": {"text": "hello"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
            {"type": "message_stop"},
        ),
        Usage(100, 75, 15),
    ),
    "anthropic stream of vllm": (
        Endpoint.MESSAGES,
        sse(
            {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}},
            {"type": "message_delta", "usage": {"input_tokens": 44, "output_tokens": 15}},
        ),
        Usage(44, None, 15),
    ),
    "only unusable counts": (
        Endpoint.CHAT,
        (
            b'{"usage":{"prompt_tokens":"9"}} {"usage":{"prompt_tokens":-1}} {"usage":{"prompt_tokens":true}}'
            b'{"usage":{"prompt_tokens":99999999999999999999}} "usage" : 7 "usage":{"prompt_tokens":1'
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_usage_is_found_in_what_engines_send(name: str) -> None:
    endpoint, body, expected = ANSWERS[name]

    assert find_usage(endpoint, body) == expected


@pytest.mark.parametrize("name", ANSWERS)
@given(cuts=st.lists(st.integers(0, 700), max_size=8))
def test_it_does_not_matter_where_an_answer_was_cut_into_chunks(name: str, cuts: list[int]) -> None:
    endpoint, body, expected = ANSWERS[name]
    tail = TailBuffer()
    edges = [0, *sorted(cuts), len(body)]
    for begin, end in itertools.pairwise(edges):
        tail.append(body[begin:end])

    assert find_usage(endpoint, tail) == expected


def test_a_long_anthropic_stream_is_counted_from_its_head_and_its_tail() -> None:
    """The prompt's tokens are in the first event, 200 KB before the last."""
    endpoint, body, expected = ANSWERS["anthropic stream"]
    head, middle, tail = body.partition(b'data: {"type": "content_block_delta"')
    answer = TailBuffer()
    for chunk in (head, *[middle + b"x" * 1000 + b"\n\n"] * 200, middle + tail):
        answer.append(chunk)

    assert find_usage(endpoint, answer) == expected
    assert len(answer.bytes()) < 36_000


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    find_usage(Endpoint.CHAT, data)
    find_usage(Endpoint.GENERATE, b'"meta_info":{' + data)
    find_usage(Endpoint.MESSAGES, b'"usage":{"input_tokens":' + data)


@pytest.mark.parametrize(
    "counts",
    [
        b'{"prompt_tokens":9,"model":"{","completion_tokens":3}',
        b'{"prompt_tokens":9,"model":"}","completion_tokens":3}',
        b'{"prompt_tokens":9,"cached_tokens":-1,"completion_tokens":3}',
        b'{"prompt_tokens":9,"cached_tokens":"many","completion_tokens":3}',
        b'{"prompt_tokens":9,"cached_tokens":true,"completion_tokens":3}',
        b'{"prompt_tokens":9,"prompt_tokens_details":[],"completion_tokens":3}',
        b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":1e99},"completion_tokens":3}',
        b'{"prompt_tokens":9,"cached_tokens":%d,"completion_tokens":3}' % (1 << 41),
        b'{"prompt_tokens":9,"more":%b,"completion_tokens":3}' % (b'{"a":' * 20 + b"1" + b"}" * 20),
    ],
)
def test_what_is_odd_beside_the_counts_does_not_hide_them(counts: bytes) -> None:
    found = find_usage(Endpoint.CHAT, b'{"usage": %b}' % counts)
    assert found is not None
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (9, None, 3)


def test_counts_are_those_of_the_key_and_not_of_what_comes_behind_it() -> None:
    behind = b'{"usage": null, "meta_info": {"prompt_tokens": 9}}'
    assert find_usage(Endpoint.CHAT, behind) is None
    assert find_usage(Endpoint.GENERATE, behind) == Usage(9, None, None)


def test_a_deeply_nested_answer_is_given_up_on() -> None:
    assert find_usage(Endpoint.CHAT, b'{"usage":{"a":' + b"[" * 16_000) is None
    assert find_usage(Endpoint.CHAT, b'{"usage":' * 2000) is None


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # SGLang, four answers to one prompt: the cached parts of all of them.
        (
            {"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3990}},
            Usage(1000, None, 5, possible=False),
        ),
        ({"prompt_tokens": 1000, "cached_tokens": 2**40}, Usage(1000, None, None, possible=False)),
        ({"prompt_tokens": 1000, "cached_tokens": -5}, Usage(1000, None, None, possible=False)),
        ({"prompt_tokens": 1000, "completion_tokens": 2**40}, Usage(1000, None, None, possible=False)),
        ({"prompt_tokens": 2**40, "completion_tokens": 5}, None),
        ({"prompt_tokens": 1000, "cached_tokens": 1000}, Usage(1000, 1000, None)),
    ],
)
def test_counts_that_cannot_be_are_marked_and_a_prompt_that_cannot_be_is_none(
    counts: dict[str, object], expected: Usage | None
) -> None:
    assert find_usage(Endpoint.CHAT, json.dumps({"usage": counts}).encode()) == expected
