import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.conversation import (
    Turn,
    append_turns,
    canonical_json,
    content_from,
    loads,
    turns_from,
)

texts = st.text(min_size=1, max_size=12) | st.sampled_from(
    ['"role":"user"', "\xfe", "\xff\xf8", "user", '{"type":"text"}', "\ufeff", "😀"]
)
parts = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, texts),
    st.builds(lambda u: {"type": "image_url", "image_url": {"url": u}}, texts),
    st.builds(lambda i: {"type": "mystery", "value": i}, st.integers(0, 9)),
    st.builds(
        lambda i, t: {"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": t}]},
        texts,
        texts,
    ),
    st.builds(
        lambda i, n, a: {"type": "tool_use", "id": i, "name": n, "input": a},
        texts,
        texts,
        st.dictionaries(texts, texts, max_size=2),
    ),
)
calls = st.builds(
    lambda i, n, a: {"id": i, "type": "function", "function": {"name": n, "arguments": a}},
    texts,
    texts,
    texts,
)
messages = st.fixed_dictionaries(
    {"role": texts, "content": texts | st.lists(parts, min_size=1, max_size=3)},
    optional={
        "name": texts,
        "tool_call_id": texts,
        "reasoning_content": texts,
        "tool_calls": st.lists(calls, min_size=1, max_size=2),
    },
)
conversations = st.lists(messages, max_size=4)


def stream_of(turns: list[dict[str, Any]]) -> bytes:
    pieces: list[bytes] = []
    append_turns(pieces, turns_from(turns))
    return b"".join(pieces)


def typed_stream_of(turns: list[dict[str, Any]]) -> bytes:
    pieces: list[bytes] = []
    append_turns(pieces, msgspec.json.decode(json.dumps(turns), type=list[Turn]))
    return b"".join(pieces)


def normal(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Unify forms that are equal on purpose: a string is a list of one text part; tool calls are calls."""
    result = []
    for turn in turns:
        content = turn["content"]
        content = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        for call in turn.get("tool_calls", ()):
            content.append(("call", call["id"], call["function"]["name"], call["function"]["arguments"]))
        content = [
            (
                "call",
                p["id"],
                p["name"],
                json.dumps(p["input"], sort_keys=True, separators=(",", ":"), ensure_ascii=False),
            )
            if isinstance(p, dict) and p["type"] == "tool_use"
            else p
            for p in content
        ]
        result.append({**turn, "content": content, "tool_calls": None})
    return result


@given(conversations, conversations)
def test_different_conversations_have_different_streams(one: list[Any], other: list[Any]) -> None:
    assert (stream_of(one) == stream_of(other)) == (normal(one) == normal(other))


@given(st.data(), messages)
def test_any_change_of_one_text_changes_the_stream(data: st.DataObject, message: dict[str, Any]) -> None:
    field = data.draw(st.sampled_from([k for k, v in message.items() if isinstance(v, str)]))

    assert stream_of([message]) != stream_of([{**message, field: message[field] + "x"}])


@given(conversations, conversations)
def test_a_conversation_that_goes_on_only_grows_at_its_end(earlier: list[Any], later: list[Any]) -> None:
    assert stream_of(earlier + later) == stream_of(earlier) + stream_of(later)


@given(texts, texts)
def test_a_common_prefix_of_text_is_a_common_prefix_of_the_stream(text: str, more: str) -> None:
    short, long = {"role": "user", "content": text}, {"role": "user", "content": text + more}

    assert stream_of([long]).startswith(stream_of([short]))


@given(
    st.lists(
        messages.filter(lambda m: "mystery" not in json.dumps(m) and '""' not in json.dumps(m)), max_size=3
    )
)
def test_the_typed_and_the_generic_way_give_the_same_stream(turns: list[Any]) -> None:
    assert typed_stream_of(turns) == stream_of(turns)


RESPONSES_ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "weather",
        "arguments": '{"city":"Rome"}',
    },
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
]


@pytest.mark.parametrize("index", range(len(RESPONSES_ITEMS)))
def test_every_item_of_the_responses_api_counts_but_not_its_id(index: int) -> None:
    whole = stream_of(RESPONSES_ITEMS)
    fewer = RESPONSES_ITEMS[:index] + RESPONSES_ITEMS[index + 1 :]
    renamed = [
        *RESPONSES_ITEMS[:index],
        {**RESPONSES_ITEMS[index], "id": "other"},
        *RESPONSES_ITEMS[index + 1 :],
    ]

    assert stream_of(fewer) != whole
    assert stream_of(renamed) == typed_stream_of(renamed) == whole


def test_a_string_is_a_list_of_one_text_part_and_null_is_nothing() -> None:
    as_string = stream_of([{"role": "user", "content": "abc"}])

    assert as_string == b"\xfeuser\xf8abc"
    assert stream_of([{"role": "user", "content": [{"type": "text", "text": "abc"}]}]) == as_string
    assert stream_of([{"role": "user", "content": ["abc"]}]) == as_string
    assert stream_of([{"role": "user", "content": None}]) == stream_of([{"role": "user"}]) == b"\xfeuser"


MEDIA = [
    {"type": "image_url", "image_url": {"url": "https://x/1.png", "detail": "low"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_image", "image_url": "https://x/2.png"},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "https://x/3.mp4"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "CCCC"}},
    {"type": "image", "source": {"type": "url", "url": "https://x/4.png"}},
    {"type": "image_url", "image_url": None, "uuid": "cached-image"},
    {"type": "image_url", "image_url": {"nothing": 1}},
    {"type": "file", "file": {"file_data": "DDDD"}},
    {"type": "search_result", "url": "x"},
    17,
]


def test_media_and_unknown_parts_are_told_apart_in_seventeen_bytes() -> None:
    """A mark and 16 bytes of hash for data of any length."""
    streams = {stream_of([{"role": "user", "content": [part]}]) for part in MEDIA}

    assert len(streams) == len(MEDIA)
    assert {len(stream) for stream in streams} == {len(b"\xfeuser") + 17}


def test_media_are_known_by_their_content() -> None:
    """One picture: as a data URL of any declared type, of OpenAI's APIs or Anthropic's."""
    same = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;name=a;base64,AAAA", "detail": "low"}},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ]
    others = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}},
        {"type": "image_url", "image_url": {"url": f"data:{'a' * 256};base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://x/data:image/png;base64,AAAA"}},
    ]

    assert len({stream_of([{"role": "user", "content": [part]}]) for part in same}) == 1
    assert len({stream_of([{"role": "user", "content": [part]}]) for part in (*same, *others)}) == 5


def test_media_that_the_client_names_are_known_by_that_name() -> None:
    """Engines of vLLM key their caches by ``uuid``; the content may be left out then."""
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    named = stream_of([{"role": "user", "content": [{**url, "uuid": "u-1"}]}])

    assert named == stream_of(
        [{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "u-1"}]}]
    )
    assert named != stream_of([{"role": "user", "content": [url]}])


@pytest.mark.parametrize("part", [MEDIA[0], MEDIA[-2], {"type": "text", "text": "t"}])
def test_where_a_client_marks_its_cache_does_not_matter(part: dict[str, Any]) -> None:
    marked = {**part, "cache_control": {"type": "ephemeral"}}

    assert stream_of([{"role": "user", "content": [part]}]) == stream_of(
        [{"role": "user", "content": [marked]}]
    )


def test_tool_call_arguments_may_be_an_object() -> None:
    def call(arguments: Any) -> bytes:
        return stream_of(
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]
        )

    assert call({"b": 1, "a": 2}) == call({"a": 2, "b": 1}) == call('{"a":2,"b":1}')
    assert call({"a": 2}) != call({"a": 3})


@pytest.mark.parametrize("turn", [1, "x", [], None, {"content": {"a": 1}}, {"role": 5}, {"tool_calls": 5}])
def test_turns_of_unknown_shape_keep_an_identity(turn: Any) -> None:
    assert stream_of([turn]) == stream_of([turn]) != stream_of([{"role": "user", "content": "x"}])


def test_content_that_is_no_list_counts_as_a_hash() -> None:
    assert content_from({"a": 1}) != content_from({"a": 2})


def test_json_is_read_strictly_but_lone_surrogates_are_let_through() -> None:
    assert loads(b'"\\ud83d"') == "\ud83d"
    for bad in (b"NaN", b'["\\ud83d", NaN]', b"[1,]", b"\xff", b""):
        with pytest.raises(ValueError):
            loads(bad)


@pytest.mark.parametrize(
    "value", [{"b": 1, "a": [1.5, None]}, "\ud83d", 1 << 70, json.loads("[" * 300 + "]" * 300)]
)
def test_canonical_json_can_write_whatever_was_read(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value
