import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import chain_token_ids
from router.errors import ClientError
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier, ParsedRequest
from router.offsets import edited
from router.tenant import ANONYMOUS, Tenant

identifier = Identifier("test", block_tokens=4, block_bytes=16)


def parse(endpoint: Endpoint, body: Any, tenant: Tenant = ANONYMOUS) -> ParsedRequest:
    return identifier.parse(
        endpoint, body if isinstance(body, bytes) else json.dumps(body).encode(), tenant=tenant
    )


def refusal(endpoint: Endpoint, body: bytes) -> str | None:
    try:
        parse(endpoint, body)
    except ClientError as error:
        return error.code
    return None


def identity(parsed: ParsedRequest) -> tuple[tuple[bytes, ...], int, int, int, int]:
    return parsed.paths, parsed.prompt_bytes, parsed.prompt_token_ids, parsed.key, parsed.prefix_key


CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are a helpful assistant. Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is in this image of a café?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"deep":true}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a cup"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 7,
    "n": 2,
    "priority": -3,
    "prompt_cache_key": "session-1",
    "lora_path": "adapter",
    "temperature": 0.5,
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 1024,
    "system": [{"type": "text", "text": "Be brief, please, and precise."}],
    "messages": [
        {"role": "user", "content": "hello there, how are you?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "4"}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Talk like a pirate, at length.",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    "max_output_tokens": 9,
    "tools": [{"type": "function", "name": "f"}],
}


def test_everything_a_decision_needs_is_found_in_a_chat() -> None:
    parsed = parse(Endpoint.CHAT, CHAT, tenant=Tenant("acme"))

    assert parsed.endpoint is Endpoint.CHAT
    assert (parsed.model, parsed.stream) == ("m", True)
    assert (parsed.output_tokens_max, parsed.n, parsed.priority) == (7, 2, -3)
    assert (parsed.tenant, parsed.session, parsed.lora) == ("acme", "session-1", "adapter")
    assert len(parsed.paths) == 1
    assert len(parsed.paths[0]) == 8 * (parsed.prompt_bytes // 16)
    assert parsed.prompt_token_ids == 0


def test_what_is_absent_has_a_default() -> None:
    parsed = parse(Endpoint.CHAT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})

    assert (parsed.stream, parsed.output_tokens_max, parsed.n) == (False, None, 1)
    assert (parsed.priority, parsed.tenant, parsed.session, parsed.lora) == (0, "", "", None)
    assert parsed.paths == (b"",)


@pytest.mark.parametrize(
    ("endpoint", "body", "prompts", "prompt_bytes", "prompt_token_ids"),
    [
        (Endpoint.COMPLETIONS, {"prompt": "x" * 20}, 1, 20, 0),
        (Endpoint.COMPLETIONS, {"prompt": ["x" * 20, "y"]}, 2, 21, 0),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3, 4, 5]}, 1, 0, 5),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2, 3], [4]]}, 2, 0, 4),
        (Endpoint.COMPLETIONS, {"prompt": []}, 0, 0, 0),
        (Endpoint.COMPLETIONS, {}, 0, 0, 0),
        (Endpoint.EMBEDDINGS, {"input": "x" * 20}, 1, 20, 0),
        (Endpoint.EMBEDDINGS, {"input": [[1, 2], [3]]}, 2, 0, 3),
        (Endpoint.GENERATE, {"text": "x" * 20}, 1, 20, 0),
        (Endpoint.GENERATE, {"text": ["x", "yy"]}, 2, 3, 0),
        (Endpoint.GENERATE, {"input_ids": [1, 2, 3]}, 1, 0, 3),
        (Endpoint.GENERATE, {"input_ids": [[1, 2, 3], [4, 5]]}, 2, 0, 5),
        (Endpoint.RESPONSES, {"input": "hello"}, 1, 11, 0),
        (Endpoint.CHAT, {"messages": []}, 0, 0, 0),
        (Endpoint.TOKENIZE, {"prompt": "x" * 20}, 0, 0, 0),
        (Endpoint.RERANK, {"query": "q", "documents": ["d"]}, 0, 0, 0),
    ],
)
def test_prompts_are_found_where_each_endpoint_has_them(
    endpoint: Endpoint, body: dict[str, Any], prompts: int, prompt_bytes: int, prompt_token_ids: int
) -> None:
    """A turn that says hello is FE user F8 hello: 11 bytes."""
    parsed = parse(endpoint, {"model": "m", **body})

    assert len(parsed.paths) == prompts
    assert (parsed.prompt_bytes, parsed.prompt_token_ids) == (prompt_bytes, prompt_token_ids)


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (Endpoint.CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, 6),
        (Endpoint.CHAT, {"max_tokens": None}, None),
        (Endpoint.CHAT, {"max_tokens": -1}, None),
        (Endpoint.CHAT, {"max_tokens": "12"}, 12),
        (Endpoint.CHAT, {"max_tokens": 12.0}, 12),
        (Endpoint.RESPONSES, {"max_output_tokens": 8}, 8),
        (Endpoint.GENERATE, {"sampling_params": {"max_new_tokens": 4}}, 4),
        (Endpoint.GENERATE, {"sampling_params": [{"max_new_tokens": 4}, {"max_new_tokens": 9}, {}]}, 9),
        (Endpoint.GENERATE, {"sampling_params": None}, None),
    ],
)
def test_the_limit_of_output_tokens_goes_by_many_names(
    endpoint: Endpoint, body: dict[str, Any], expected: int | None
) -> None:
    assert parse(endpoint, {"model": "m", **body}).output_tokens_max == expected


@pytest.mark.parametrize(
    ("endpoint", "body", "all_of_it"),
    [
        (Endpoint.CHAT, {"logprobs": True, "top_logprobs": 3}, False),
        (Endpoint.CHAT, {"prompt_logprobs": 0}, True),
        (Endpoint.CHAT, {"prompt_logprobs": None, "echo": False}, False),
        (Endpoint.CHAT, {"echo": True}, True),
        (Endpoint.COMPLETIONS, {"prompt": "a", "logprobs": 1}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "echo": True}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 0}, True),
        (Endpoint.COMPLETIONS, {"prompt": [["a"], 1], "echo": True, "logprobs": 0}, True),
        (Endpoint.GENERATE, {"text": "a", "logprob_start_len": -1}, False),
        (Endpoint.GENERATE, {"text": "a", "logprob_start_len": 0}, True),
        (Endpoint.GENERATE, {"text": ["a", "b"], "logprob_start_len": [-1, 5]}, True),
        (Endpoint.GENERATE, {"text": "a", "logprob_start_len": "x"}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "logprob_start_len": 0}, False),
    ],
)
def test_log_probabilities_of_a_prompt_need_all_of_it(
    endpoint: Endpoint, body: dict[str, Any], all_of_it: bool
) -> None:
    assert parse(endpoint, {"model": "m", **body}).computes_all is all_of_it


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b'{"model":"m",}', "invalid_json", None),
        (b'{"model":"m","x":NaN}', "invalid_json", None),
        (b'{"model":"m","messages":[{"content":"\xff"}]}', "invalid_json", None),
        (b'{"model":"m","tools":["\xff"]}', "invalid_json", None),
        (b'{"model":"m"} trailing', "invalid_json", None),
        (b"[" * 1_000_000, "invalid_json", None),
        (b'{"model":"m","tools":' + b"[" * 1_000_000, "invalid_json", None),
        (b'{"model":"m","messages":["\\ud800",' + b"[" * 1_000_000, "invalid_json", None),
        (b'{"model":"m","max_tokens":' + b"9" * 5000 + b"}", "invalid_json", None),
        (b"[]", "not_an_object", None),
        (b"null", "not_an_object", None),
        (b'"text"', "not_an_object", None),
        (b"{}", "missing_model", "model"),
        (b'{"model":""}', "missing_model", "model"),
        (b'{"model":null}', "missing_model", "model"),
        (b'{"model":5}', "invalid_value", "model"),
        (b'{"model":"m","stream":"perhaps"}', "invalid_value", "stream"),
        (b'{"model":"m","max_tokens":1.5}', "invalid_value", "max_tokens"),
        (b'{"model":"m","n":[]}', "invalid_value", "n"),
        (
            b'{"model":"m","stream_options":{"include_usage":7.5}}',
            "invalid_value",
            "stream_options.include_usage",
        ),
    ],
)
def test_what_no_engine_could_accept_is_refused_with_a_stable_code(
    body: bytes, code: str, param: str | None
) -> None:
    with pytest.raises(ClientError) as caught:
        parse(Endpoint.CHAT, body)

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_an_error_in_the_json_says_where_it_is() -> None:
    with pytest.raises(ClientError, match="line 2 column 9"):
        parse(Endpoint.CHAT, b'{"model":"m",\n "n": 1,,}')


@pytest.mark.parametrize("endpoint", [e for e in Endpoint if not e.needs_model])
def test_endpoints_of_engines_need_no_model(endpoint: Endpoint) -> None:
    assert parse(endpoint, {}).model is None
    assert parse(endpoint, {"model": "m"}).model == "m"


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"hi"}]}',
        b'{"model":"a","model":"m","messages":1,"messages":[{"role":"user","content":"hi"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":null,"chat_template":null}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[],"chat_template_kwargs":{}}',
    ],
)
def test_a_byte_order_mark_repeated_keys_and_empty_fields_make_no_difference(body: bytes) -> None:
    plain = parse(Endpoint.CHAT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})

    assert parse(Endpoint.CHAT, body) == plain


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, {"messages": "not a list"}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": {"odd": 1}}]}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": [{"type": "hologram", "x": "\ud83d"}]}]}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": "cut emoji \ud83d"}]}),
        (Endpoint.MESSAGES, {"system": 5, "messages": []}),
        (Endpoint.RESPONSES, {"input": [{"type": "web_search_call", "id": "1"}]}),
        (Endpoint.RESPONSES, {"input": {"odd": 1}}),
        (Endpoint.COMPLETIONS, {"prompt": {"prompt_token_ids": [1]}}),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2.5], "x", {}]}),
        (Endpoint.COMPLETIONS, {"prompt": [1, "x"]}),
        (Endpoint.COMPLETIONS, {"prompt": [-1, 1 << 70]}),
        (Endpoint.COMPLETIONS, {"prompt": [True]}),
        (Endpoint.GENERATE, {"text": 5}),
        (Endpoint.GENERATE, {"input_ids": [1.5]}),
    ],
)
def test_unusual_prompts_are_let_through_with_an_identity(endpoint: Endpoint, body: dict[str, Any]) -> None:
    parsed = parse(endpoint, {"model": "m", "max_tokens": 3, **body})

    assert parsed.output_tokens_max == 3
    assert parsed == parse(endpoint, {"model": "m", "max_tokens": 3, **body})
    assert parsed.key != parse(endpoint, {"model": "m"}).key


BODIES = [
    (Endpoint.CHAT, CHAT),
    (Endpoint.MESSAGES, MESSAGES),
    (Endpoint.RESPONSES, RESPONSES),
    (Endpoint.COMPLETIONS, {"model": "m", "prompt": ["one é", "two / slashes"], "lora_path": "a"}),
    (Endpoint.EMBEDDINGS, {"model": "m", "input": [1, 2, 3, 4, 5]}),
    (Endpoint.GENERATE, {"text": "some text", "sampling_params": {"max_new_tokens": 3}, "image_data": ["u"]}),
]


def shuffled(value: Any, order: Callable[[list[Any]], list[Any]]) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], order) for key in order(list(value))}
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


@pytest.mark.parametrize(("endpoint", "body"), BODIES)
@given(data=st.data(), ascii_only=st.booleans(), indent=st.none() | st.integers(0, 3))
@settings(max_examples=25)
def test_white_space_key_order_and_escapes_never_change_the_request(
    endpoint: Endpoint, body: dict[str, Any], data: st.DataObject, ascii_only: bool, indent: int | None
) -> None:
    other = shuffled(body, lambda keys: data.draw(st.permutations(keys)))
    written = json.dumps(other, ensure_ascii=ascii_only, indent=indent).replace("/", "\\/")

    assert parse(endpoint, written.encode()) == parse(endpoint, body)


@pytest.mark.parametrize(("endpoint", "body"), BODIES)
def test_the_generic_way_gives_the_same_request_as_the_typed_one(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """``"n": "1"`` does not fit the types; the rest is then read the other way."""
    assert parse(endpoint, {**body, "n": "2"}) == parse(endpoint, {**body, "n": 2})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


PROMPT_FIELDS = (
    "messages",
    "system",
    "tools",
    "instructions",
    "input",
    "prompt",
    "text",
    "model",
    "image_data",
)
IGNORED = {"type", "signature"}
LEAVES = [
    (endpoint, body, leaf)
    for endpoint, body in BODIES
    for leaf in leaves({key: value for key, value in body.items() if key in PROMPT_FIELDS})
    if not IGNORED & {str(step) for step in leaf} or "tools" in leaf
]


@pytest.mark.parametrize(("endpoint", "body", "leaf"), LEAVES, ids=[f"{e}-{p}" for e, _, p in LEAVES])
def test_every_value_of_the_prompt_is_part_of_its_identity(
    endpoint: Endpoint, body: dict[str, Any], leaf: tuple[Any, ...]
) -> None:
    changed = json.loads(json.dumps(body))
    place = changed
    for step in leaf[:-1]:
        place = place[step]
    old = place[leaf[-1]]
    place[leaf[-1]] = old + 1 if isinstance(old, int) else f"{old or ''}!"

    assert parse(endpoint, changed).key != parse(endpoint, body).key


@pytest.mark.parametrize(
    "scope",
    [
        {"model": "other"},
        {"lora_path": "other"},
        {"cache_salt": "s"},
        {"extra_key": "k"},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"id": "1"}]},
        {"documents": [{"id": "2"}]},
        {"reasoning_effort": "low"},
    ],
)
def test_what_changes_the_start_of_the_prompt_shares_no_block(scope: dict[str, Any]) -> None:
    whole = parse(Endpoint.CHAT, CHAT).paths[0]

    assert parse(Endpoint.CHAT, {**CHAT, **scope}).paths[0][:8] != whole[:8]
    assert parse(Endpoint.CHAT, {**CHAT, "documents": [{"id": "1"}]}) != parse(
        Endpoint.CHAT, {**CHAT, "documents": [{"id": "2"}]}
    )


def test_namespaces_share_nothing_and_tenants_of_one_share_all() -> None:
    first, second, third = (
        parse(Endpoint.CHAT, CHAT, Tenant(name, namespace=namespace)).paths[0][:8]
        for name, namespace in (("a", b"x"), ("b", b"x"), ("a", b"y"))
    )
    assert first == second != third


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": 1},
        {"n": 5},
        {"stream": False},
        {"tool_choice": "auto"},
        {"user": "u"},
        {"max_tokens": 1},
    ],
)
def test_what_is_not_rendered_is_not_part_of_the_identity(field: dict[str, Any]) -> None:
    assert identity(parse(Endpoint.CHAT, {**CHAT, **field})) == identity(parse(Endpoint.CHAT, CHAT))


@pytest.mark.parametrize(("endpoint", "body"), BODIES[:2])
def test_each_turn_of_a_conversation_extends_the_path_of_the_turn_before(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    paths = [
        parse(endpoint, {**body, "messages": body["messages"][:count]}).paths[0]
        for count in range(1, len(body["messages"]) + 1)
    ]

    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(paths))


def test_an_unfinished_last_message_shares_its_full_blocks() -> None:
    """The stream is FE user F8 and text: of blocks of 16 bytes the first three are equal."""
    one = parse(Endpoint.CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 50 + "left"}]})
    other = parse(
        Endpoint.CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 50 + "right"}]}
    )

    assert one.paths[0][: 3 * 8] == other.paths[0][: 3 * 8]


def test_the_billing_block_of_claude_code_is_not_part_of_the_identity() -> None:
    def with_header(hashed: str) -> dict[str, Any]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={hashed}"}
        return {**MESSAGES, "system": [header, *MESSAGES["system"]]}

    assert parse(Endpoint.MESSAGES, with_header("a")) == parse(Endpoint.MESSAGES, with_header("b"))


@pytest.mark.parametrize("levels", [10, 300, 450, 5000])
def test_nested_tool_results_are_read_or_refused_but_never_crash(levels: int) -> None:
    """Python's own recursion limit lies somewhere between the second and the last."""
    content = b'[{"type":"tool_result","content":' * levels + b'"x"' + b"}]" * levels
    body = b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"

    assert refusal(Endpoint.MESSAGES, body) in ((None,) if levels == 10 else (None, "invalid_json"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = """
    model messages prompt input text input_ids system tools instructions stream max_tokens n role content
    type sampling_params stream_options lora_path image_data name output tool_calls function
"""
field_names = st.sampled_from(FIELDS.split())
objects = st.recursive(
    json_values,
    lambda inner: st.dictionaries(field_names, inner, max_size=5) | st.lists(inner, max_size=3),
    max_leaves=15,
)


@given(st.sampled_from(Endpoint), st.binary(max_size=200) | objects.map(lambda o: json.dumps(o).encode()))
def test_whatever_comes_nothing_but_a_client_error_is_raised(endpoint: Endpoint, body: bytes) -> None:
    codes = {None, "invalid_json", "not_an_object", "missing_model", "invalid_value"}

    assert refusal(endpoint, body) in codes


def test_numbers_among_texts_are_one_prompt_without_a_path() -> None:
    """No engine takes them, and the engine reports it."""
    mixed = parse(Endpoint.COMPLETIONS, {"model": "m", "prompt": ["", 0]})

    assert mixed.paths == (b"",)
    assert mixed.key != parse(Endpoint.COMPLETIONS, {"model": "m", "prompt": ["", 1]}).key


IDS = list(range(100, 116))
ACME = Tenant("acme", salt="0123456789abcdef", namespace=b"0123456789abcdef")


def ids_path(endpoint: Endpoint, tenant: Tenant = ANONYMOUS, **fields: Any) -> bytes:
    prompt = {"input_ids": IDS} if endpoint is Endpoint.GENERATE else {"prompt": IDS}
    return parse(endpoint, {"model": "m", **prompt, **fields}, tenant).paths[0]


def test_token_ids_share_with_whom_an_engine_shares_them() -> None:
    """Endpoint and sampling do not matter; a tenant that names itself has no salt at the engine either."""
    expected = chain_token_ids(IDS[:-1], identifier.hasher.engine_root("m", ""), 4)
    assert {
        ids_path(Endpoint.COMPLETIONS),
        ids_path(Endpoint.COMPLETIONS, add_special_tokens=False, cache_salt="", temperature=1),
        ids_path(Endpoint.GENERATE),
        ids_path(Endpoint.COMPLETIONS, Tenant("named", namespace=b"named")),
    } == {expected}


@pytest.mark.parametrize("tenant", [ANONYMOUS, ACME])
@pytest.mark.parametrize("own", [None, "", "mine"])
def test_token_ids_hang_from_the_salt_that_the_engine_gets(own: str | None, tenant: Tenant) -> None:
    for endpoint, name in ((Endpoint.COMPLETIONS, "cache_salt"), (Endpoint.GENERATE, "extra_key")):
        body = json.dumps({"model": "m", "prompt": IDS, "input_ids": IDS, name: own}).encode()
        parsed = identifier.parse(endpoint, body, tenant=tenant)
        seen = json.loads(b"".join(edited(body, parsed.edits)))[name] or ""
        assert seen != "mine"
        assert parsed.paths == (chain_token_ids(IDS[:-1], identifier.hasher.engine_root("m", seen), 4),)


def test_token_ids_of_other_tenants_adapters_and_keys_stay_apart() -> None:
    paths = [
        ids_path(Endpoint.COMPLETIONS),
        ids_path(Endpoint.COMPLETIONS, ACME),
        ids_path(Endpoint.COMPLETIONS, Tenant("other", salt="f" * 16, namespace=b"f" * 16)),
        ids_path(Endpoint.COMPLETIONS, lora_path="adapter"),
        ids_path(Endpoint.COMPLETIONS, cache_salt="s"),
        ids_path(Endpoint.COMPLETIONS, cache_salt="s", extra_key="x"),
        ids_path(Endpoint.GENERATE, image_data=["a"]),
        ids_path(Endpoint.GENERATE, image_data=["b"]),
        ids_path(Endpoint.GENERATE, extra_key=["x"]),
    ]
    assert len(set(paths)) == len(paths)
    assert ids_path(Endpoint.COMPLETIONS, model="adapter") == paths[3]


def test_token_ids_under_another_name_of_a_model_are_the_same() -> None:
    aliased = Identifier("test", block_tokens=4, block_bytes=16, cached_as={"alias": "m"}.__getitem__)
    body = json.dumps({"model": "alias", "prompt": IDS}).encode()
    assert aliased.parse(Endpoint.COMPLETIONS, body).paths[0] == ids_path(Endpoint.COMPLETIONS)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (Endpoint.COMPLETIONS, {"n": 10**17}, "n"),
        (Endpoint.COMPLETIONS, {"n": 16_385}, "n"),
        (Endpoint.COMPLETIONS, {"n": "9" * 400}, "n"),
        (Endpoint.CHAT, {"n": 10**400}, "n"),
        (Endpoint.CHAT, {"max_tokens": 10**400}, "max_tokens"),
        (Endpoint.CHAT, {"max_completion_tokens": 2**31}, "max_tokens"),
        (Endpoint.RESPONSES, {"max_output_tokens": 10**309}, "max_tokens"),
        (Endpoint.CHAT, {"max_tokens": 2, "max_output_tokens": 10**18}, "max_tokens"),
        (Endpoint.GENERATE, {"sampling_params": {"max_new_tokens": 10**309}}, "max_new_tokens"),
        (Endpoint.GENERATE, {"sampling_params": [{"n": 1}, {"n": 10**17}]}, "n"),
        (Endpoint.EMBEDDINGS, {"priority": -(10**400)}, "priority"),
        (Endpoint.CHAT, {"model": "m" * 257}, "model"),
        (Endpoint.CHAT, {"prompt_cache_key": "s" * 257}, "prompt_cache_key"),
        (Endpoint.CHAT, {"prompt_cache_key": "\ud800"}, "prompt_cache_key"),
        (Endpoint.CHAT, {"service_tier": "t" * 257}, "service_tier"),
        (Endpoint.COMPLETIONS, {"lora_path": "l" * 257}, "lora_path"),
        (Endpoint.COMPLETIONS, {"lora_path": ["l" * 257]}, "lora_path"),
    ],
)
def test_a_number_or_a_name_that_nothing_could_serve_is_refused(
    endpoint: Endpoint, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ClientError) as refused:
        parse(endpoint, {"model": "m", "prompt": "x", "text": "x", **body})
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_value", param)


def test_the_largest_numbers_and_names_that_are_served() -> None:
    body = {
        "model": "模" * 256,
        "n": 16_384,
        "max_tokens": 2**31 - 1,
        "priority": -(2**53 - 1),
        "prompt": "x",
    }
    parsed = parse(Endpoint.COMPLETIONS, body)
    assert (parsed.n, parsed.output_tokens_max, parsed.priority) == (16_384, 2**31 - 1, 1 - 2**53)
