"""Access to the admin API: the rights of each caller."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from router.admin.access import ANONYMOUS_ACTOR, KEY_HOLDER, Access, Actor, needed_role
from router.errors import ClientError, InvalidKey
from router.proxy import Header
from router.tenants import Door, Keyring, TokensWatch
from router.tenants.keys import digest_of

KEY = ((b"authorization", b"Bearer ours"),)


def door(admin_key: bytes | None = None, keys: Keyring | None = None) -> Door:
    return Door(admin_key=admin_key, tenant_header=b"x-tenant-id", keys=keys)


def let_in(
    access: Access, method: str, path: str, headers: Sequence[Header], *, registers: bool = False
) -> Actor:
    """Return the caller, if access allows the request."""
    actor = access.actor(headers, registers=registers)
    access.check(actor, method, path, headers, registers=registers)
    return actor


def refused(access: Access, method: str, headers: Sequence[Header], *, registers: bool = False) -> str:
    """Return the error code of a refused request; empty if it is allowed."""
    try:
        let_in(
            access, method, "/register_encoder_url" if registers else "/workers", headers, registers=registers
        )
    except ClientError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        *(("GET", "/workers", "read"), ("HEAD", "/workers", "read"), ("POST", "/explain", "read")),
        *(("POST", "/workers", "write"), ("DELETE", "/workers/a", "write"), ("PUT", "/explain", "write")),
        *(("OPTIONS", "/workers", "write"), ("BREW", "/workers", "write")),
    ],
)
def test_what_only_reads_needs_less(method: str, path: str, role: str) -> None:
    assert needed_role(method, path) == role


def test_without_keys_everybody_may_do_everything() -> None:
    actor = let_in(Access(door()), "DELETE", "/workers/a", [(b"host", b"localhost:29100")])
    assert (actor.name, actor.role) == (ANONYMOUS_ACTOR, "write")


def test_the_gateways_key_may_do_everything() -> None:
    access = Access(door(b"ours"))
    assert let_in(access, "DELETE", "/workers/a", KEY).name == KEY_HOLDER
    with pytest.raises(InvalidKey):
        let_in(access, "GET", "/workers", ())
    with pytest.raises(InvalidKey):
        let_in(access, "GET", "/workers", ((b"authorization", b"Bearer theirs"),))


def test_with_tenants_keys_alone_nobody_may() -> None:
    with pytest.raises(InvalidKey):
        let_in(Access(door(keys=Keyring())), "GET", "/workers", ())


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"http://127.0.0.1:1"])
def test_a_page_of_another_site_is_turned_away_where_no_key_is_asked_for(origin: bytes) -> None:
    headers = ((b"host", b"127.0.0.1:29100"), (b"origin", origin))
    with pytest.raises(ClientError, match="for another site"):
        let_in(Access(door()), "POST", "/workers", headers)
    assert let_in(Access(door(b"ours")), "POST", "/workers", (*headers, *KEY)).name == KEY_HOLDER


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """Access with a token to read, a token to write, and a key of the gateway."""
    file = tmp_path / "tokens.yaml"
    lines = [
        f"  {name}: {{role: {role}, hash: 'sha256:{digest_of(name.encode()).hex()}'}}"
        for name, role in (("ann", "read"), ("bob", "write"))
    ]
    file.write_text("\n".join(["tokens:", *lines]))
    tokens = TokensWatch(str(file))
    tokens.load()
    return Access(door(b"ours"), tokens)


def test_a_token_may_what_its_role_says(access: Access) -> None:
    ann, bob = (((b"authorization", b"Bearer " + name),) for name in (b"ann", b"bob"))
    assert let_in(access, "GET", "/workers", ann).name == "ann"
    assert let_in(access, "POST", "/explain", ann).role == "read"
    assert let_in(access, "DELETE", "/workers/a", bob).name == "bob"
    with pytest.raises(ClientError, match="ann may only read; DELETE /workers/a needs") as caught:
        let_in(access, "DELETE", "/workers/a", ann)
    assert (caught.value.status, caught.value.code) == (403, "read_only")


def test_with_tokens_the_gateways_key_is_one_of_clients_only(access: Access) -> None:
    """The right to send requests for all tenants does not make an administrator."""
    for headers in (KEY, (), ((b"x-api-key", b"nobody"),)):
        with pytest.raises(InvalidKey):
            let_in(access, "GET", "/workers", headers)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        *((b"127.0.0.1:29100", True), (b"10.0.0.7", True), (b"[::1]:29100", True), (b"::1", False)),
        *((b"localhost", True), (b"LocalHost:29100", True), (b" localhost ", True)),
        *((b"gateway.example:29100", True), (b"a.svc", True), (b"A.SVC:1", True)),
        *((b"evil.example", False), (b"evil.example:29100", False), (b"localhost.evil.example", False)),
        *((b"", False), (b":29100", False), (b"127.0.0.1.evil.example", False), (b"svc", False)),
        *((b"a.gateway.example", False), (b"localhost:evil.example", False), (b"[::1].evil.example", False)),
        *((b"evil.example:127.0.0.1", False), (b"127.0.0.1:29100:evil", False), (b"\xe9vil", False)),
        *((b"localhost@evil.example", False), (b"localhost, evil.example", False)),
    ],
)
def test_without_a_key_the_host_must_be_ours(method: str, host: bytes, *, allowed: bool) -> None:
    """A page whose name leads to this machine is of the same site for its browser (DNS rebinding)."""
    access = Access(door(), hosts=["Gateway.example", ".svc"])
    headers = [(b"host", host), (b"origin", b"http://" + host)]
    assert refused(access, method, headers) == ("" if allowed else "other_host")
    assert refused(Access(door(b"ours")), method, [*headers, *KEY]) == ""


def test_of_several_hosts_each_must_be_ours() -> None:
    assert refused(Access(door()), "GET", []) == "other_host"
    hosts = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert refused(Access(door()), "GET", hosts) == "other_host"
    assert refused(Access(door()), "GET", hosts[::-1]) == "other_host"


@pytest.mark.parametrize(
    ("method", "said", "code"),
    [
        ("POST", b"cross-site", "other_site"),
        ("POST", b"same-site", "other_site"),
        ("DELETE", b"Cross-Site", "other_site"),
        ("POST", b"nonsense", "other_site"),
        ("POST", b"same-origin", ""),
        ("POST", b"none", ""),
        ("GET", b"cross-site", ""),
    ],
)
def test_a_browser_that_says_that_another_site_changes_something_is_believed(
    method: str, said: bytes, code: str
) -> None:
    """Also without ``Origin``. A request that only reads has no effect, and the other site gets no answer."""
    headers = [(b"host", b"localhost:29100"), (b"sec-fetch-site", said)]
    assert refused(Access(door()), method, headers) == code


def test_an_encoder_may_call_by_any_name_and_a_page_may_not() -> None:
    access, named = Access(door()), [(b"host", b"cacheway:30000")]
    assert refused(access, "POST", named, registers=True) == ""
    for more in ((b"origin", b"http://cacheway:30000"), (b"sec-fetch-site", b"same-origin")):
        assert refused(access, "POST", [*named, more], registers=True) == "other_host"


def test_encoders_need_a_token_that_writes_or_the_gateways_key(access: Access) -> None:
    assert let_in(access, "POST", "/register_encoder_url", KEY, registers=True).name == KEY_HOLDER
    bob = ((b"authorization", b"Bearer bob"),)
    assert let_in(access, "POST", "/register_encoder_url", bob, registers=True).name == "bob"
    assert refused(access, "POST", [(b"authorization", b"Bearer ann")], registers=True) == "read_only"
    for headers in ((), ((b"x-api-key", b"nobody"),)):
        assert refused(access, "POST", headers, registers=True) == "invalid_api_key"
    assert refused(Access(door(keys=Keyring())), "POST", (), registers=True) == "invalid_api_key"


def test_with_tokens_alone_nobody_else_registers_encoders(access: Access) -> None:
    """Without a key of the gateway the data port is open to requests, but not to encoders."""
    alone = Access(door(), access._tokens)
    assert refused(alone, "POST", (), registers=True) == "invalid_api_key"
    assert refused(alone, "POST", KEY, registers=True) == "invalid_api_key"
    assert refused(alone, "POST", [(b"authorization", b"Bearer bob")], registers=True) == ""
