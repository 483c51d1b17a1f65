"""KV space that tenants fill, as people see it."""

import pytest

from policies import FleetRules, FleetState, Placed, WorkerPut, owner_of
from router.metric_families import TENANT_KV_SPACE
from router.tenant import Tenant
from router.tenants import CacheUse, Keyring, KeyTable, cache_uses, quota_samples


def keyring_of(*tenants: Tenant) -> Keyring:
    keyring = Keyring()
    keyring.use(KeyTable({each.name: each for each in tenants}, {each.name: () for each in tenants}), 0.0)
    return keyring


def fleet_of(capacity_tokens: int) -> FleetState:
    """Acme brought two blocks, a tenant that no file names a third."""
    fleet = FleetState(FleetRules())
    fleet.apply(WorkerPut("a:1", 1, "r", "http://a:1", capacity_tokens=capacity_tokens))
    for number, (tenant, blocks) in enumerate((("acme", 2), ("stranger", 1))):
        path = bytes([number]) * 8 * blocks
        fleet.apply(Placed(tenant, 2, "a:1", "r", 0, 0, 0, (path,), owner=owner_of(tenant)))
    return fleet


def test_tenants_of_the_file_are_told_what_they_fill_and_those_with_a_quota_are_a_metric() -> None:
    keyring, quotas = keyring_of(Tenant("acme", cache_share=0.25), Tenant("guest")), fleet_of(2_560).quotas
    uses = {tenant.name: use for tenant, use in cache_uses(keyring, quotas)}
    assert uses == {"acme": CacheUse(512, 2_560), "guest": CacheUse(0, 2_560)}
    assert list(quota_samples(keyring, quotas)) == [(TENANT_KV_SPACE, ("acme",), pytest.approx(0.2))]


def test_without_a_quota_nothing_is_told() -> None:
    assert not list(cache_uses(keyring_of(Tenant("acme")), fleet_of(2_560).quotas))


def test_where_the_space_is_unknown_there_is_no_share() -> None:
    assert not list(quota_samples(keyring_of(Tenant("acme", cache_share=0.25)), fleet_of(0).quotas))
