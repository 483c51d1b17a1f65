"""Who is served: a tenant, and how much of the fleet is theirs.

A request belongs to exactly one tenant, found from its key or, without a keys file, from a header
(`router.tenants.door`). Everything that treats tenants differently reads it here: fairness the weight, the
queue the class, the tree and the engines the salt, the limits what they allow.
"""

import hashlib
import re
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""What a tenant may be called: it goes into the log that replicas share, into metrics and into flows."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may use of the whole gateway, over all replicas; 0 stands for no limit.

    Attributes:
        requests_per_minute: Requests that are admitted.
        tokens_per_minute: Prompt and output tokens of admitted requests.
        concurrent_tokens: Prompt and expected output tokens of requests that have not ended.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_tokens: int = 0

    @property
    def unlimited(self) -> bool:
        """Whether there is nothing to keep to."""
        return not (self.requests_per_minute or self.tokens_per_minute or self.concurrent_tokens)


UNLIMITED = TenantLimits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant, as this replica knows it now. A reload makes a new one: never keep it beyond a request.

    Attributes:
        name: Unique; '' for requests of nobody in particular.
        weight: Share of the fleet next to the other tenants, > 0, while they have to wait.
        priority: Class of its requests unless they say otherwise; '' for the default class.
        salt: What engines keep its cache apart by; '' if it shares with others.
        limits: What it may use.
        configured: Whether the keys file names it: only then may its name be a label of a metric.
        namespace: What its prompts are kept apart by in the prefix tree.
    """

    name: str
    weight: float = 1.0
    priority: str = ""
    salt: str = ""
    limits: TenantLimits = UNLIMITED
    configured: bool = False
    namespace: bytes = b""


ANONYMOUS = Tenant("")
"""Requests of nobody in particular."""


def named_by_client(name: bytes) -> Tenant:
    """The tenant that a header names, in a gateway that believes it.

    Args:
        name: As received. One that could not be a tenant's (`NAME`) is replaced by a hash of it.
    """
    if not name:
        return ANONYMOUS
    text = name.decode("latin-1")
    if not NAME.fullmatch(text):
        text = f"h-{hashlib.sha256(name).hexdigest()[:16]}"
    return Tenant(text, namespace=name)
