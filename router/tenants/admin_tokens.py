"""Tokens of the admin API: names, roles, and hashes.

    tokens:
      alice:
        role: write                                  # or read
        hash: sha256:9f86d081...                     # what `cacheway keys admin alice` prints
        expires: 2027-03-01                          # left out: it stays valid

They are made, stored and compared as tenants' keys are (`router.tenants.keys`), but a token is no key, and a
key no token. Tokens are few and seldom used, so each use looks the token up and checks its time.
"""

import hmac
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from router.tenants.key_entries import Entry, KeyHash, KeysFileError, Moment, Reading, content_of
from router.tenants.keys import INDEX_BYTES, digest_of

TOKENS_MAX = 1000

AccessRole = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class AdminToken:
    """One token and its owner, for the audit; the role ``write`` also allows to read."""

    name: str
    role: AccessRole
    digest: bytes
    expires_unix_s: float = math.inf


class AdminTokens:
    """All tokens of one file; no two of them have the same beginning (`INDEX_BYTES`)."""

    def __init__(self, tokens: Iterable[AdminToken]) -> None:
        self.tokens = tuple(tokens)
        self._by_digest = {token.digest[:INDEX_BYTES]: token for token in self.tokens}

    def holder(self, token: bytes, now_unix_s: float) -> AdminToken | None:
        """Return the entry of a token; None if it is not valid now."""
        digest = digest_of(token)
        found = self._by_digest.get(digest[:INDEX_BYTES])
        if found is None or not hmac.compare_digest(found.digest, digest):
            return None
        return found if now_unix_s < found.expires_unix_s else None


class _Token(Entry):
    role: AccessRole
    hash: KeyHash
    expires: Moment | None = None


def load_tokens(path: Path) -> AdminTokens:
    """Read a file of tokens; raise KeysFileError with all problems."""
    return parsed_tokens(content_of(path), str(path))


def parsed_tokens(content: bytes, place: str) -> AdminTokens:
    """Parse a file of tokens named ``place``; raise KeysFileError with all problems."""
    reading = Reading(content, place)
    tokens: dict[bytes, AdminToken] = {}
    for name, value in reading.entries("tokens", TOKENS_MAX):
        entry = reading.validated(("tokens", name), _Token, value)
        if entry is None:
            continue
        digest = bytes.fromhex(entry.hash.removeprefix("sha256:"))
        expires_unix_s = math.inf if entry.expires is None else entry.expires.timestamp()
        token = AdminToken(name, entry.role, digest, expires_unix_s)
        owner = tokens.setdefault(digest[:INDEX_BYTES], token)
        if owner is not token:
            reading.problem(("tokens", name, "hash"), f"is the token of {owner.name} already")
    if reading.problems:
        raise KeysFileError(reading.problems)
    return AdminTokens(tokens.values())
