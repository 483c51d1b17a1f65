"""Fields that clients may not send to an engine: removed, hashed or refused in any notation."""

import json
from typing import Any

import pytest

from router.errors import ClientError
from router.gateway.bodies import HANDOVER_FIELDS
from router.gateway.client_fields import ID_FIELDS
from router.gateway.endpoints import PASSED_THROUGH, Endpoint
from router.gateway.large import parse_in_steps
from router.gateway.parsing import Identifier, ParsedRequest
from router.gateway.salting import takes_salt
from router.offsets import edited
from router.tenant import ANONYMOUS, Tenant

identifier = Identifier("test", block_tokens=4, block_bytes=16)

ACME = Tenant("acme", salt="0123456789abcdef", namespace=b"0123456789abcdef")
ONE, TWO = Tenant("one"), Tenant("two")

PROMPT = {"model": "m", "prompt": "x", "text": "x", "input": "x", "messages": []}


def in_steps(endpoint: Endpoint, body: bytes, tenant: Tenant = ANONYMOUS) -> ParsedRequest:
    steps = parse_in_steps(identifier, endpoint, body, tenant=tenant)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def parsed(endpoint: Endpoint, body: bytes, tenant: Tenant = ANONYMOUS) -> ParsedRequest:
    """Parse a body at once and in steps, with the same outcome."""
    found = identifier.parse(endpoint, body, tenant=tenant)
    assert in_steps(endpoint, body, tenant) == found
    return found


def seen(endpoint: Endpoint, body: bytes, tenant: Tenant = ANONYMOUS) -> dict[str, Any]:
    """Return the body that a worker reads; each name is there once."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    pieces = edited(body, parsed(endpoint, body, tenant).edits)
    found: dict[str, Any] = json.loads(b"".join(pieces), object_pairs_hook=once)
    return found


def refused(endpoint: Endpoint, body: bytes, named: str) -> None:
    for parse in (identifier.parse, in_steps):
        with pytest.raises(ClientError) as caught:
            parse(endpoint, body)
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "forbidden_field", named)


# Hand-over.


@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize("name", sorted(HANDOVER_FIELDS))
def test_no_client_says_how_kv_is_handed_over(endpoint: Endpoint, name: str) -> None:
    for value in ({"remote_host": "evil"}, [1], "x", 0, False, "null"):
        refused(endpoint, json.dumps(PROMPT | {name: value}).encode(), name)
    assert seen(endpoint, json.dumps(PROMPT | {name: None}).encode()) == PROMPT | {name: None}


DISGUISES = [
    rb'{"model":"m","prompt":"x","kv_transfer\u005fparams":{}}',
    rb'{"model":"m","prompt":"x","\u006b\u0076_transfer_params":{}}',
    rb'{"model":"m","prompt":"x","kv_transfer_params":{},"kv_transfer_params":null}',
    rb'{"model":"m","prompt":"x","kv_transfer_params":null,"kv\u005ftransfer_params":{},"kv_transfer_params":null}',
    rb'{"kv_transfer_params":{"a":"\ud800"},"model":"m","prompt":"x"}',
    rb'{"model":"m","prompt":"\ud83d","kv_transfer_params":{}}',
    rb'{"model":"m","prompt":"\ud83d","kv_transfer_params":{},"kv_transfer_params":null}',
    b'\xef\xbb\xbf{"model":"m","prompt":"x","kv_transfer_params":{}}',
    b' \r\n\t{ "model" : "m" , "prompt" : "x" ,\n"kv_transfer_params"\t:\r{ } } ',
    rb'{"model":"m","prompt":[1,"x",{"a":1}],"kv_transfer_params":{}}',
    rb'{"model":"m","prompt":"x","vllm_xargs":"x","kv_transfer_params":{}}',
    rb'{"model":"m","prompt":"x","max_tokens":"5","kv_transfer_params":{}}',
    rb'{"model":"m","prompt":"x","stream_options":null,"unknown":[{"kv_transfer_params":1}],"kv_transfer_params":{}}',
]


@pytest.mark.parametrize("body", DISGUISES)
def test_no_way_to_write_a_field_hides_it(body: bytes) -> None:
    refused(Endpoint.COMPLETIONS, body, "kv_transfer_params")


@pytest.mark.parametrize(
    "extra",
    [
        b'{"kv_transfer_params":"x"}',
        rb'{"a":1,"kv\u005ftransfer_params":1}',
        b'{"kv_transfer_params":{}},"vllm_xargs":{}',
        b'{},"vllm_xargs":{"kv_transfer_params":"x"},"vllm_xargs":null',
    ],
)
def test_nor_does_the_engines_place_for_other_arguments(extra: bytes) -> None:
    body = b'{"model":"m","prompt":"x","vllm_xargs":%b}' % extra
    refused(Endpoint.COMPLETIONS, body, "vllm_xargs.kv_transfer_params")


@pytest.mark.parametrize("extra", [{"ngram_size": 30, "ids": [1]}, {}, None, "x", [1]])
def test_other_arguments_pass(extra: Any) -> None:
    """The engine itself reports that it cannot use them."""
    body = PROMPT | {"vllm_xargs": extra}
    assert seen(Endpoint.COMPLETIONS, json.dumps(body).encode()) == body


def test_a_field_of_that_name_further_down_is_a_clients_own() -> None:
    inner = {"kv_transfer_params": {"a": 1}, "rid": "x", "cache_salt": "y"}
    body = PROMPT | {"metadata": inner, "tools": [inner]}
    assert seen(Endpoint.CHAT, json.dumps(body).encode()) == body


@pytest.mark.parametrize("filler", ["x" * 300_000, list(range(60_000))], ids=["text", "ids"])
def test_a_large_body_hides_nothing(filler: Any) -> None:
    for before, after in (
        ({"kv_transfer_params": {"b": "y" * 5000}}, {}),
        ({}, {"bootstrap_room": [7] * 3000}),
    ):
        body = json.dumps({**before, "model": "m", "prompt": filler, **after}).encode()
        refused(Endpoint.COMPLETIONS, body, next(iter(before | after)))


def test_an_operator_may_allow_it() -> None:
    allowing = Identifier("test", block_tokens=4, block_bytes=16, handover_allowed=True)
    body = json.dumps(PROMPT | {"kv_transfer_params": {"a": 1}, "rid": "x"}).encode()
    found = allowing.parse(Endpoint.CHAT, body)
    assert json.loads(b"".join(edited(body, found.edits))) == PROMPT | {"kv_transfer_params": {"a": 1}}
    assert found.paths == identifier.parse(Endpoint.CHAT, json.dumps(PROMPT).encode()).paths


# Ids.


@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize("tenant", [ANONYMOUS, ACME])
def test_no_client_names_a_request_at_its_engine(endpoint: Endpoint, tenant: Tenant) -> None:
    expected = seen(endpoint, json.dumps(PROMPT).encode(), tenant)
    for name in ID_FIELDS:
        for value in ("theirs", ["theirs", "theirs"], None, 5, {"a": "b"}):
            for body in (
                {name: value, **PROMPT},
                {"model": "m", name: value, **PROMPT},
                {**PROMPT, name: value},
            ):
                assert seen(endpoint, json.dumps(body).encode(), tenant) == expected
    both = {"rid": "x", **PROMPT, "request_id": "y"}
    for indent in (None, 2):
        assert seen(endpoint, json.dumps(both, indent=indent).encode(), tenant) == expected


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"m","r\u0069d":"x"}',
        rb'{"model":"m","rid":"x","rid":null}',
        rb'{"rid":"a","rid":"b","model":"m","request_id":"c" , "rid":"d"}',
        b'\xef\xbb\xbf{"rid":"a","model":"m"}',
        b'{ "rid" : "a" , "model" : "m" , "rid" : "b" }',
    ],
)
def test_an_id_that_is_there_twice_or_in_disguise_goes_as_well(body: bytes) -> None:
    for tenant, salt in ((ANONYMOUS, {}), (ACME, {"extra_key": ACME.salt})):
        pieces = edited(body, parsed(Endpoint.GENERATE, body, tenant).edits)
        assert json.loads(b"".join(pieces)) == {"model": "m"} | salt


def test_nothing_but_an_id_is_nothing_at_all() -> None:
    assert seen(Endpoint.GENERATE, b'{"rid":"x"}') == {}
    assert seen(Endpoint.GENERATE, b'{"rid":"x"}', ACME) == {"extra_key": ACME.salt}


def test_ids_are_taken_out_of_large_bodies() -> None:
    for filler in ("x" * 300_000, list(range(60_000))):
        body = {"rid": "x" * 5000, "model": "m", "prompt": filler, "request_id": [1] * 2000}
        expected = {"model": "m", "prompt": filler}
        assert seen(Endpoint.COMPLETIONS, json.dumps(body).encode()) == expected


def test_an_id_does_not_change_what_a_request_is() -> None:
    plain = parsed(Endpoint.COMPLETIONS, json.dumps(PROMPT).encode())
    named = parsed(Endpoint.COMPLETIONS, json.dumps(PROMPT | {"rid": "x"}).encode())
    assert (named.paths, named.key) == (plain.paths, plain.key)


# Salts.


@pytest.mark.parametrize("endpoint", [endpoint for endpoint in Endpoint if takes_salt(endpoint)])
@pytest.mark.parametrize("tenant", [ANONYMOUS, ONE, ACME])
def test_no_salt_of_a_client_reaches_an_engine_as_it_is(endpoint: Endpoint, tenant: Tenant) -> None:
    """Neither the one that its engine reads, nor the other one, nor one that is there twice."""
    for own in (ACME.salt, "x"):
        for body in (
            json.dumps(PROMPT | {"cache_salt": own}).encode(),
            b'{"cache_salt":"%b","model":"m","prompt":"x","text":"x","cache\\u005fsalt":"y"}' % own.encode(),
        ):
            said = seen(endpoint, body, tenant)
            assert own not in (said["cache_salt"], said.get("extra_key")) or (
                endpoint is Endpoint.GENERATE and tenant is ACME and own == ACME.salt
            )
            assert len(said["cache_salt"]) == 43
    if endpoint not in PASSED_THROUGH:
        said = seen(endpoint, json.dumps(PROMPT | {"extra_key": ACME.salt}).encode(), tenant)
        assert said["extra_key"] != ACME.salt
        said = seen(endpoint, json.dumps(PROMPT | {"extra_key": [ACME.salt, None]}).encode(), tenant)
        assert ACME.salt not in said["extra_key"][:1]


def test_salts_count_within_their_tenants_in_engines_and_in_the_tree() -> None:
    found = set()
    paths = set()
    body = json.dumps({"model": "m", "prompt": "word " * 20, "cache_salt": "mine"}).encode()
    for tenant in (ANONYMOUS, ONE, TWO, ACME, Tenant("one", namespace=b"one")):
        for _ in range(2):
            found.add(seen(Endpoint.COMPLETIONS, body, tenant)["cache_salt"])
            paths.add(parsed(Endpoint.COMPLETIONS, body, tenant).paths)
    assert len(found) == 4  # the last one has the name of the second
    assert len(paths) == 5
    keyed = body.replace(b"cache_salt", b"extra_key")
    assert len({parsed(Endpoint.COMPLETIONS, keyed, tenant).paths for tenant in (ANONYMOUS, ONE, TWO)}) == 3


def test_a_salt_is_the_same_at_all_replicas_and_after_a_restart() -> None:
    """The expected hashes are written here, since engines' caches outlive this gateway."""
    body = json.dumps(PROMPT | {"cache_salt": "mine"}).encode()
    assert seen(Endpoint.CHAT, body)["cache_salt"] == "DmZlqqZ72h3B36FIBE6m6dW4swSuoXsuFilB66nzJZE"
    assert seen(Endpoint.CHAT, body, ONE)["cache_salt"] == "V2SQ6AD3xQnEWx7khANlSc7lN41AUPZ2GB6JiI2jYMA"
    assert seen(Endpoint.CHAT, body, ACME)["cache_salt"] == "ijRED6fbtPaYtIB5eCN4GIXmblGj-MbcJW8e7kQrA78"


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_salt_stays_as_it_is_where_there_is_no_other(empty: str | None) -> None:
    body = PROMPT | {"cache_salt": empty, "extra_key": empty}
    assert seen(Endpoint.CHAT, json.dumps(body).encode(), ONE) == body


def test_what_touches_no_cache_keeps_its_salt() -> None:
    body = PROMPT | {"cache_salt": "x"}
    assert seen(Endpoint.TOKENIZE, json.dumps(body).encode(), ACME) == body
