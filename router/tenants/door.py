"""The door: the tenant of a request, and the right to administer the gateway.

    keys file  gateway's key  presented           tenant                       admin API
    no         no             anything            the header's, or none        open
    no         yes            the gateway's key   the header's, or none        yes
    yes        any            a tenant's key      that one; the header is      no, only lists of models
                                                  ignored
    yes        yes            the gateway's key   the header's, or none        yes
    yes        no             nothing is          (401)                        closed
                              the gateway's key
    otherwise                                     401                          401

With the gateway's own key a request may name any tenant in its header: that is for a proxy in front that has
authenticated the client. A configured tenant named there counts as if its own key had come.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies import setting
from radix import NAME_CHARS_MAX
from router.errors import ClientError, InvalidKey
from router.proxy import Header
from router.tenant import ANONYMOUS, Tenant, named_by_client
from router.tenants.keys import Keyring
from router.values import HeaderName

NAMED_MAX = 1000
"""Tenants named by clients that are remembered; each is made in 2 us."""


@dataclass(frozen=True)
class TenancyRules:
    """Separation of the tenants' requests."""

    tenant_header: HeaderName = setting(
        "x-tenant-id",
        "Request header that names the tenant. Tenants never match each other's prefixes. A request without "
        "it belongs to the tenant ''. With keys_file it is believed only from requests that carry "
        "server.api_key; tenants are then known by their keys.",
    )
    keys_file: str = setting(
        "",
        "YAML or JSON file of tenants and the hashes of their keys, which `cacheway keys` makes and checks; "
        "see docs/tenants.md. Requests without a valid key then get 401, and the admin API needs "
        "server.api_key. Read again within two seconds of a change. Empty: tenants have no keys.",
        flag="tenant-keys-file",
        common=True,
    )
    answer_details: Literal["full", "names", "none"] = setting(
        "names",
        "Details in answers on how they were served. full: the workers, and how many tokens were expected in "
        "their caches (x-cacheway-worker, x-cacheway-prefill-worker, x-cacheway-cached-tokens); errors name "
        "workers. names: tenants with a key of their own see opaque names of the workers, which GET /workers "
        "shows to operators, and errors without addresses; all others see what full shows. none: no details, "
        "except to clients with server.api_key. The usage in a body is its engine's, and passes.",
    )


class Door:
    """Finds the tenant of requests by their headers. One per process.

    Args:
        admin_key: The gateway's own key; None if it has none.
        tenant_header: Name of the header with the tenant, in lower case.
        keys: The tenants' keys; None without a keys file.

    Attributes:
        header_names: The headers it reads.
        is_open: True if there are no keys, so that every request may do anything.
        hands_out_keys: True if clients present keys of ours, which workers must not see.
    """

    def __init__(self, *, admin_key: bytes | None, tenant_header: bytes, keys: Keyring | None) -> None:
        self._admin_key = admin_key
        self._tenant_header = tenant_header
        self._keys = keys
        self._named: dict[bytes, Tenant] = {}
        self.is_open = admin_key is None and keys is None
        self.header_names = frozenset((tenant_header, b"authorization", b"x-api-key"))
        self.hands_out_keys = not self.is_open

    def use_admin_key(self, key: bytes) -> None:
        """The gateway's own key is this one now; it had one before."""
        self._admin_key = key

    def tenant_of(self, headers: Sequence[Header]) -> Tenant:
        """Return the tenant of a request; raise InvalidKey if a key is needed, and this is none of ours."""
        if self.is_open:
            return self._named_in(headers) if headers else ANONYMOUS
        key = presented_key(headers)
        if self._keys is not None and key is not None:
            tenant = self._keys.tenant_of(key)
            if tenant is not None:
                return tenant
        if not self._is_admin_key(key):
            raise InvalidKey(presented=key is not None)
        return self._named_in(headers)

    def tenant_named(self, name: str) -> Tenant:
        """The tenant of this name, as its requests are treated."""
        return self._named_as(name.encode("latin-1", "replace")) if name else ANONYMOUS

    def is_admin(self, headers: Sequence[Header]) -> bool:
        """Return True if a request may administer the gateway."""
        return self.is_open or self._is_admin_key(presented_key(headers))

    def holds_own_key(self, headers: Sequence[Header]) -> bool:
        """Return True if a request carries the gateway's own key."""
        return self._is_admin_key(presented_key(headers))

    def is_tenant(self, headers: Sequence[Header]) -> bool:
        """Return True if a request carries the key of a tenant."""
        key = presented_key(headers)
        return self._keys is not None and key is not None and self._keys.tenant_of(key) is not None

    def _is_admin_key(self, key: bytes | None) -> bool:
        return key is not None and self._admin_key is not None and hmac.compare_digest(key, self._admin_key)

    def _named_in(self, headers: Sequence[Header]) -> Tenant:
        for name, value in headers:
            if name == self._tenant_header:
                return self._named_as(value)
        return ANONYMOUS

    def _named_as(self, value: bytes) -> Tenant:
        if len(value) > NAME_CHARS_MAX:
            name = self._tenant_header.decode("latin-1")
            raise ClientError(
                f"{name} must have at most {NAME_CHARS_MAX} characters.", code="invalid_value", param=name
            )
        if self._keys is not None:
            tenant = self._keys.table.tenants.get(value.decode("latin-1"))
            if tenant is not None:
                return tenant
        tenant = self._named.get(value)
        if tenant is None:
            if len(self._named) >= NAMED_MAX:
                self._named.clear()
            tenant = self._named[value] = named_by_client(value)
        return tenant


def presented_key(headers: Sequence[Header]) -> bytes | None:
    """The key that a request carries: as a bearer token, or as Anthropic's clients send it."""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
        if name == b"x-api-key":
            return value.strip()
    return None
