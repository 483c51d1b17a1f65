"""Who may do what with the admin API."""

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


def let_in(access: Access, method: str, path: str, headers: Sequence[Header]) -> Actor:
    """Who asks, if they may."""
    actor = access.actor(headers)
    access.check(actor, method, path, headers)
    return actor


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
    actor = let_in(Access(door()), "DELETE", "/workers/a", ())
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
    """With a token to read and one to write, and a key of the gateway beside them."""
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
    """Who may send requests for all tenants is not thereby an administrator."""
    for headers in (KEY, (), ((b"x-api-key", b"nobody"),)):
        with pytest.raises(InvalidKey):
            let_in(access, "GET", "/workers", headers)
