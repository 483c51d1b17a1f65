"""Secrets in files, which keep them off command lines and environments.

    server.api_key_file, fleet.worker_api_key_file     read at the start, and again when they change
    shared.redis_url_file                              read at the start

A file holds one value; a line break at its end does not count. At the start the values replace those of the
settings that they stand for. A changed key replaces the one before within two seconds; requests in flight go
on. A new connection to Redis uses the old address: servers accept the old password and the new one while
replicas are replaced.
"""

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr, TypeAdapter, ValidationError

from router.errors import SettingsError
from router.settings import Settings
from router.tenants import FileWatch, KeysFileError
from router.values import RedisUrl, Secret

BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Kind:
    """A setting whose value may be in a file; the file's setting has its name with ``_file`` at the end."""

    section: str
    name: str
    values: TypeAdapter[Any]


_KINDS = (
    _Kind("server", "api_key", TypeAdapter(Secret)),
    _Kind("fleet", "worker_api_key", TypeAdapter(Secret)),
    _Kind("shared", "redis_url", TypeAdapter(RedisUrl)),
)


def with_secret_files(settings: Settings) -> Settings:
    """Return the settings with the values of the secret files; raise SettingsError if one is unusable."""
    found: dict[str, Any] = {}
    problems: list[str] = []
    for kind in _KINDS:
        section = getattr(settings, kind.section)
        path = getattr(section, f"{kind.name}_file")
        if path:
            try:
                value = _read(Path(path), kind.values)
            except KeysFileError as error:
                problems += [f"{kind.section}.{kind.name}_file: {why}" for why in error.problems]
            else:
                # A copy that is not judged again, since a key and its file are not given both.
                found[kind.section] = copy(section)
                vars(found[kind.section])[kind.name] = value
    if problems:
        raise SettingsError(problems)
    return settings.model_copy(update=found)


class SecretWatch(FileWatch[bytes]):
    """Watches the file of one key; ``use`` gets the key, at once and whenever it changes."""

    def __init__(
        self, path: str, use: Callable[[bytes], None], *, now_unix_s: Callable[[], float] = time.time
    ) -> None:
        super().__init__(path, "secret", now_unix_s)
        self._given_to = use

    def _read(self) -> bytes:
        value: SecretStr = _read(self.path, _KINDS[0].values)
        return value.get_secret_value().encode()

    def _use(self, table: bytes, now_unix_s: float) -> Mapping[str, int]:
        self._given_to(table)
        return {}


def _read(path: Path, values: TypeAdapter[Any]) -> Any:
    """Return the content of a file; raise KeysFileError, without quoting it, if it cannot be used."""
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        text = content.decode().strip()
    except OSError as error:
        raise KeysFileError([f"{path} cannot be read: {(error.strerror or str(error)).lower()}"]) from error
    except UnicodeDecodeError:
        raise KeysFileError([f"{path} is not text"]) from None
    if not text or len(content) > BYTES_MAX:
        raise KeysFileError([f"{path} is {'empty' if not text else 'too long'}"])
    try:
        return values.validate_python(text)
    except ValidationError as error:
        raise KeysFileError([f"{path}: {error.errors(include_input=False)[0]['ctx']['error']}"]) from None
