"""Tells an engine which tenant's cache a request belongs to: a salt, spliced into the client's body.

    {"model":"m","messages":[...]}                      what the client sent
    {"model":"m","messages":[...],"cache_salt":"pV4.."}  what the worker gets: two pieces, nothing copied

Engines hash the salt with the first block of a prompt, so that only requests with the same one share cache. A
salt of the client's own counts within its tenant, and never travels as it is: a worker gets the SHA-256 of it
and of its tenant's salt, or name. So no client can write a salt that another tenant's requests have. The hash
depends on nothing else: it is the same at all replicas, and after a restart.

Which engine takes which field, and overlooks a salt where: `router.engines`.
"""

import hashlib
from base64 import urlsafe_b64encode
from typing import Any

import msgspec

from router.engines import DIALECTS
from router.gateway.bodies import ABSENT, Scalars
from router.gateway.conversation import canonical_json, loads
from router.gateway.endpoints import Endpoint
from router.tenants import Tenant

SALT_FIELDS = ("cache_salt", "extra_key")
"""Fields by which engines keep caches apart."""

_WITHOUT_CACHE = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})

OVERLOOKED_BY: dict[Endpoint, frozenset[str]] = {
    endpoint: engines
    for endpoint in Endpoint
    if (engines := frozenset(name for name, each in DIALECTS.items() if endpoint in each.overlooks_salt))
}
"""By endpoint, the engines that overlook a salt there."""


def takes_salt(endpoint: Endpoint) -> bool:
    """Whether requests to an endpoint touch a cache at all."""
    return endpoint not in _WITHOUT_CACHE


def salt_field(endpoint: Endpoint) -> str:
    """The field that a tenant's salt goes into."""
    return "extra_key" if endpoint is Endpoint.GENERATE else "cache_salt"


def salt_in_place(endpoint: Endpoint, name: str, written: memoryview, tenant: Tenant) -> bytes | None:
    """What an engine gets in place of a client's own salt, in JSON; None if it may stay.

    Args:
        endpoint: Where it was sent.
        name: One of `SALT_FIELDS`.
        written: The client's, in JSON.
        tenant: Whose it is.

    Raises:
        ValueError: It is not JSON.
    """
    own = loads(written)
    empty = tenant.salt if name == salt_field(endpoint) else ""
    if isinstance(own, list) and own:
        value: Any = [hashed_salt(tenant, one) or empty or one for one in own]
    else:
        value = hashed_salt(tenant, own) or empty or own
    return None if value == own else msgspec.json.encode(value)


def seen_salt(endpoint: Endpoint, fields: Scalars, tenant: Tenant) -> str | None:
    """What an engine keeps a request's token ids apart by, with the tenant's salt; empty for nothing.

    SGLang puts ``extra_key`` behind ``cache_salt`` (``_compute_extra_key`` in
    ``entrypoints/openai/serving_base.py``).

    Args:
        endpoint: Where it was sent.
        fields: What was decoded from its body.
        tenant: Whose it is.

    Returns:
        None if that is not one text for all of its prompts.
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
    """A client's own salt, as engines get it; empty if it has none.

    A tenant's salt has no zero byte in it, so no name stands for one.

    Args:
        tenant: The client's.
        own: Decoded from JSON.
    """
    if own is None or own == "":
        return ""
    key = tenant.salt or f"\0{tenant.name}"
    digest = hashlib.sha256(key.encode() + b"\0" + canonical_json(own)).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
