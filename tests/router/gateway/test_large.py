import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ClientError
from router.gateway.body_outline import DEFAULT_SIZES, Sizes
from router.gateway.endpoints import Endpoint
from router.gateway.large import UNUSUAL_BYTES_MAX, Parsing, parse_in_steps
from router.gateway.parsing import Identifier, ParsedRequest
from router.tenant import Tenant

identifier = Identifier("test", block_tokens=4, block_bytes=16)

TENANT = Tenant("t", salt="salt", namespace=b"salt")

TINY = Sizes(slice_bytes=7, text_bytes=16, long_value_bytes_min=24)
"""Nearly every string is cut out, and every slice ends within an element."""

texts = st.text(
    st.one_of(
        st.sampled_from('"\\/\n\t {}[]:,u0d\u00e9\u65e5\U0001f600\ud83d\ude00'),
        st.characters(codec="utf-8"),
    ),
    max_size=100,
)
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
data_urls = st.builds(
    "data:{}{}{}".format, texts, st.sampled_from([";base64,", ",", ";base64", ""]), texts | st.just("A" * 300)
)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": texts | data_urls}),
    st.fixed_dictionaries(
        {"type": st.just("image"), "source": st.fixed_dictionaries({"data": texts, "type": texts})}
    ),
    st.fixed_dictionaries(
        {"type": st.just("tool_use"), "name": texts, "input": st.dictionaries(texts, values, max_size=3)}
    ),
    st.fixed_dictionaries({"type": st.just("tool_result"), "tool_use_id": texts, "content": texts}),
    st.fixed_dictionaries({"type": texts, "text": texts}),
    values,
)
turns = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": texts | st.lists(parts, max_size=3)},
        optional={
            "name": texts,
            "reasoning": texts,
            "encrypted_content": texts,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"function": st.fixed_dictionaries({"name": texts, "arguments": texts})}
                )
            ),
            "other": values,
        },
    ),
    values,
)
ids = st.lists(st.integers(0, 150_000), max_size=40)
prompts = st.one_of(texts, ids, st.lists(texts | ids, max_size=4), values)

BODIES: dict[Endpoint, dict[str, st.SearchStrategy[Any]]] = {
    Endpoint.CHAT: {"messages": st.lists(turns, max_size=4), "tools": values, "documents": values},
    Endpoint.MESSAGES: {"messages": st.lists(turns, max_size=4), "system": texts | st.lists(parts)},
    Endpoint.RESPONSES: {"input": texts | st.lists(turns, max_size=4), "instructions": texts | st.none()},
    Endpoint.COMPLETIONS: {"prompt": prompts, "lora_path": texts},
    Endpoint.EMBEDDINGS: {"input": prompts},
    Endpoint.GENERATE: {"text": prompts, "input_ids": prompts, "image_data": values, "extra_key": values},
    Endpoint.RERANK: {"query": texts, "documents": st.lists(texts)},
}


def in_steps(endpoint: Endpoint, body: bytes, sizes: Sizes = TINY) -> ParsedRequest:
    return taken(parse_in_steps(identifier, endpoint, body, tenant=TENANT, sizes=sizes))[1]


def taken(steps: Parsing) -> tuple[int, ParsedRequest]:
    """Return the number of steps, and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def at_once(endpoint: Endpoint, body: bytes) -> ParsedRequest:
    return identifier.parse(endpoint, body, tenant=TENANT)


@pytest.mark.parametrize("endpoint", BODIES)
@given(data=st.data())
def test_a_body_parsed_in_steps_is_the_same_request(endpoint: Endpoint, data: st.DataObject) -> None:
    """Bodies with any contents, notation and cuts."""
    fields = data.draw(
        st.fixed_dictionaries(
            {"model": st.just("m") | texts.filter(bool)},
            optional={**BODIES[endpoint], "cache_salt": texts, "prompt_cache_key": texts, "other": values},
        )
    )
    body = json.dumps(
        fields,
        ensure_ascii=data.draw(st.booleans()),
        indent=data.draw(st.none() | st.integers(0, 9)),
    ).encode("utf-8", "surrogatepass")
    sizes = Sizes(*(data.draw(st.integers(low, 100)) for low in (2, 16, 24)))
    try:
        expected: Any = at_once(endpoint, body)
    except ClientError as error:
        expected = error.code
    try:
        found: Any = in_steps(endpoint, body, sizes)
    except ClientError as error:
        found = error.code
    assert found == expected


@given(st.binary(max_size=4), st.integers(0, 400), st.booleans())
def test_a_broken_body_is_refused_or_the_same_request(junk: bytes, at: int, replaced: bool) -> None:
    """Parsing in steps skips parts that no decision needs, so the worker may be the one that refuses them."""
    whole = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": 'a \\ "quoted" text ' * 10}],
            "tools": [{"name": "x" * 40, "numbers": [1, 2] * 20}],
            "other": "y" * 40,
        }
    ).encode()
    body = whole[:at] + junk + whole[at + len(junk) * replaced :]
    try:
        expected = at_once(Endpoint.CHAT, body)
    except ClientError:
        return
    assert in_steps(Endpoint.CHAT, body) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m" * 50, "messages": []},
        {"model": "m", "messages": [], "prompt_cache_key": "k" * 50, "lora_path": "l" * 50},
        {"model": "m", "messages": [{"role": "user", "content": [1] * 40}]},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": [1] * 40}]}]},
        {"model": "m", "messages": [{"role": [1] * 40, "content": "x"}]},
        {"model": "m", "messages": [], "tools": {"y" * 50: 1, "x" * 50: 2}},
        {"model": "m", "messages": [], "tools": [{"a": "x" * 50, "b": "\ud83d"}]},
        {
            "model": "m",
            "messages": [],
            "system": [{"type": "text", "text": "x-anthropic-billing-header" * 9}],
        },
    ],
)
def test_what_is_odd_is_understood_all_the_same(fields: dict[str, Any]) -> None:
    """A long name, numbers for text, long keys, lone surrogates, a long block that is not rendered."""
    body = json.dumps(fields).encode()
    assert in_steps(Endpoint.MESSAGES, body) == at_once(Endpoint.MESSAGES, body)


def test_long_prompts_of_token_ids_are_the_same_request() -> None:
    for prompt in ([*range(5000)], [[*range(3000)], [7] * 900, [1]], ["x" * 9000, [*range(4000)]]):
        for endpoint, field in ((Endpoint.COMPLETIONS, "prompt"), (Endpoint.GENERATE, "input_ids")):
            body = json.dumps({"model": "m", field: prompt}).encode()
            assert in_steps(endpoint, body) == at_once(endpoint, body)


def test_a_large_body_takes_many_steps() -> None:
    """2 MB are searched in slices of 256 KiB and read in pieces of 32 KiB: no step does more."""
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": 'say "hi" ' * 250_000}]}
    ).encode()
    steps = list(parse_in_steps(identifier, Endpoint.CHAT, body))
    assert len(steps) >= 2 * len(body) // DEFAULT_SIZES.slice_bytes


@pytest.mark.parametrize(
    ("endpoint", "field"), [(Endpoint.GENERATE, "input_ids"), (Endpoint.COMPLETIONS, "prompt")]
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_million_token_ids_take_many_steps(endpoint: Endpoint, field: str, batch: bool) -> None:
    """Token ids are searched in slices and read in pieces of 32 KiB, and not refused for their length."""
    ids = [*range(100_000, 1_100_000)]
    body = json.dumps({"model": "m", field: [ids[::2], ids[1::2]] if batch else ids}).encode()
    assert len(body) > UNUSUAL_BYTES_MAX

    count, parsed = taken(parse_in_steps(identifier, endpoint, body))
    assert parsed.prompt_token_ids == len(ids)
    assert count >= len(body) // DEFAULT_SIZES.text_bytes - 2


@pytest.mark.parametrize(
    "own", [{}, {"cache_salt": "s"}, {"cache_salt": "s" * 5000}, {"image_data": ["x" * 99]}]
)
@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.GENERATE])
def test_token_ids_in_steps_hang_from_the_root_of_those_at_once(
    endpoint: Endpoint, own: dict[str, Any]
) -> None:
    fields = {"model": "m", "prompt": list(range(300)), "input_ids": list(range(300)), "lora_path": "l" * 40}
    body = json.dumps({**fields, **own, "extra_key": "k" * 40}).encode()
    assert in_steps(endpoint, body) == at_once(endpoint, body)
    assert in_steps(endpoint, body).prompt_token_ids == 300
