"""A salt reaches the engine, and the rest of the body stays as it is."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ClientError
from router.gateway.endpoints import WITHOUT_CACHE, Endpoint
from router.gateway.large import parse_in_steps
from router.gateway.parsing import Identifier, ParsedRequest
from router.gateway.salting import SALT_FIELDS, hashed_salt, takes_salt
from router.offsets import edited
from router.tenant import Tenant

SALT = "0123456789abcdef"
ACME, OTHER = (Tenant("t", salt=salt, namespace=salt.encode()) for salt in (SALT, SALT[::-1]))
identifier = Identifier("test")

texts = st.text(max_size=20)
lookalikes = st.sampled_from(["cache_salt", '"cache_salt":"x"'])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts | lookalikes,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(["cache_salt", "extra_key"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def spliced(endpoint: Endpoint, body: bytes, tenant: Tenant = ACME) -> Sequence[bytes | memoryview]:
    parsed = identifier.parse(endpoint, body, tenant=tenant)
    return edited(body, parsed.edits)


def in_steps(endpoint: Endpoint, body: bytes) -> ParsedRequest:
    steps = parse_in_steps(identifier, endpoint, body, tenant=ACME)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def field_of(endpoint: Endpoint) -> str:
    return "extra_key" if endpoint is Endpoint.GENERATE else "cache_salt"


def sent(endpoint: Endpoint, fields: dict[str, Any], tenant: Tenant = ACME) -> Any:
    """Return the value of the field that the engine gets for a client's body."""
    body = json.dumps({"model": "m", **fields}).encode()
    return json.loads(b"".join(spliced(endpoint, body, tenant)))[field_of(endpoint)]


def no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize("endpoint", [endpoint for endpoint in Endpoint if takes_salt(endpoint)])
@given(
    fields=st.dictionaries(texts.filter(lambda name: name != "model"), values, max_size=4),
    own=st.none() | texts,
    has_own=st.booleans(),
    at=st.integers(0, 4),
    indent=st.none() | st.integers(0, 3),
    tail=st.sampled_from(["", " ", "\r\n\t "]),
)
def test_an_engine_finds_one_salt_and_all_the_client_said(
    endpoint: Endpoint,
    fields: dict[str, Any],
    own: str | None,
    has_own: bool,
    at: int,
    indent: int | None,
    tail: str,
) -> None:
    """The client's own field may be anywhere in the body, next to look-alikes."""
    name = field_of(endpoint)
    pairs = [("model", "m"), *((key, value) for key, value in fields.items() if key not in SALT_FIELDS)]
    if has_own:
        pairs.insert(at, (name, own))
    body = (json.dumps(dict(pairs), indent=indent) + tail).encode()
    try:
        pieces = spliced(endpoint, body)
    except ClientError:  # no request
        return
    got = json.loads(b"".join(pieces), object_pairs_hook=no_name_twice)
    salt = got.pop(name)
    assert got == {key: value for key, value in pairs if key != name}
    assert (salt == SALT) == (not (has_own and own))
    large = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert all(piece.obj is body for piece in large)
    assert sum(map(len, pieces)) - sum(map(len, large)) <= len(name) + len(SALT) + 64


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.GENERATE])
def test_a_salt_of_the_clients_own_counts_within_its_tenant(endpoint: Endpoint) -> None:
    name = field_of(endpoint)
    ours = [sent(endpoint, fields) for fields in ({}, {name: "a"}, {name: "b"})]
    theirs = [sent(endpoint, fields, OTHER) for fields in ({}, {name: "a"}, {name: "b"})]
    assert len({*ours, *theirs}) == 6
    assert sent(endpoint, {name: "a"}) == ours[1]
    assert sent(endpoint, {name: SALT}, OTHER) not in ours
    assert all(len(salt) == 43 for salt in ours[1:])


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_salt_is_none(empty: str | None) -> None:
    assert sent(Endpoint.CHAT, {"cache_salt": empty}) == SALT


def test_each_prompt_of_a_batch_keeps_its_key() -> None:
    keys = sent(Endpoint.GENERATE, {"text": ["a", "b", "c"], "extra_key": ["x", None, "x"]})
    assert keys[0] == keys[2] == sent(Endpoint.GENERATE, {"text": "a", "extra_key": "x"})
    assert keys[1] == SALT


def test_of_two_salts_the_last_counts_as_it_does_in_engines() -> None:
    body = b'{"model":"m","cache_salt":"x","messages":[],"cache_salt" : "y" }'
    pieces = b"".join(spliced(Endpoint.CHAT, body))
    assert json.loads(pieces)["cache_salt"] == sent(Endpoint.CHAT, {"cache_salt": "y"})


def test_a_name_may_be_written_with_escapes() -> None:
    body = rb'{"model":"m","cache\u005fsalt":"\u0079"}'
    pieces = b"".join(spliced(Endpoint.CHAT, body))
    assert json.loads(pieces, object_pairs_hook=no_name_twice)["cache_salt"] == sent(
        Endpoint.CHAT, {"cache_salt": "y"}
    )


def test_a_byte_order_mark_moves_nothing() -> None:
    mark = b"\xef\xbb\xbf"
    for own in (b"", b',"cache_salt":"y"'):
        body = b'{"model":"m","messages":[]%b}' % own
        assert b"".join(spliced(Endpoint.CHAT, mark + body)) == mark + b"".join(spliced(Endpoint.CHAT, body))


def test_an_empty_object_gets_a_salt_too() -> None:
    """SGLang's own endpoint needs no model; the engine reports what it needs."""
    assert json.loads(b"".join(spliced(Endpoint.GENERATE, b" { } "))) == {"extra_key": SALT}


@pytest.mark.parametrize("own", [{}, {"cache_salt": "y"}, {"cache_salt": "y" * 5000}, {"cache_salt": None}])
def test_a_large_body_is_salted_like_a_small_one(own: dict[str, Any]) -> None:
    """4 MB, cut into a skeleton and holes; its pieces are views of the client's bytes."""
    for pairs in ({"messages": [], "input": "x" * 4_000_000, **own}, {**own, "input": "x" * 4_000_000}):
        body = json.dumps({"model": "m", "a": '\\"' * 3000, **pairs}).encode()
        parsed = in_steps(Endpoint.CHAT, body)
        assert parsed == identifier.parse(Endpoint.CHAT, body, tenant=ACME)
        pieces = edited(body, parsed.edits)
        assert json.loads(b"".join(pieces))["cache_salt"] == sent(Endpoint.CHAT, own)
        assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) < 100


def test_a_key_that_was_cut_out_of_a_large_body_is_found_again() -> None:
    """An array of numbers is no key of SGLang's; the engine reports that."""
    body = json.dumps({"text": "x" * 3000, "extra_key": list(range(1000)), "more": "y" * 3000}).encode()
    ((start, end, value),) = in_steps(Endpoint.GENERATE, body).edits
    assert body[start:end] == json.dumps(list(range(1000))).encode()
    assert json.loads(value) == [hashed_salt(ACME, one) for one in range(1000)]


def test_what_touches_no_cache_takes_no_salt() -> None:
    assert {endpoint for endpoint in Endpoint if not takes_salt(endpoint)} == WITHOUT_CACHE
    assert {Endpoint.TOKENIZE, Endpoint.COUNT_TOKENS, Endpoint.CHAT_RENDER} < WITHOUT_CACHE
    assert not {Endpoint.POOLING, Endpoint.INVOCATIONS, Endpoint.CHAT_BATCH} & WITHOUT_CACHE
    parsed = identifier.parse(Endpoint.TOKENIZE, b'{"cache_salt":"x"}', tenant=ACME)
    assert parsed.edits == ()
