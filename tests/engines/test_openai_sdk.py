"""OpenAI's own client, through the gateway, to a real engine: it understands what the engine answered.

The models know nothing, so what they say is noise. Where the form of an answer matters it is forced, by a
schema or a named tool; schemas are bounded, and spaces ruled out: noise may never close a string, and write
spaces between the parts of a JSON for ever.
"""

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from fakes.real_engines import pair_of, random_ids, random_words
from fakes.running import Fleet, RunningGateway
from tokenizers import Tokenizer

from loadtest.vllm import MODEL_NAME, EnginesHome, VllmEngine
from loadtest.vllm.models import VOCABULARY, tiny_model

pytestmark = pair_of("gemma3")

TIMEOUT_S = 120.0
BLOCK_TOKENS = 32

REPORT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sky": {"enum": ["clear", "cloudy"]},
        "rain": {"type": "boolean"},
        "code": {"type": "string", "pattern": "^[A-C]{3}$"},
    },
    "required": ["sky", "rain", "code"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "report", "strict": True, "parameters": REPORT}}]


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(fleet: Fleet, engines: list[VllmEngine]) -> RunningGateway:
    return await fleet.gateway(*(engine.url for engine in engines))


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


@pytest.fixture(scope="module")
def no_spaces() -> dict[str, int]:
    """A bias against all tokens that are nothing but space."""
    model = tiny_model(EnginesHome.usual().models, "gemma3")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return {str(number): -100 for number in range(VOCABULARY) if tokenizer.decode([number]).isspace()}


def well_formed(report: object) -> bool:
    return (
        isinstance(report, dict)
        and report.keys() == {"sky", "rain", "code"}
        and report["sky"] in ("clear", "cloudy")
        and isinstance(report["rain"], bool)
        and len(report["code"]) == 3
    )


async def test_a_chat_is_repeated_by_the_same_worker_from_its_cache(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    """All but the last, partial block; an engine computes at least one token, so never all of a prompt."""
    body = chat(random_words(chance, 200))
    workers, cached = [], []
    for _ in range(3):
        raw = await sdk.chat.completions.with_raw_response.create(**body)
        answer = raw.parse()
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        workers.append(raw.headers["x-cacheway-worker"])
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        assert answer.choices[0].finish_reason in ("length", "stop")
    assert len(set(workers)) == 1
    whole_blocks = (answer.usage.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert cached == [0, whole_blocks, whole_blocks]


async def test_a_stream_says_the_same_as_an_answer_and_its_usage_in_the_end(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    body = chat(random_words(chance, 30), max_tokens=24)
    whole = await sdk.chat.completions.create(**body)
    chunks = [
        chunk
        async for chunk in await sdk.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
    ]
    *with_text, last = chunks
    said = "".join(chunk.choices[0].delta.content or "" for chunk in with_text)
    assert said == whole.choices[0].message.content
    assert with_text[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in with_text)


async def test_usage_that_was_not_asked_for_is_not_in_a_stream(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    stream = await sdk.chat.completions.create(**chat(random_words(chance, 30)), stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)


async def test_several_answers_to_one_prompt_come_whole_and_as_a_stream(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    body = chat(random_words(chance, 30), n=3, temperature=1.0, seed=7)
    whole = await sdk.chat.completions.create(**body)
    assert sorted(choice.index for choice in whole.choices) == [0, 1, 2]
    ended = [
        choice.index
        async for chunk in await sdk.chat.completions.create(**body, stream=True)
        for choice in chunk.choices
        if choice.finish_reason
    ]
    assert sorted(ended) == [0, 1, 2]


async def test_log_probabilities_come_for_every_token(sdk: openai.AsyncOpenAI, chance: random.Random) -> None:
    body = chat(random_words(chance, 30), logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True})
    answer = await sdk.chat.completions.create(**body)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 8
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in logprobs.content)


async def test_an_answer_has_the_form_of_the_schema_that_was_given(
    sdk: openai.AsyncOpenAI, chance: random.Random, no_spaces: dict[str, int]
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT, "strict": True}}
    body = chat(random_words(chance, 30), response_format=wanted, max_tokens=200, logit_bias=no_spaces)
    answer = await sdk.chat.completions.create(**body)
    assert answer.choices[0].finish_reason == "stop"
    assert well_formed(json.loads(answer.choices[0].message.content or ""))


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "report"}}, "required"])
async def test_a_tool_that_must_be_called_is_called_with_arguments_of_its_schema(
    sdk: openai.AsyncOpenAI, chance: random.Random, no_spaces: dict[str, int], choice: Any
) -> None:
    text = random_words(chance, 30)
    body = chat(text, tools=TOOLS, tool_choice=choice, max_tokens=200, logit_bias=no_spaces)
    answer = await sdk.chat.completions.create(**body)
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "report"
    assert well_formed(json.loads(calls[0].function.arguments))


async def test_a_call_of_a_tool_comes_in_pieces_of_a_stream(
    sdk: openai.AsyncOpenAI, chance: random.Random, no_spaces: dict[str, int]
) -> None:
    choice = {"type": "function", "function": {"name": "report"}}
    text = random_words(chance, 30)
    body = chat(text, tools=TOOLS, tool_choice=choice, max_tokens=200, logit_bias=no_spaces)
    calls = [
        call
        async for chunk in await sdk.chat.completions.create(**body, stream=True)
        for each in chunk.choices
        for call in each.delta.tool_calls or []
    ]
    assert [call.function.name for call in calls if call.function and call.function.name] == ["report"]
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert well_formed(json.loads(arguments))


async def test_a_conversation_with_tools_goes_on_from_the_cache(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    """The turn that brings a tool's result has the former prompt as its start, tools and all."""
    question = {"role": "user", "content": random_words(chance, 150)}
    body = chat("", tools=TOOLS, tool_choice="auto") | {"messages": [question]}
    first = await sdk.chat.completions.with_raw_response.create(**body)
    call = {"id": "c1", "type": "function", "function": {"name": "report", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "clear"},
    ]
    then = await sdk.chat.completions.with_raw_response.create(**body | {"messages": [question, *turns]})
    assert then.headers["x-cacheway-worker"] == first.headers["x-cacheway-worker"]
    asked, answered = first.parse().usage, then.parse().usage
    assert asked is not None
    assert answered is not None
    assert answered.prompt_tokens_details is not None
    cached = answered.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached > asked.prompt_tokens - 2 * BLOCK_TOKENS


async def test_prompts_of_token_ids_are_taken_as_they_are(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    prompts = [random_ids(chance, 100), random_ids(chance, 70)]
    answer = await sdk.completions.create(
        model=MODEL_NAME, prompt=prompts, max_tokens=4, extra_body={"return_token_ids": True}
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 170
    extras = [choice.model_extra or {} for choice in answer.choices]
    assert [extra["prompt_token_ids"] for extra in extras] == prompts
    assert [choice.index for choice in answer.choices] == [0, 1]


async def test_a_streamed_completion_says_the_same_as_a_whole_one(
    sdk: openai.AsyncOpenAI, chance: random.Random
) -> None:
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "prompt": random_ids(chance, 100),
        "max_tokens": 16,
        "temperature": 0,
    }
    whole = await sdk.completions.create(**body)
    stream = await sdk.completions.create(**body, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_the_other_apis_of_an_engine_are_reached(
    sdk: openai.AsyncOpenAI, gateway: RunningGateway, chance: random.Random
) -> None:
    """Responses by the SDK; Anthropic's messages and the tokenizer as they are."""
    text = random_words(chance, 30)
    answer = await sdk.responses.create(model=MODEL_NAME, input=text, max_output_tokens=8)
    assert answer.usage is not None
    assert answer.usage.output_tokens <= 8
    anthropic = {"model": MODEL_NAME, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    said = await gateway.client.post("/v1/messages", json=anthropic, timeout=TIMEOUT_S)
    assert said.status_code == 200, said.text
    assert said.json()["usage"]["output_tokens"] <= 4
    ids = (await gateway.client.post("/tokenize", json={"model": MODEL_NAME, "prompt": text})).json()[
        "tokens"
    ]
    back = await gateway.client.post("/detokenize", json={"model": MODEL_NAME, "tokens": ids})
    assert back.json()["prompt"] == text


async def test_the_models_are_listed_with_their_limit(
    sdk: openai.AsyncOpenAI, engines: list[VllmEngine]
) -> None:
    models = [model async for model in sdk.models.list()]
    assert [model.id for model in models] == [MODEL_NAME]
    assert (models[0].model_extra or {})["max_model_len"] == await engines[0].max_model_tokens()


async def test_a_model_that_makes_no_embeddings_says_so_through_us(
    sdk: openai.AsyncOpenAI, engines: list[VllmEngine]
) -> None:
    body = {"model": MODEL_NAME, "input": "text"}
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.embeddings.create(**body)
    async with httpx.AsyncClient(trust_env=False) as client:
        direct = await client.post(f"{engines[0].url}/v1/embeddings", json=body)
    assert refused.value.status_code == direct.status_code
    assert refused.value.response.content == direct.content


async def test_a_model_that_nobody_serves_is_not_found(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await sdk.chat.completions.create(**chat("text") | {"model": "nobody"})
