"""Tenants: who is served, by which key, and how they are kept apart."""

from router.tenants.door import Door
from router.tenants.keys import Keyring, KeyTable, TenantKey
from router.tenants.keys_file import KeysFileError
from router.tenants.limits import Limiter
from router.tenants.tenant import ANONYMOUS, UNLIMITED, Tenant, TenantLimits
from router.tenants.watch import KeysWatch, check_keys_file

__all__ = [
    "ANONYMOUS",
    "UNLIMITED",
    "Door",
    "KeyTable",
    "Keyring",
    "KeysFileError",
    "KeysWatch",
    "Limiter",
    "Tenant",
    "TenantKey",
    "TenantLimits",
    "check_keys_file",
]
