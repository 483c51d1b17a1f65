"""Watchers of the files of keys and tokens, which apply changes without a restart.

    unchanged ──other file, or other time──> changed ──the same a second later──> read ──> unchanged
                                                └── still changing ──┘              └ wrong: the old keys
                                                                                      stay, loudly

Once a second `FileWatch.run` (owned by `router.app`) checks inode, time and size of the file behind each
path, which also notices a Kubernetes Secret, whose files are links into a folder that is exchanged. A file
is read only after it has stood still for a second: an editor may be half done with it. A thread reads it,
since it may be long, or on a network.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from router.errors import SettingsError
from router.metric_families import TENANT_KEYS_END
from router.metrics import Sample
from router.tenants.admin_tokens import AdminToken, AdminTokens, load_tokens
from router.tenants.key_entries import KeysFileError
from router.tenants.keys import Keyring, KeyTable
from router.tenants.keys_file import load_keys

logger = logging.getLogger(__name__)

LOOK_S = 1.0

PROBLEMS_LOGGED = 20

_Signature = tuple[int, ...]
_MISSING: _Signature = ()


def check_keys_file(keys_file: str, tokens_file: str, classes: Collection[str]) -> None:
    """Check the files of keys and tokens before the start; raise SettingsError if one is unusable."""
    key = "tenancy.keys_file"
    try:
        if keys_file:
            load_keys(Path(keys_file), classes)
        key = "admin.tokens_file"
        if tokens_file:
            load_tokens(Path(tokens_file))
    except KeysFileError as error:
        raise SettingsError(f"{key}: {problem}" for problem in error.problems) from error


T = TypeVar("T")


class FileWatch(ABC, Generic[T]):
    """Watches one file of key hashes, called ``noun`` in logs; ``problem`` is None while it can be used."""

    def __init__(self, path: str, noun: str, now_unix_s: Callable[[], float]) -> None:
        self.path = Path(path)
        self.problem: str | None = None
        self.loaded_unix_s = 0.0
        self.loaded_count = 0
        self.refused_count = 0
        self._noun = noun
        self._now_unix_s = now_unix_s
        self._seen = _MISSING
        self._changed: _Signature | None = None

    @abstractmethod
    def _read(self) -> T:
        """Read the file, in any thread; raise KeysFileError if it cannot be used."""

    @abstractmethod
    def _use(self, table: T, now_unix_s: float) -> Mapping[str, int]:
        """Apply a new table; return its counts for the log."""

    def _pass_time(self, now_unix_s: float) -> None:
        """Apply the passing of time to an unchanged table."""

    def load(self) -> None:
        """Read it for the first time; raise KeysFileError if it cannot be used, so that the start stops."""
        self._seen = _signature(self.path)
        self._take(self._read())

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """See whether there is something new."""
        signature = await asyncio.to_thread(_signature, self.path)
        if signature == self._seen:
            self._changed = None
            self._pass_time(self._now_unix_s())
        elif signature != self._changed:
            self._changed = signature
        else:
            await self._renew(signature)

    async def _renew(self, signature: _Signature) -> None:
        try:
            table = await asyncio.to_thread(self._read)
        except KeysFileError as error:
            problems = error.problems
        else:
            self._seen = signature
            self._take(table)
            return
        self._seen = signature
        self.refused_count += 1
        self.problem = problems[0]
        logger.error(
            "the %s file cannot be used; the %s it had before stay valid",
            self._noun,
            self._noun,
            extra={
                "event": f"{self._noun}.refused",
                "problems": list(problems[:PROBLEMS_LOGGED]),
                "count": len(problems),
            },
        )

    def _take(self, table: T) -> None:
        now_unix_s = self._now_unix_s()
        counts = self._use(table, now_unix_s)
        self.problem = None
        self.loaded_unix_s = now_unix_s
        self.loaded_count += 1
        logger.info("%s loaded", self._noun, extra={"event": f"{self._noun}.loaded", **counts})


class KeysWatch(FileWatch[KeyTable]):
    """Watches the tenants' keys file and fills a keyring; no ``classes`` means that they are unknown."""

    def __init__(
        self,
        path: str,
        keyring: Keyring,
        *,
        classes: Collection[str] = (),
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(path, "keys", now_unix_s)
        self.keyring = keyring
        self._classes = classes

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the keys' ends (`KeyTable.ends`)."""
        for tenant, end_unix_s in self.keyring.table.ends():
            yield TENANT_KEYS_END, (tenant,), end_unix_s

    def _read(self) -> KeyTable:
        return load_keys(self.path, self._classes)

    def _use(self, table: KeyTable, now_unix_s: float) -> Mapping[str, int]:
        self.keyring.use(table, now_unix_s)
        return {"tenants": len(table.tenants), "keys": sum(map(len, table.keys.values()))}

    def _pass_time(self, now_unix_s: float) -> None:
        self.keyring.pass_time(now_unix_s)


class TokensWatch(FileWatch[AdminTokens]):
    """Watches the file of the admin API's tokens."""

    def __init__(self, path: str, *, now_unix_s: Callable[[], float] = time.time) -> None:
        super().__init__(path, "tokens", now_unix_s)
        self.tokens = AdminTokens(())

    def holder(self, token: bytes) -> AdminToken | None:
        """Return the entry of a token; None if it is not valid now."""
        return self.tokens.holder(token, self._now_unix_s())

    def _read(self) -> AdminTokens:
        return load_tokens(self.path)

    def _use(self, table: AdminTokens, now_unix_s: float) -> Mapping[str, int]:
        self.tokens = table
        return {"tokens": len(table.tokens)}


def _signature(path: Path) -> _Signature:
    """Return a value that changes with the file; `_MISSING` without a file."""
    try:
        found = path.stat()
    except OSError:
        return _MISSING
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
