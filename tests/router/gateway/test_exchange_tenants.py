"""A request and its tenant: the body for the worker, the counts, and rejections."""

from typing import Any

import orjson
import pytest
from fakes.gateway import Bench, chat
from fakes.handover import PairBench

from policies import Placed
from router.engines import Description
from router.errors import WorkerUnreachable
from router.gateway.endpoints import Endpoint
from router.gateway.large import LARGE_BODY_BYTES
from router.proxy import Header
from router.tenant import Tenant
from router.tenants import Keyring, KeyTable, TenantKey
from router.tenants.keys import digest_of

SALT = "0123456789abcdef"


def keyring() -> Keyring:
    """Two tenants, one of which has a separate cache."""
    keyring = Keyring()
    tenants = {
        "acme": Tenant("acme", salt=SALT, configured=True, namespace=SALT.encode()),
        "guest": Tenant("guest", configured=True),
    }
    keys = {name: (TenantKey(digest_of(f"cw-{name}".encode())),) for name in tenants}
    keyring.use(KeyTable(tenants, keys), 0.0)
    return keyring


def key_of(name: str) -> list[Header]:
    return [(b"authorization", f"Bearer cw-{name}".encode()), (b"x-api-key", f"cw-{name}".encode())]


def describe(bench: Bench, worker_id: str, engine: str) -> None:
    """Describe a worker's engine to the registry."""
    bench.registry.described(bench.local(worker_id), None, Description(engine, 0))


def test_both_workers_of_a_pair_get_the_salt_and_no_key() -> None:
    bench = PairBench(1, 1, keys=keyring())
    bench.start(chat(), headers=key_of("acme"))
    paired = bench.paired
    assert orjson.loads(b"".join(paired.pair.body))["cache_salt"] == SALT
    assert b"cw-" not in paired.pair.lines
    paired.began()
    paired.answer()
    bench.check()


@pytest.mark.parametrize("large", [False, True])
def test_a_tenants_salt_goes_with_its_requests_and_its_key_does_not(large: bool) -> None:
    bench = Bench(keys=keyring())
    text = "word " * (LARGE_BODY_BYTES if large else 10)
    salts: set[str] = set()
    for name, own in (("acme", {}), ("acme", {"cache_salt": "mine"}), ("guest", {"cache_salt": "mine"})):
        bench.start(chat(text, **own), headers=key_of(name))
        bench.time.advance(0.1)
        sent = bench.upstream.sent
        assert all(b"cw-" not in value for _, value in sent["headers"])
        body = orjson.loads(b"".join(sent["body"]))
        salt = body.pop("cache_salt")
        assert (salt == SALT) == (name == "acme" and not own)
        assert salt != "mine"
        salts.add(salt)
        assert body == chat(text)
        bench.upstream.answer()
    bench.check()
    first, second, third = (placed.paths for placed in bench.shared.said(Placed))
    assert len({first, second, third}) == (3 if large else 1)
    assert "cw-" not in str(bench.log)
    assert [line["tenant"] for line in bench.log] == ["acme", "acme", "guest"]


def test_a_salted_request_is_salted_again_when_it_is_redispatched() -> None:
    bench = Bench(keys=keyring())
    bench.start(chat(), headers=key_of("acme"))
    first = bench.upstream
    first.fail(WorkerUnreachable("gone"))
    assert b"".join(bench.upstream.sent["body"]) == b"".join(first.sent["body"])
    assert SALT.encode() in b"".join(first.sent["body"])
    bench.upstream.answer()
    bench.check()


def test_an_engine_that_would_overlook_the_salt_is_not_asked() -> None:
    """SGLang's Messages API, for one, has no field for the salt: the tenant shares its cache with none."""
    bench = Bench(workers=1, keys=keyring())
    describe(bench, "w0:80", "sglang")
    body = {"model": "m", "max_tokens": 1, "messages": []}
    _, client = bench.start(body, path=b"/v1/messages", headers=key_of("acme"))
    assert (client.status, client.error["type"]) == (400, "invalid_request_error")
    assert "kept apart" in client.error["message"]
    assert not bench.shared.said(Placed)
    bench.start(body, path=b"/v1/messages", headers=key_of("guest"))
    bench.upstream.answer()
    bench.start(chat(), headers=key_of("acme"))
    bench.upstream.answer()
    bench.add("w1:80")
    describe(bench, "w1:80", "vllm")
    for _ in range(5):
        bench.start(body, path=b"/v1/messages", headers=key_of("acme"))
        assert bench.upstream.pool.url == "http://w1:80"
        bench.upstream.answer()
    bench.check()


def test_what_touches_no_cache_passes_as_it_came() -> None:
    bench = Bench(keys=keyring())
    bench.start(b'{"model":"m","prompt":"x"}', path=b"/tokenize", headers=key_of("acme"))
    assert bench.upstream.sent["body"] == (b'{"model":"m","prompt":"x"}',)
    bench.upstream.answer()
    bench.check()


@pytest.mark.parametrize("headers", [[], key_of("nobody"), [(b"x-tenant-id", b"acme")]])
def test_who_has_no_key_gets_401(headers: list[Header]) -> None:
    bench = Bench(keys=keyring())
    _, client = bench.start(chat(), headers=headers)
    assert (client.status, client.error["code"]) == (401, "invalid_api_key")
    assert "tenant" not in bench.log[-1]
    bench.check()


@pytest.mark.parametrize(
    ("own", "header", "more", "flow"),
    [
        ("", None, {}, "normal/t"),
        ("", b"high", {}, "high/t"),
        ("low", None, {}, "low/t"),
        ("high", None, {}, "high/t"),
        ("high", b"low", {}, "low/t"),
        ("high", None, {"service_tier": "flex"}, "low/t"),
        ("normal", b"high", {}, "normal/t"),
        ("normal", None, {"service_tier": "priority"}, "normal/t"),
        ("low", None, {"priority": 5}, "low/t"),
    ],
)
def test_a_tenants_class_is_what_its_requests_have_and_the_most_they_get(
    own: str, header: bytes | None, more: dict[str, Any], flow: str
) -> None:
    gateway = Bench().gateway
    tenant = Tenant("t", priority=own)
    parsed = gateway.reader.parse(Endpoint.CHAT, orjson.dumps(chat(**more)), tenant)
    headers = [] if header is None else [(b"x-priority", header)]
    assert gateway.reader.flow_of(parsed, tenant, headers) == flow


def test_only_tenants_of_the_keys_file_are_labels() -> None:
    bench = Bench(keys=keyring(), server={"api_key": "ours"})
    ours = (b"authorization", b"Bearer ours")
    for headers in (
        key_of("guest"),
        [ours],
        [ours, (b"x-tenant-id", b"acme")],
        [ours, (b"x-tenant-id", b"x")],
    ):
        bench.start(chat(), headers=headers)
        bench.upstream.answer(b'{"usage":{"prompt_tokens":9,"completion_tokens":1}}')
    text = bench.metrics.exposition()[0].decode()
    labelled = [line for line in text.splitlines() if line.startswith("cacheway_tenant_requests_total{")]
    assert labelled == [
        'cacheway_tenant_requests_total{outcome="completed",tenant="guest"} 1.0',
        'cacheway_tenant_requests_total{outcome="completed",tenant="acme"} 1.0',
    ]
    assert [line.get("tenant") for line in bench.log] == ["guest", None, "acme", "x"]
