"""Tenants."""

import pytest

from router.tenant import ANONYMOUS, NAME, UNLIMITED, TenantLimits, named_by_client


def test_limits_of_zero_limit_nothing() -> None:
    assert UNLIMITED.unlimited
    assert not TenantLimits(requests_per_minute=1).unlimited
    assert not TenantLimits(tokens_per_minute=1).unlimited
    assert not TenantLimits(concurrent_tokens=1).unlimited


@pytest.mark.parametrize("name", ["acme", "a", "team-7.eu_west@corp", "7", "a" * 64])
def test_a_client_may_name_its_tenant(name: str) -> None:
    tenant = named_by_client(name.encode())
    assert (tenant.name, tenant.namespace, tenant.configured) == (name, name.encode(), False)


@pytest.mark.parametrize("name", [b"a/b", b"a" * 65, b" a", b"-a", "ä".encode(), b"\xff", b"a\n", b"{}"])
def test_a_name_that_does_not_fit_into_a_log_line_is_replaced_by_its_hash(name: bytes) -> None:
    """Any such name keeps a namespace of its own."""
    tenant = named_by_client(name)
    assert NAME.fullmatch(tenant.name)
    assert tenant.namespace == name
    assert named_by_client(name) == tenant
    assert named_by_client(name + b"x").name != tenant.name


def test_no_name_is_nobody() -> None:
    assert named_by_client(b"") is ANONYMOUS
