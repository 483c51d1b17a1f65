"""Keys of tenants: how one is made, and how its tenant is found.

    cw-aY3k...  ──SHA-256──> digest ──first 8 bytes──> valid keys ──the rest, in constant time──> tenant

Only digests are stored. A slow hash (bcrypt, Argon2) protects secrets that can be guessed, at 100 ms of CPU
per request; a key is 256 random bits, which no amount of SHA-256 finds (NIST SP 800-63B, 5.1.1.2, asks for
slow hashes where people choose the secret).

Timing reveals nothing of a stored key: a guess tells at most how its digest compares, and an attacker cannot
choose digests. Valid keys are remembered in the clear, in memory only, at most as many as the file has.
"""

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.tenant import Tenant

KEY_PREFIX = "cw-"
"""Marks keys for people and for scanners of source code."""

KEY_BYTES = 32
INDEX_BYTES = 8
"""Bytes of a digest that find it; the rest is compared."""


def new_key() -> str:
    """A key of 256 random bits, 46 characters."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def new_salt() -> str:
    """Make a salt of 256 random bits, which cannot be guessed (vLLM, ``cache_salt`` in its protocol)."""
    return secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: bytes) -> bytes:
    """Return the stored form of a key."""
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class TenantKey:
    """SHA-256 of a tenant's key, and its validity; infinite ``expires_unix_s``: it stays valid."""

    digest: bytes
    not_before_unix_s: float = -math.inf
    expires_unix_s: float = math.inf

    def valid(self, now_unix_s: float) -> bool:
        """Return True if the key is valid at a time."""
        return self.not_before_unix_s <= now_unix_s < self.expires_unix_s


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Tenants of one keys file, and their keys, by tenant name; no two keys have the same `INDEX_BYTES`."""

    tenants: Mapping[str, Tenant]
    keys: Mapping[str, tuple[TenantKey, ...]]

    def all_keys(self) -> Iterable[tuple[Tenant, TenantKey]]:
        """Yield every key with its tenant."""
        for name, keys in self.keys.items():
            for key in keys:
                yield self.tenants[name], key

    def ends(self) -> Iterable[tuple[str, float]]:
        """Return the tenants whose keys all expire, with the last expiry in Unix seconds."""
        for name, keys in self.keys.items():
            end_unix_s = max((key.expires_unix_s for key in keys), default=math.inf)
            if end_unix_s < math.inf:
                yield name, end_unix_s


EMPTY_TABLE = KeyTable({}, {})


class Keyring:
    """The keys that are valid now. `use` and `pass_time` keep it up to date; asking it reads no clock."""

    def __init__(self) -> None:
        self.table = EMPTY_TABLE
        """The newest table."""
        self._valid: dict[bytes, tuple[bytes, Tenant]] = {}
        self._verified: dict[bytes, Tenant] = {}
        self._changes_unix_s = math.inf
        self.has_quotas = False
        """True if a tenant has a share of KV space (`Tenant.cache_share`)."""

    def use(self, table: KeyTable, now_unix_s: float) -> None:
        """Take over a table in place of the one before."""
        self.table = table
        self.has_quotas = any(tenant.cache_share < 1.0 for tenant in table.tenants.values())
        self._look(now_unix_s)

    def pass_time(self, now_unix_s: float) -> None:
        """Let keys begin and expire."""
        if now_unix_s >= self._changes_unix_s:
            self._look(now_unix_s)

    def _look(self, now_unix_s: float) -> None:
        valid: dict[bytes, tuple[bytes, Tenant]] = {}
        changes_unix_s = math.inf
        for tenant, key in self.table.all_keys():
            if key.valid(now_unix_s):
                valid[key.digest[:INDEX_BYTES]] = (key.digest, tenant)
            for at_unix_s in (key.not_before_unix_s, key.expires_unix_s):
                if at_unix_s > now_unix_s:
                    changes_unix_s = min(changes_unix_s, at_unix_s)
        self._valid = valid
        self._verified = {}
        self._changes_unix_s = changes_unix_s

    def weight_of(self, name: str) -> float:
        """The weight of a tenant by its name, 1 if it is not configured."""
        tenant = self.table.tenants.get(name)
        return 1.0 if tenant is None else tenant.weight

    def cache_share_of(self, name: str) -> float | None:
        """Share of KV space of a tenant by its name; None for all while no tenant has a quota."""
        if not self.has_quotas:
            return None
        tenant = self.table.tenants.get(name)
        return 1.0 if tenant is None else tenant.cache_share

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Return the tenant of a key; None if it is not valid now."""
        tenant = self._verified.get(key)
        if tenant is not None:
            return tenant
        digest = digest_of(key)
        found = self._valid.get(digest[:INDEX_BYTES])
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        self._verified[key] = found[1]
        return found[1]
