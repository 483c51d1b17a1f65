"""The door: every row of its table."""

import pytest

from router.errors import InvalidKey
from router.proxy import Header
from router.tenant import ANONYMOUS, Tenant
from router.tenants import Door, Keyring, KeyTable, TenantKey
from router.tenants.door import NAMED_MAX
from router.tenants.keys import digest_of

ACME = Tenant("acme", weight=3.0, salt="s" * 16, configured=True)
BEARER: Header = (b"authorization", b"Bearer theirs")
OURS: Header = (b"authorization", b"Bearer ours")
WRONG: Header = (b"authorization", b"Bearer wrong")


def named(name: str) -> Header:
    return (b"x-tenant-id", name.encode())


def door(*, admin: bool = False, keys: bool = False) -> Door:
    keyring = Keyring()
    keyring.use(KeyTable({"acme": ACME}, {"acme": (TenantKey(digest_of(b"theirs")),)}), 0.0)
    return Door(
        admin_key=b"ours" if admin else None,
        tenant_header=b"x-tenant-id",
        keys=keyring if keys else None,
    )


@pytest.mark.parametrize("headers", [[], [WRONG], [(b"accept", b"*/*")]])
def test_without_any_key_everybody_may_do_everything(headers: list[Header]) -> None:
    assert door().tenant_of(headers) is ANONYMOUS
    assert door().is_admin(headers)
    assert not door().hands_out_keys


def test_the_gateways_key_alone_is_asked_of_everybody() -> None:
    for headers in ([], [WRONG], [BEARER]):
        assert not door(admin=True).is_admin(headers)
        with pytest.raises(InvalidKey):
            door(admin=True).tenant_of(headers)
    assert door(admin=True).is_admin([OURS])
    assert door(admin=True).tenant_of([OURS]) is ANONYMOUS


def test_without_a_keys_file_a_tenant_names_itself() -> None:
    assert door().tenant_of([named("acme")]) == Tenant("acme", namespace=b"acme")
    assert door(admin=True).tenant_of([OURS, named("acme")]) == Tenant("acme", namespace=b"acme")


@pytest.mark.parametrize(
    "headers",
    [
        [BEARER],
        [(b"x-api-key", b"theirs")],
        [(b"authorization", b"bEaReR  theirs ")],
        [BEARER, named("other")],
    ],
)
def test_a_key_says_whose_a_request_is_whatever_the_header_says(headers: list[Header]) -> None:
    for admin in (False, True):
        assert door(admin=admin, keys=True).tenant_of(headers) is ACME
        assert door(admin=admin, keys=True).is_tenant(headers)
        assert not door(admin=admin, keys=True).is_admin(headers)


def test_who_holds_the_gateways_key_may_speak_for_anybody() -> None:
    opened = door(admin=True, keys=True)
    assert opened.tenant_of([OURS]) is ANONYMOUS
    assert opened.tenant_of([OURS, named("acme")]) is ACME
    assert opened.tenant_of([named("new"), OURS]) == Tenant("new", namespace=b"new")
    assert opened.is_admin([OURS])
    assert not opened.is_tenant([OURS])


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "needs a key"),
        ([named("acme")], "needs a key"),
        ([(b"authorization", b"Basic dGhlaXJz")], "needs a key"),
        ([WRONG], "not known"),
        ([(b"x-api-key", b"wrong")], "not known"),
        ([WRONG, (b"x-api-key", b"theirs")], "not known"),
    ],
)
@pytest.mark.parametrize("admin", [False, True])
def test_nobody_else_is_let_in(headers: list[Header], message: str, admin: bool) -> None:
    opened = door(admin=admin, keys=True)
    with pytest.raises(InvalidKey, match=message) as refused:
        opened.tenant_of(headers)
    assert refused.value.status == 401
    assert not opened.is_admin(headers)
    assert not opened.is_tenant(headers)
    assert opened.hands_out_keys


def test_without_the_gateways_key_its_admin_api_is_closed_to_all() -> None:
    opened = door(keys=True)
    for headers in ([], [BEARER], [OURS], [(b"authorization", b"Bearer ")]):
        assert not opened.is_admin(headers)


def test_named_tenants_are_remembered_within_a_bound() -> None:
    opened = door()
    first = opened.tenant_of([named("first")])
    assert opened.tenant_of([named("first")]) is first
    for index in range(NAMED_MAX + 10):
        opened.tenant_of([named(f"t{index}")])
    assert len(opened._named) <= NAMED_MAX
    assert opened.tenant_of([named("first")]) == first
