"""Tenants: their keys, their limits, and their separation."""

from router.tenants.admin_tokens import AccessRole, AdminToken, AdminTokens
from router.tenants.door import Door, TenancyRules, presented_key
from router.tenants.key_entries import KeysFileError
from router.tenants.keys import Keyring, KeyTable, TenantKey
from router.tenants.limits import Limiter
from router.tenants.watch import FileWatch, KeysWatch, TokensWatch, check_keys_file

__all__ = [
    "AccessRole",
    "AdminToken",
    "AdminTokens",
    "Door",
    "FileWatch",
    "KeyTable",
    "Keyring",
    "KeysFileError",
    "KeysWatch",
    "Limiter",
    "TenancyRules",
    "TenantKey",
    "TokensWatch",
    "check_keys_file",
    "presented_key",
]
