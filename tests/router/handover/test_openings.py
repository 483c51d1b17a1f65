"""Streams as vLLM 0.32 opens them, and what is made of each beginning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.handover.openings import OPENING_BYTES_MAX, Opening, opening

ROLE = (
    b'data: {"id":"chatcmpl-8","object":"chat.completion.chunk","model":"tiny","choices":['
    b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":null,"prompt_text":null}\n\n'
)
SGLANG_ROLE = (
    b'data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"",'
    b'"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}\n\n'
)
STARTED = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"chatcmpl-b","type":"message",'
    b'"role":"assistant","content":[],"model":"tiny","usage":{"input_tokens":244,"output_tokens":0}}}\n\n'
)
CHAT_TOKEN = (
    b'data: {"id":"chatcmpl-8","choices":[{"index":0,"delta":{"content":"ark"},"logprobs":null,'
    b'"finish_reason":null,"token_ids":null}]}\n\n'
)
TEXT_TOKEN = b'data: {"id":"cmpl-8","choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
BLOCK = (
    b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"text",'
    b'"text":""},"index":0}\n\n'
)
LOST = (
    b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, '
    b'"code": 500}}\n\n'
)
LOST_MESSAGE = (
    b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"2 validation errors '
    b'for ChatCompletionStreamResponse\\nmodel\\n  Field required"}}\n\n'
)
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("data", [b"", ROLE, SGLANG_ROLE, STARTED, ROLE + ROLE])
def test_events_that_only_open_are_silent(data: bytes) -> None:
    assert opening(data) is Opening.SILENT


@pytest.mark.parametrize(
    "data",
    [LOST, ROLE + LOST, ROLE + LOST + DONE, STARTED + LOST_MESSAGE, LOST_MESSAGE, b'data:{ "error":{}}\n\n'],
)
def test_an_error_before_the_first_token_is_a_failure(data: bytes) -> None:
    assert opening(data) is Opening.FAILED


@pytest.mark.parametrize(
    "data",
    [
        CHAT_TOKEN,
        ROLE + CHAT_TOKEN,
        ROLE + CHAT_TOKEN + LOST,
        TEXT_TOKEN,
        STARTED + BLOCK,
        ROLE.replace(b'"content":""', b'"content":"x"'),
        ROLE.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        ROLE.replace(b'"role":"assistant",', b""),
        ROLE.replace(b'"role":"assistant"', b'"role":null'),
        ROLE.replace(b'"content":""', b'"tool_calls":[{"index":0}]'),
        b'data: {"error": {"message": "too long", "code": 400}}\n\n',
        ROLE + DONE,
        b'{"id":"x","choices":[]}',
        b'data: {"choices":[],"usage":{}}\n\n',
        b"data: {not json}\n\n",
        ROLE[:-1],
        b"\xff\x00",
    ],
)
def test_anything_else_is_an_answer(data: bytes) -> None:
    """An empty text may be a token's, and half an event is no longer than one read."""
    assert opening(data) is Opening.BEGUN


def test_what_is_held_back_is_bounded() -> None:
    many = ROLE * (OPENING_BYTES_MAX // len(ROLE) + 1)
    assert opening(many[: -len(ROLE)]) is Opening.SILENT
    assert opening(many) is Opening.BEGUN


@given(st.binary(max_size=300), st.sampled_from((b"", ROLE, b"data: ", b'data: {"choices":')))
def test_nothing_that_an_engine_may_send_is_too_much(data: bytes, before: bytes) -> None:
    assert opening(before + data) in Opening
