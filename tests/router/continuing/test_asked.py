"""Which requests may be continued, and the body that does it."""

import json
from typing import Any

import pytest

from router.continuing.asked import BODY_BYTES_MAX, Asked, asked_for, continued_body
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier, ParsedRequest
from router.offsets import edited

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Hi", "stream": True}


def parsed_of(endpoint: Endpoint, body: bytes) -> ParsedRequest:
    return Identifier(namespace="n").parse(endpoint, body)


def asked(body: dict[str, Any], endpoint: Endpoint | None = None) -> Asked | None:
    text = json.dumps(body).encode()
    if endpoint is None:
        endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
    return asked_for(parsed_of(endpoint, text), text)


def continued(body: dict[str, Any], text: str, tokens: int) -> dict[str, Any] | None:
    found = asked(body)
    assert found is not None
    again = continued_body(found, json.dumps(body).encode(), text, tokens)
    if again is None:
        return None
    whole: dict[str, Any] = json.loads(again, object_pairs_hook=once)
    assert whole.pop("stream_options")["continuous_usage_stats"] is True
    return whole


def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """No name occurs twice: some engines refuse that."""
    assert len(dict(members)) == len(members)
    return dict(members)


@pytest.mark.parametrize("body", [CHAT, COMPLETION])
def test_workers_are_asked_for_counts_with_every_chunk(body: dict[str, Any]) -> None:
    for options, usage, always in (
        (None, False, False),
        ({"include_usage": False}, False, False),
        ({"include_usage": True, "x": 1}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, False, False),
    ):
        whole = body if options is None else {**body, "stream_options": options}
        found = asked(whole)
        assert found is not None
        assert (found.usage, found.usage_always) == (usage, always)
        sent = json.loads(b"".join(edited(json.dumps(whole).encode(), found.edits)), object_pairs_hook=once)
        assert sent["stream_options"] == {
            **(options or {}),
            "include_usage": True,
            "continuous_usage_stats": True,
        }
        assert {name: value for name, value in sent.items() if name != "stream_options"} == body


NOT_PLAIN: list[dict[str, Any]] = [
    {"n": 2},
    {"seed": 1},
    {"seed": 0},
    {"logprobs": True},
    {"logprobs": 3},
    {"logprobs": 0},
    {"logprobs": 1},
    {"prompt_logprobs": 0},
    {"input_ids": [1, 2]},
    {"session_params": {"id": "s"}},
    {"return_prompt_token_ids": True},
    {"best_of": 3},
    {"echo": True},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"functions": [{"name": "f"}]},
    {"response_format": {"type": "json_object"}},
    {"response_format": 3},
    {"guided_json": {"type": "object"}},
    {"structured_outputs": {"regex": "a"}},
    {"regex": "a*"},
    {"continue_final_message": True},
    {"return_token_ids": True},
    {"stream_options": []},
]


@pytest.mark.parametrize("more", NOT_PLAIN, ids=str)
def test_anything_beside_one_plain_text_is_refused(more: dict[str, Any]) -> None:
    for body in (CHAT, COMPLETION):
        text = json.dumps({**body, **more}).encode()
        endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
        sound = parsed_of(endpoint, json.dumps({**body, **({"n": 2} if "n" in more else {})}).encode())
        assert asked_for(sound, text) is None


@pytest.mark.parametrize(
    "more",
    [
        {"n": 1},
        {"seed": None},
        {"tools": []},
        {"tools": None},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
        {"stop": ["x"]},
        {"best_of": 1},
    ],
    ids=str,
)
def test_what_asks_for_nothing_else_is_plain(more: dict[str, Any]) -> None:
    assert asked({**CHAT, **more}) is not None


def test_prompts_that_are_no_one_text_are_refused() -> None:
    assert asked({**COMPLETION, "prompt": ["a", "b"]}) is None
    assert asked({**COMPLETION, "prompt": [1, 2, 3]}) is None
    assert asked({**CHAT, "messages": []}) is None
    assert asked({**CHAT, "messages": [{"role": "user", "content": "x" * BODY_BYTES_MAX}]}) is None
    assert asked(CHAT, Endpoint.MESSAGES) is None
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert asked({**CHAT, "messages": [{"role": "user", "content": [image]}]}) is not None


def test_a_chat_ends_with_the_text_so_far() -> None:
    text = 'Größe "x"\n 🦩\\'
    body = continued(CHAT, text, 5)
    assert body == {
        **CHAT,
        "messages": [*CHAT["messages"], {"role": "assistant", "content": text}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def test_a_completion_has_the_text_behind_its_prompt() -> None:
    text = 'Größe "x"\n 🦩\\'
    assert continued(COMPLETION, text, 5) == {**COMPLETION, "prompt": "Hi" + text}


def test_the_last_member_of_a_name_counts_as_for_engines() -> None:
    first, second = (json.dumps([{"role": "user", "content": text}]) for text in ("no", "yes"))
    body = f'{{"messages": {first}, "model": "m", "messages": {second}}}'.encode()
    found = asked_for(parsed_of(Endpoint.CHAT, body), body)
    assert found is not None
    again = continued_body(found, body, "T", 1)
    assert again is not None
    assert [turn["content"] for turn in json.loads(again)["messages"]] == ["yes", "T"]


def test_without_text_the_request_is_sent_as_it_was() -> None:
    assert continued(CHAT, "", 0) == CHAT
    assert continued(COMPLETION, "", 0) == COMPLETION


def test_limits_shrink_by_what_was_generated() -> None:
    limits = {"max_tokens": 10, "max_completion_tokens": 12, "min_tokens": 3}
    again = continued({**CHAT, **limits}, "T", 4)
    assert again is not None
    assert [again[name] for name in limits] == [6, 8, 0]
    assert continued({**CHAT, "max_tokens": 4}, "T", 4) is None


def test_fields_that_are_there_are_written_over() -> None:
    body = {"add_generation_prompt": True, "continue_final_message": False, "max_tokens": 9, **CHAT}
    again = continued({**body, "stream_options": {"include_usage": True}}, "T", 4)
    assert again is not None
    assert (again["add_generation_prompt"], again["continue_final_message"]) == (False, True)
    assert again["max_tokens"] == 5
