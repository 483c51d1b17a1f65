"""Keeps the keyring as the keys file is, without a restart.

    unchanged ──other file, or other time──> changed ──the same a second later──> read ──> unchanged
                                                └── still changing ──┘              └ wrong: the old keys
                                                                                      stay, loudly

Once a second the file is looked at (`KeysWatch.run`, owned by `router.app`): inode, time and size of what its
path leads to, so that a Kubernetes Secret, whose files are links into a folder that is exchanged, is seen to
change, too. Only a file that has stood still for a second is read: an editor may be half done with it.

Reading happens in a thread, since a file may be on a network and a table may be long.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from router.settings import Settings
from router.sources import SettingsError
from router.tenants.keys import Keyring, KeyTable
from router.tenants.keys_file import KeysFileError, load_keys

logger = logging.getLogger(__name__)

LOOK_S = 1.0

PROBLEMS_LOGGED = 20

_Signature = tuple[int, ...]
_MISSING: _Signature = ()


def check_keys_file(settings: Settings) -> None:
    """See that the keys file can be used, before anything starts.

    Raises:
        SettingsError: It cannot.
    """
    if settings.tenancy.keys_file:
        try:
            load_keys(Path(settings.tenancy.keys_file), settings.queue.classes)
        except KeysFileError as error:
            raise SettingsError(f"tenancy.keys_file: {problem}" for problem in error.problems) from error


class KeysWatch:
    """Looks after one keys file.

    Args:
        path: The file.
        keyring: Is given what the file says.
        classes: The classes of requests that there are; empty if that is not known.
        now_unix_s: Wall clock.

    Attributes:
        path: As given.
        keyring: As given.
        problem: Why the file cannot be used; None if it can.
        loaded_unix_s: When it was read last with success.
        loaded_count: How often it was.
        refused_count: How often it could not be used.
    """

    def __init__(
        self,
        path: str,
        keyring: Keyring,
        *,
        classes: Collection[str] = (),
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.problem: str | None = None
        self.loaded_unix_s = 0.0
        self.loaded_count = 0
        self.refused_count = 0
        self.keyring = keyring
        self._classes = classes
        self._now_unix_s = now_unix_s
        self._seen = _MISSING
        self._changed: _Signature | None = None

    def load(self) -> None:
        """Read it for the first time.

        Raises:
            KeysFileError: If it cannot be used: nothing is served with half of the keys.
        """
        self._seen = _signature(self.path)
        self._use(load_keys(self.path, self._classes))

    def keys_end(self) -> Iterable[tuple[str, float]]:
        """See `KeyTable.ends`."""
        return self.keyring.table.ends()

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
            self.keyring.pass_time(self._now_unix_s())
        elif signature != self._changed:
            self._changed = signature
        else:
            await self._read(signature)

    async def _read(self, signature: _Signature) -> None:
        try:
            table = await asyncio.to_thread(load_keys, self.path, self._classes)
        except KeysFileError as error:
            problems = error.problems
        else:
            self._seen = signature
            self._use(table)
            return
        self._seen = signature
        self.refused_count += 1
        self.problem = problems[0]
        logger.error(
            "the keys file cannot be used; the keys it had before stay valid",
            extra={
                "event": "keys.refused",
                "problems": list(problems[:PROBLEMS_LOGGED]),
                "count": len(problems),
            },
        )

    def _use(self, table: KeyTable) -> None:
        now_unix_s = self._now_unix_s()
        self.keyring.use(table, now_unix_s)
        self.problem = None
        self.loaded_unix_s = now_unix_s
        self.loaded_count += 1
        logger.info(
            "keys loaded",
            extra={
                "event": "keys.loaded",
                "tenants": len(table.tenants),
                "keys": sum(map(len, table.keys.values())),
            },
        )


def _signature(path: Path) -> _Signature:
    """What changes when the file does; `_MISSING` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return _MISSING
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
