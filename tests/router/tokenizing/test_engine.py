import json
from array import array
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.gateway.endpoints import Endpoint
from router.tokenizing.engine import EngineTokenizer, answered, question_of
from router.tokenizing.refusal import Cause, NotTokenized


def question(endpoint: Endpoint, **body: Any) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(question_of(endpoint, json.dumps({"model": "m", **body}).encode()))
    return asked


def test_a_chat_is_asked_about_with_all_that_its_template_gets() -> None:
    """``/tokenize`` has no fields for what ``/v1/chat/completions`` puts among the template's values."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b", "reasoning_content": "c"},
    ]
    assert question(
        Endpoint.CHAT,
        messages=messages,
        tools=[{"type": "function"}],
        temperature=1,
        cache_salt="s",
        add_generation_prompt=False,
        reasoning_effort="low",
        documents=[{"text": "d"}],
        chat_template_kwargs={"x": 1},
    ) == {
        "model": "m",
        "messages": [messages[0], {"role": "assistant", "content": "b", "reasoning": "c"}],
        "tools": [{"type": "function"}],
        "add_generation_prompt": False,
        "chat_template_kwargs": {
            "x": 1,
            "reasoning_effort": "low",
            "enable_thinking": True,
            "documents": [{"text": "d"}],
        },
    }


def test_a_text_is_asked_about_alone() -> None:
    assert question(Endpoint.COMPLETIONS, prompt="a") == {"model": "m", "prompt": "a"}
    assert question(Endpoint.COMPLETIONS, prompt=["a"], add_special_tokens=False, max_tokens=3) == {
        "model": "m",
        "prompt": "a",
        "add_special_tokens": False,
    }


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2]}),
        (Endpoint.COMPLETIONS, {"prompt": "a", "suffix": "b"}),
        (Endpoint.COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 3}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        (Endpoint.CHAT, {"messages": [], "chat_template": "x"}),
        (Endpoint.CHAT, {"messages": "a"}),
        (Endpoint.CHAT, {"messages": [], "x": float("nan")}),
    ],
)
def test_what_cannot_be_asked_is_refused(endpoint: Endpoint, body: dict[str, Any]) -> None:
    with pytest.raises(NotTokenized) as caught:
        question(endpoint, **body)
    assert caught.value.cause is Cause.UNSUPPORTED


def test_an_answer_has_the_ids() -> None:
    assert answered(b'{"count":2,"tokens":[1,70000],"max_model_len":5}') == [array("I", [1, 70000]).tobytes()]
    for wrong in (b"", b"{}", b'{"tokens":[-1]}', b'{"tokens":["a"]}', b'{"tokens":[4294967296]}'):
        with pytest.raises(NotTokenized):
            answered(wrong)


async def asked(answer: Callable[[httpx.Request], httpx.Response], url: str | None = "http://w:80") -> bytes:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        return await EngineTokenizer(client, lambda _: url).asked("m", b"{}", 1.0)


async def test_a_worker_is_asked() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.method, str(request.url)) == ("POST", "http://w/tokenize")
        assert request.headers["content-type"] == "application/json"
        return httpx.Response(200, content=b"ids")

    assert await asked(answer) == b"ids"


async def test_whoever_does_not_answer_is_no_help() -> None:
    def silent(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("silent")

    for answer, url in (
        (lambda _: httpx.Response(404), "http://w:80"),
        (silent, "http://w:80"),
        (lambda _: httpx.Response(200), None),
    ):
        with pytest.raises(NotTokenized) as caught:
            await asked(answer, url)
        assert caught.value.cause is Cause.FAILED
