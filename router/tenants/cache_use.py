"""KV space that tenants fill, for people: nothing while no tenant has a quota (`policies.fleet.quotas`)."""

from collections.abc import Iterator
from typing import NamedTuple

from policies import Quotas, owner_of
from router.metric_families import TENANT_KV_SPACE
from router.metrics import Sample
from router.tenant import Tenant
from router.tenants.keys import Keyring


class CacheUse(NamedTuple):
    """Tokens of a tenant's blocks in all workers' caches, and tokens that fit into these."""

    tokens: int
    space_tokens: int


def cache_uses(keyring: Keyring, quotas: Quotas) -> Iterator[tuple[Tenant, CacheUse]]:
    """Yield the tenants of the keys file with their cached tokens, if any of them has a quota."""
    if not keyring.has_quotas:
        return
    used, space_tokens = quotas.used_tokens()
    for tenant in keyring.table.tenants.values():
        yield tenant, CacheUse(round(used.get(owner_of(tenant.name), 0.0)), round(space_tokens))


def quota_samples(keyring: Keyring, quotas: Quotas) -> Iterator[Sample]:
    """Yield the share of KV space that each tenant with a quota fills, where that space is known."""
    for tenant, use in cache_uses(keyring, quotas):
        if tenant.cache_share < 1.0 and use.space_tokens:
            yield TENANT_KV_SPACE, (tenant.name,), use.tokens / use.space_tokens
