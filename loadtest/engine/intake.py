"""Request bodies as packed prompts and samplings: one function per API makes an `Intake`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from loadtest.engine.errors import RequestRefused
from loadtest.engine.outputs import Sampling
from loadtest.engine.template import BadPrompt, anthropic_messages, joined, render_chat, responses_messages
from loadtest.engine.tokens import pack_ids, pack_text
from radix import ANSWERS_MAX, COUNT_MAX


@dataclass(frozen=True, slots=True)
class Intake:
    """A decoded request: packed prompts, at least one, with a sampling each.

    ``batch``: they came as a list.
    """

    prompts: list[bytes]
    samplings: list[Sampling]
    batch: bool = False


def decoded(body: bytes) -> Mapping[str, Any]:
    """Return the object that a body is; `RequestRefused` if it is none."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(f"JSON decode error: {error}") from error
    if not isinstance(fields, dict):
        raise RequestRefused("the request body must be a JSON object")
    return fields


def chat_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/chat/completions``."""
    tools = body.get("tools")
    sampling = _openai_sampling(body)
    tool = _wanted_tool(tools, body.get("tool_choice"))
    if tool is not None:
        sampling = replace(sampling, tool=tool["name"], parameters=_mapping(tool.get("parameters")))
    return Intake([_render(body.get("messages"), tools)], [sampling])


def messages_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/messages``."""
    tools = body.get("tools")
    tool = _wanted_tool(tools, body.get("tool_choice"))
    sampling = Sampling(
        max_tokens=_number(body, "max_tokens", least=1),
        ignore_eos=bool(body.get("ignore_eos")),
        stop=_strings(body, "stop_sequences"),
        tool=tool["name"] if tool else None,
        parameters=_mapping(tool.get("input_schema")) if tool else None,
    )
    return Intake([_render(anthropic_messages(body), tools)], [sampling])


def count_tokens_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/messages/count_tokens``: a message request that bounds no answer."""
    return Intake([_render(anthropic_messages(body), body.get("tools"))], [Sampling(max_tokens=0)])


def responses_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/responses``."""
    tools = body.get("tools")
    tool = _wanted_tool(tools, body.get("tool_choice"))
    sampling = Sampling(
        max_tokens=_number(body, "max_output_tokens", least=1),
        ignore_eos=bool(body.get("ignore_eos")),
        tool=tool["name"] if tool else None,
        parameters=_mapping(tool.get("parameters")) if tool else None,
    )
    try:
        messages = responses_messages(body)
    except BadPrompt as error:
        raise RequestRefused(str(error), param="input") from error
    return Intake([_render(messages, tools)], [sampling])


def completion_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/completions``: 16 tokens unless the request says otherwise, as the API defines."""
    prompts, batch = _prompts(body.get("prompt"), "prompt")
    sampling = _openai_sampling({"max_tokens": 16, **body})
    return _bounded(Intake(prompts, [sampling] * len(prompts), batch))


def _bounded(intake: Intake) -> Intake:
    """Refuse a request for more answers than an engine gives to one; 20,000 prompts kept it for 13 s."""
    answers = len(intake.prompts) * intake.samplings[0].n
    if answers > ANSWERS_MAX:
        raise RequestRefused(f"{answers} answers are asked for; at most {ANSWERS_MAX} are given", param="n")
    return intake


def generate_intake(body: Mapping[str, Any]) -> Intake:
    """SGLang's ``/generate``: 128 tokens unless the request says otherwise."""
    given = "input_ids" if body.get("text") is None else "text"
    prompts, batch = _prompts(body.get(given), given)
    params = body.get("sampling_params") or {}
    each = params if isinstance(params, list) else [params] * len(prompts)
    if len(each) != len(prompts) or not all(isinstance(one, Mapping) for one in each):
        raise RequestRefused("sampling_params must be an object, or one per prompt", param="sampling_params")
    samplings = [
        Sampling(
            max_tokens=_number({"max_new_tokens": 128, **one}, "max_new_tokens", least=0),
            min_tokens=_number(one, "min_new_tokens", least=0) or 0,
            ignore_eos=bool(one.get("ignore_eos")),
            stop=_strings(one, "stop"),
            n=_number(one, "n", least=1, most=ANSWERS_MAX) or 1,
        )
        for one in each
    ]
    if len({sampling.n for sampling in samplings}) > 1:
        raise RequestRefused("n must be the same for all prompts of a batch", param="sampling_params")
    return _bounded(Intake(prompts, samplings, batch or samplings[0].n > 1))


def embedding_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/embeddings``."""
    return _prefill_only(*_prompts(body.get("input"), "input"))


def rerank_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/rerank``: one prompt per document."""
    documents = body.get("documents")
    query = body.get("query")
    if not isinstance(query, str) or not isinstance(documents, list) or not documents:
        raise RequestRefused("query must be a string and documents a list", param="documents")
    texts = [one.get("text") if isinstance(one, dict) else one for one in documents]
    pairs = [_pair(query, text) for text in texts if isinstance(text, str)]
    if len(pairs) != len(documents):
        raise RequestRefused("documents must be strings or objects with a text", param="documents")
    return _prefill_only(pairs, batch=True)


def score_intake(body: Mapping[str, Any]) -> Intake:
    """``/v1/score``: vLLM's ``text_1`` and ``text_2``, or SGLang's ``query`` and ``items``."""
    left, right = ("query", "items") if "items" in body else ("text_1", "text_2")
    queries = [body[left]] if isinstance(body.get(left), str) else body.get(left)
    items = [body[right]] if isinstance(body.get(right), str) else body.get(right)
    for name, texts in ((left, queries), (right, items)):
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestRefused(f"{name} must be a string or a list of strings", param=name)
    assert isinstance(queries, list)
    assert isinstance(items, list)
    if len(queries) == 1:
        queries *= len(items)
    if len(queries) != len(items):
        raise RequestRefused(f"{left} must be one text, or as many as {right}", param=left)
    return _prefill_only([_pair(a, b) for a, b in zip(queries, items, strict=True)], batch=True)


def tokenize_intake(body: Mapping[str, Any]) -> Intake:
    """``/tokenize``: a prompt, or messages."""
    if "messages" in body:
        generate = bool(body.get("add_generation_prompt", True))
        return Intake([_render(body["messages"], body.get("tools"), generate=generate)], [Sampling()])
    return _prefill_only(*_prompts(body.get("prompt"), "prompt"))


def _prefill_only(prompts: list[bytes], batch: bool) -> Intake:
    return Intake(prompts, [Sampling(max_tokens=0)] * len(prompts), batch)


def _render(messages: Any, tools: Any, *, generate: bool = True) -> bytes:
    try:
        return render_chat(messages, tools, generate=generate)
    except BadPrompt as error:
        raise RequestRefused(str(error), param="messages") from error


def _pair(query: str, text: str) -> bytes:
    return joined((pack_text(query), pack_text(text)))


def _prompts(given: Any, name: str) -> tuple[list[bytes], bool]:
    """A string, a list of strings, a list of ids or a list of lists of ids."""
    try:
        if isinstance(given, str):
            return [_not_empty(pack_text(given), name)], False
        if isinstance(given, list) and given:
            if isinstance(given[0], int):
                return [pack_ids(given)], False
            if all(isinstance(one, str) for one in given):
                return [_not_empty(pack_text(one), name) for one in given], True
            if all(isinstance(one, list) for one in given):
                return [_not_empty(pack_ids(one), name) for one in given], True
    except (TypeError, OverflowError) as error:
        raise RequestRefused(f"{name} holds something that is no token id", param=name) from error
    raise RequestRefused(f"{name} must be a string, token ids, or a list of them", param=name)


def _not_empty(tokens: bytes, name: str) -> bytes:
    if not tokens:
        raise RequestRefused(f"{name} must not be empty", param=name)
    return tokens


def _openai_sampling(body: Mapping[str, Any]) -> Sampling:
    longest = _number(body, "max_completion_tokens", least=1)
    return Sampling(
        max_tokens=longest if longest is not None else _number(body, "max_tokens", least=1),
        min_tokens=_number(body, "min_tokens", least=0) or 0,
        ignore_eos=bool(body.get("ignore_eos")),
        stop=_strings(body, "stop"),
        n=_number(body, "n", least=1, most=ANSWERS_MAX) or 1,
    )


def _wanted_tool(tools: Any, choice: Any) -> dict[str, Any] | None:
    """The function that the request forces the model to call: the named one, or the first."""
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestRefused("tools must be a list of objects", param="tools")
    functions = [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools]
    named = [function for function in functions if isinstance(function.get("name"), str)]
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if name is not None:
            named = [function for function in named if function["name"] == name]
            if not named:
                raise RequestRefused(
                    f"tool_choice names {name!r}, which is not in tools", param="tool_choice"
                )
        elif choice.get("type") != "any":
            return None
    elif choice != "required":
        return None
    return named[0] if named else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _number(body: Mapping[str, Any], name: str, *, least: int, most: int = COUNT_MAX) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RequestRefused(f"{name} must be an integer, at least {least}", param=name)
    if value > most:
        raise RequestRefused(f"{name} must be at most {most}", param=name)
    return value


def _strings(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name)
    values = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise RequestRefused(f"{name} must be a string or a list of strings", param=name)
    return tuple(values)
