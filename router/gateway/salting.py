"""Salts that keep tenants' caches apart, spliced into the client's body.

    {"model":"m","messages":[...]}                      from the client
    {"model":"m","messages":[...],"cache_salt":"pV4.."}  to the worker: two pieces, nothing copied

Engines hash the salt with the first block of a prompt, so only requests with the same salt share cache. A
client's own salt counts within its tenant: a worker gets the SHA-256 of it and of the tenant's salt or name.
So no client can forge the salt of another tenant. The hash is the same at all replicas, and after a restart.

Engines' fields and the endpoints where they overlook a salt: `router.engines`.
"""

import hashlib
from base64 import urlsafe_b64encode
from typing import Any

import msgspec

from router.engines import DIALECTS
from router.gateway.bodies import ABSENT, Scalars
from router.gateway.conversation import canonical_json, loads
from router.gateway.endpoints import WITHOUT_CACHE, Endpoint
from router.tenant import Tenant

SALT_FIELDS = ("cache_salt", "extra_key")
"""Fields by which engines keep caches apart."""

OVERLOOKED_BY: dict[Endpoint, frozenset[str]] = {
    endpoint: engines
    for endpoint in Endpoint
    if (engines := frozenset(name for name, each in DIALECTS.items() if endpoint in each.overlooks_salt))
}
"""By endpoint, the engines that overlook a salt there."""


def takes_salt(endpoint: Endpoint) -> bool:
    """Return True if requests to an endpoint touch a cache."""
    return endpoint not in WITHOUT_CACHE


def salt_field(endpoint: Endpoint) -> str:
    """Return the field for a tenant's salt."""
    return "extra_key" if endpoint is Endpoint.GENERATE else "cache_salt"


def salt_in_place(endpoint: Endpoint, name: str, written: memoryview, tenant: Tenant) -> bytes | None:
    """Return the JSON in place of a client's own salt ``written`` in JSON; None if it may stay."""
    own = loads(written)
    empty = tenant.salt if name == salt_field(endpoint) else ""
    if isinstance(own, list) and own:
        value: Any = [hashed_salt(tenant, one) or empty or one for one in own]
    else:
        value = hashed_salt(tenant, own) or empty or own
    return None if value == own else msgspec.json.encode(value)


def seen_salt(endpoint: Endpoint, fields: Scalars, tenant: Tenant) -> str | None:
    """Return the salt of a request's token ids as an engine sees it; None if its prompts have several.

    SGLang puts ``extra_key`` behind ``cache_salt`` (``_compute_extra_key`` in
    ``entrypoints/openai/serving_base.py``).
    """
    extra: Any = getattr(fields, "extra_key", ABSENT)
    extra = "" if extra is ABSENT else loads(memoryview(extra)) or ""
    if not isinstance(extra, str):
        return None
    more = hashed_salt(tenant, extra)
    if endpoint is Endpoint.GENERATE:
        return more or tenant.salt
    own = fields.cache_salt if isinstance(fields.cache_salt, str) else ""
    return (hashed_salt(tenant, own) or tenant.salt) + more


def hashed_salt(tenant: Tenant, own: Any) -> str:
    """Hash a client's own salt, decoded from JSON, for engines; empty if it has none.

    A tenant's salt has no zero byte in it, so no name stands for one.
    """
    if own is None or own == "":
        return ""
    key = tenant.salt or f"\0{tenant.name}"
    digest = hashlib.sha256(key.encode() + b"\0" + canonical_json(own)).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
