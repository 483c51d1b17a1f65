"""Reader of the keys file: YAML or JSON to a `KeyTable`, or to all problems.

    tenants:
      acme:
        keys:
          - sha256:9f86d081...                       # what `cacheway keys new acme` prints
          - hash: sha256:2c26b46b...
            not_before: 2026-12-01
            expires: 2027-03-01T00:00:00+01:00
        weight: 2
        class: high
        salt: pV4...                                 # keeps the tenant's cache apart
        limits: {requests_per_minute: 600, tokens_per_minute: 1000000, concurrent_tokens: 200000}

Times without an offset are UTC.
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from router.tenant import Tenant, TenantLimits
from router.tenants.key_entries import Entry, KeyHash, KeysFileError, Moment, Reading, content_of
from router.tenants.keys import INDEX_BYTES, KeyTable, TenantKey

TENANTS_MAX = 10_000
"""Most tenants, as many as the label values of a metric (`router.tallies.SERIES_MAX`)."""

_Limit = Annotated[int, Field(gt=0, le=10**15)]


class _Key(Entry):
    hash: KeyHash
    not_before: Moment | None = None
    expires: Moment | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_hash_alone_is_a_key(cls, value: object) -> object:
        return {"hash": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> "_Key":
        if self.not_before is not None and self.expires is not None and self.expires <= self.not_before:
            raise ValueError("expires must be later than not_before")
        return self


class _Limits(Entry):
    requests_per_minute: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    concurrent_tokens: _Limit | None = None


class _Tenant(Entry):
    keys: tuple[_Key, ...] = ()
    weight: float = Field(default=1.0, ge=0.001, le=1000)
    cache_share: float = Field(default=1.0, ge=0.001, le=1)
    priority: str = Field(default="", alias="class", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    salt: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{16,128}$")
    limits: _Limits = _Limits()


def load_keys(path: Path, classes: Collection[str] = ()) -> KeyTable:
    """Read a keys file; see `parsed_keys`."""
    return parsed_keys(content_of(path), str(path), classes)


def parsed_keys(content: bytes, place: str, classes: Collection[str] = ()) -> KeyTable:
    """Parse a keys file named ``place``; no ``classes`` means that they are unknown.

    Raise KeysFileError with all problems.
    """
    reading = Reading(content, place)
    tenants: dict[str, Tenant] = {}
    keys: dict[str, tuple[TenantKey, ...]] = {}
    owners: dict[bytes, str] = {}
    for name, value in reading.entries("tenants", TENANTS_MAX):
        # One by one: in a thread beside the event loop, no call takes long.
        entry = reading.validated(("tenants", name), _Tenant, value)
        if entry is None:
            continue
        if classes and entry.priority and entry.priority not in classes:
            reading.problem(("tenants", name, "class"), f"is no class; there are {', '.join(classes)}")
        tenants[name] = _tenant(name, entry)
        keys[name] = tuple(map(_key, entry.keys))
        for index, key in enumerate(keys[name]):
            owner = owners.setdefault(key.digest[:INDEX_BYTES], name)
            if owner != name or key.digest in (earlier.digest for earlier in keys[name][:index]):
                reading.problem(("tenants", name, "keys", index), f"is the key of {owner} already")
    if reading.problems:
        raise KeysFileError(reading.problems)
    return KeyTable(tenants, keys)


def _tenant(name: str, entry: _Tenant) -> Tenant:
    limits = entry.limits
    return Tenant(
        name,
        entry.weight,
        entry.priority,
        entry.salt,
        TenantLimits(
            limits.requests_per_minute or 0, limits.tokens_per_minute or 0, limits.concurrent_tokens or 0
        ),
        configured=True,
        namespace=entry.salt.encode(),
        cache_share=entry.cache_share,
    )


def _key(entry: _Key) -> TenantKey:
    return TenantKey(
        bytes.fromhex(entry.hash.removeprefix("sha256:")),
        -math.inf if entry.not_before is None else entry.not_before.timestamp(),
        math.inf if entry.expires is None else entry.expires.timestamp(),
    )
