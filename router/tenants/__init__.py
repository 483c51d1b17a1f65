"""Tenants: their keys, their limits, and their separation."""

from router.tenants.admin_tokens import AccessRole, AdminToken, AdminTokens
from router.tenants.cache_use import CacheUse, cache_uses, quota_samples
from router.tenants.door import Door, TenancyRules, presented_key
from router.tenants.key_entries import KeysFileError
from router.tenants.keys import Keyring, KeyTable, TenantKey
from router.tenants.limits import Limiter
from router.tenants.watch import FileWatch, KeysWatch, TokensWatch, check_keys_file

__all__ = [
    "AccessRole",
    "AdminToken",
    "AdminTokens",
    "CacheUse",
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
    "cache_uses",
    "check_keys_file",
    "presented_key",
    "quota_samples",
]
