"""A tenant, and its share of the fleet.

A request belongs to exactly one tenant, found from its key or, without a keys file, from a header
(`router.tenants.door`). Fairness reads its weight, the queue its class, the tree and the engines its salt.
"""

import hashlib
import re
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Allowed names of tenants, which go into the shared log, into metrics and into flows."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of a tenant over all replicas, for admitted requests; 0 for none. Output counts as expected."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_tokens: int = 0

    @property
    def unlimited(self) -> bool:
        """True if there is no limit."""
        return not (self.requests_per_minute or self.tokens_per_minute or self.concurrent_tokens)


UNLIMITED = TenantLimits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant, as this replica knows it now. A reload makes a new one: never keep it beyond a request.

    Attributes:
        name: Unique; '' for requests without a tenant.
        weight: Share of the fleet next to the other tenants, > 0, while they have to wait.
        priority: Class of its requests unless they say otherwise; '' for the default class.
        salt: Keeps its cache apart in engines; '' if it shares with others.
        configured: True if the keys file names it: only then may its name be a label of a metric.
        namespace: Keeps its prompts apart in the prefix tree.
        cache_share: Share of the workers' KV space, above 0 to 1 (`policies.fleet.quotas`); 1: no quota.
    """

    name: str
    weight: float = 1.0
    priority: str = ""
    salt: str = ""
    limits: TenantLimits = UNLIMITED
    configured: bool = False
    namespace: bytes = b""
    cache_share: float = 1.0


ANONYMOUS = Tenant("")
"""Tenant of requests without one."""


def named_by_client(name: bytes) -> Tenant:
    """Return the tenant that a trusted header names; a name that does not match `NAME` becomes its hash."""
    if not name:
        return ANONYMOUS
    text = name.decode("latin-1")
    if not NAME.fullmatch(text):
        text = f"h-{hashlib.sha256(name).hexdigest()[:16]}"
    return Tenant(text, namespace=name)
