"""The text that is kept of a stream, and its events as the client sees them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.continuing.asked import Asked
from router.continuing.text import TEXT_BYTES_MAX, EngineFailed, KeptText, is_plain_stream

PLAIN = Asked(chat=True, limits={}, usage=False, usage_always=False, counting=b"{}", edits=())
COUNTED = Asked(chat=True, limits={}, usage=True, usage_always=False, counting=b"{}", edits=())


def event(content: str | None = None, tokens: int | None = None, **more: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
    if content is not None:
        choice["delta"]["content"] = content
    choice["delta"] |= more.pop("delta", {})
    choice |= {name: more.pop(name) for name in ("finish_reason", "index") if name in more}
    chunk: dict[str, Any] = {
        "id": "a",
        "object": "x",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }
    if tokens is not None:
        chunk["usage"] = {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def read(events: bytes) -> list[Any]:
    return [json.loads(each.removeprefix(b"data: ")) for each in events.split(b"\n\n") if each]


def test_counts_that_the_client_did_not_ask_for_are_taken_out() -> None:
    text = KeptText(PLAIN)
    assert text.passed(event("a", 1)) == event("a")
    assert text.passed(event("a", 2) + event("b", 3)) == event("a") + event("b")
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    with_details = event("c").replace(
        b"]}\n",
        b'],"usage":' + json.dumps({"prompt_tokens": 7, "completion_tokens": 4, **details}).encode() + b"}\n",
    )
    assert text.passed(with_details) == event("c")
    assert text.passed(event("d", 5).replace(b'"choices":[{', b'"choices":[],"x":[{')) == b""
    assert (text.tokens, text.prompt_tokens, text.keeps) == (5, 7, True)


def test_text_that_looks_like_counts_stays() -> None:
    text = KeptText(PLAIN)
    said = ',"usage":{"prompt_tokens":1}'
    assert text.passed(event(said, 1)) == event(said)
    assert text.anchored == (said, 1)


def test_the_anchor_is_behind_the_last_piece_without_white_space_at_its_end() -> None:
    text = KeptText(PLAIN)
    for number, piece in enumerate(["a", " b", "\n", " ", "\ufffd"]):
        text.passed(event(piece, number + 1))
    assert text.anchored == ("a b", 2)
    text.begin_again()
    assert text.tokens == 2
    assert text.passed(event("", 0, delta={"role": "assistant"}, id="b", created=2)) == b""
    assert text.passed(event("\n", 1, id="b", created=2)) == b""
    (chunk,) = read(text.passed(event(" \ufffdc", 3, id="b", created=2)))
    assert (chunk["id"], chunk["created"], "usage" in chunk) == ("a", 1, False)
    assert chunk["choices"][0]["delta"] == {"content": "c"}
    assert text.anchored == ("a b\n \ufffdc", 5)


def test_another_text_than_what_the_client_has_is_passed_on() -> None:
    text = KeptText(PLAIN)
    for piece in ("a", "\n\n"):
        text.passed(event(piece, 1))
    text.begin_again()
    (chunk,) = read(text.passed(event("\nb", 1)))
    assert chunk["choices"][0]["delta"]["content"] == "b"
    (chunk,) = read(text.passed(event("\nc", 2)))
    assert chunk["choices"][0]["delta"]["content"] == "\nc"


def test_the_last_counts_are_of_the_whole_answer() -> None:
    text = KeptText(COUNTED)
    text.passed(event("a", 4))
    text.begin_again()
    text.passed(event("b", 3))
    last = {
        "prompt_tokens": 11,
        "completion_tokens": 3,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 9},
    }
    usage = read(
        text.passed(b"data: " + json.dumps({"id": "b", "choices": [], "usage": last}).encode() + b"\n\n")
    )
    assert usage[0]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 7,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 7},
    }


@pytest.mark.parametrize(
    "odd",
    [
        event("x", delta={"reasoning_content": "Hm"}),
        event("x", delta={"reasoning": "Hm"}),
        event("x", delta={"tool_calls": [{"index": 0}]}),
        event("x", delta={"refusal": "no"}),
        event("x", index=1),
        b"data: {\n\n",
        b"data: []\n\n",
        b'data: {"choices":3}\n\n',
        b"event: x\ndata: {}\n\n",
        b'data: {"error":{"code":400}}\n\n',
        b"data: {}\r\n\r\n",
        b"data: half",
        event("\ud800"),
    ],
    ids=str,
)
def test_an_unusual_event_passes_and_ends_the_keeping(odd: bytes) -> None:
    text = KeptText(PLAIN)
    text.passed(event("a", 1))
    assert text.passed(odd) == odd
    assert not text.keeps
    assert text.passed(event("b", 2)) == event("b")


def test_an_engine_that_reports_its_own_failure() -> None:
    text = KeptText(PLAIN)
    with pytest.raises(EngineFailed) as failed:
        text.passed(event("a", 1) + b'data: {"error":{"message":"dead","code":500}}\n\ndata: [DONE]\n\n')
    assert failed.value.before == event("a")
    assert str(failed.value) == "dead"
    assert (text.keeps, text.done, text.anchored) == (True, False, ("a", 1))


def test_a_text_that_is_too_long_is_not_kept() -> None:
    text = KeptText(PLAIN)
    text.passed(event("x" * TEXT_BYTES_MAX))
    assert text.keeps
    text.passed(event("x"))
    assert not text.keeps
    text.forget()
    assert text.anchored == ("", 0)


@pytest.mark.parametrize("mark", ["<think>", "</think>", "<|channel|>analysis", "<tool_call>"])
def test_marks_of_reasoning_are_found_across_pieces(mark: str) -> None:
    text = KeptText(PLAIN)
    for character in f"a{mark}b":
        text.passed(event(character))
    assert text.is_marked


def test_the_end_of_a_finished_stream_is_written_here() -> None:
    text = KeptText(COUNTED)
    text.passed(event("a", 1))
    assert not text.is_complete
    text.passed(event("b", 2, finish_reason="stop"))
    assert text.is_complete
    counts, done, _ = text.end().split(b"\n\n")
    assert json.loads(counts.removeprefix(b"data: "))["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
    }
    assert done == b"data: [DONE]"
    text.passed(done + b"\n\n")
    assert (text.is_complete, text.end()) == (True, b"")


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=12), st.data())
def test_whatever_the_pieces_the_client_has_the_text(pieces: list[str], data: st.DataObject) -> None:
    """The next engine cuts the rest of the text at other places."""
    whole = "".join(pieces).replace("\ud800", "")
    text, seen = KeptText(PLAIN), ""
    cut = data.draw(st.integers(0, len(pieces)))
    for number, piece in enumerate(pieces[:cut]):
        seen += "".join(
            each["choices"][0]["delta"]["content"] for each in read(text.passed(event(piece, number)))
        )
    said, _ = text.anchored
    assert whole.startswith(said)
    assert not said or not said[-1].isspace()
    text.begin_again()
    rest = whole[len(said) :]
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        for each in read(text.passed(event(rest[:size], 1))):
            seen += each["choices"][0]["delta"]["content"]
        rest = rest[size:]
    assert seen == whole


@pytest.mark.parametrize(
    ("status", "lines", "length", "plain"),
    [
        (200, b"Content-Type: text/event-stream; charset=utf-8\r\n", None, True),
        (200, b"content-type: text/event-stream\r\n", 3, False),
        (206, b"content-type: text/event-stream\r\n", None, False),
        (200, b"content-type: application/json\r\n", None, False),
        (200, b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n", None, False),
    ],
)
def test_heads_of_plain_streams(status: int, lines: bytes, length: int | None, plain: bool) -> None:
    assert is_plain_stream(status, lines, length) is plain
