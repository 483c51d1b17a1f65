"""``GET /tenants``: the tenants, and the expiry of their keys; never a key, a hash or a salt."""

import math
from typing import Any

from fastapi import FastAPI

from router.admin.parts import AdminParts
from router.gateway.gateway import LimiterPort
from router.tenant import Tenant
from router.tenants import CacheUse, KeyTable, cache_uses


def add_tenants(api: FastAPI, parts: AdminParts) -> None:
    """Add the route."""
    keys, limiter, fleet = parts.keys, parts.gateway.limiter, parts.gateway.fleet

    @api.get("/tenants", tags=["tenants"])
    async def tenants() -> dict[str, Any]:
        """The tenants of the keys file, and whether the file could be read."""
        if keys is None:
            return {"file": None, "tenants": [], "total": 0}
        table = keys.keyring.table
        uses = {tenant.name: use for tenant, use in cache_uses(keys.keyring, fleet.quotas)}
        return {
            "file": {
                "path": str(keys.path),
                "loaded_unix_s": round(keys.loaded_unix_s, 3),
                "problem": keys.problem,
            },
            "limits_degraded": None if limiter is None else limiter.degraded_reason,
            "tenants": [
                _described(tenant, table, limiter, parts.now_unix_s()) | _cache(tenant, uses.get(tenant.name))
                for tenant in table.tenants.values()
            ],
            "total": len(table.tenants),
        }


def _cache(tenant: Tenant, use: CacheUse | None) -> dict[str, Any]:
    """KV space of a tenant; None while no tenant has a quota: then nothing is counted."""
    if use is None:
        return {"cache": None}
    return {"cache": {"share": tenant.cache_share, "tokens": use.tokens, "space_tokens": use.space_tokens}}


def _described(
    tenant: Tenant, table: KeyTable, limiter: LimiterPort | None, now_unix_s: float
) -> dict[str, Any]:
    keys = table.keys[tenant.name]
    end_unix_s = max((key.expires_unix_s for key in keys), default=now_unix_s)
    limits = tenant.limits
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "class": tenant.priority or None,
        "isolated": bool(tenant.salt),
        "limits": {
            "requests_per_minute": limits.requests_per_minute or None,
            "tokens_per_minute": limits.tokens_per_minute or None,
            "concurrent_tokens": limits.concurrent_tokens or None,
        },
        "left": None if limiter is None else limiter.left(tenant),
        "keys": {
            "valid": sum(key.valid(now_unix_s) for key in keys),
            "not_yet": sum(key.not_before_unix_s > now_unix_s for key in keys),
            "expired": sum(key.expires_unix_s <= now_unix_s for key in keys),
            "end_unix_s": None if end_unix_s == math.inf else end_unix_s,
        },
    }
