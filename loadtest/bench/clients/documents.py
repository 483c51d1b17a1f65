"""Reading the JSON that clients write: values are found by their path, and odd ones are refused."""

import json
from pathlib import Path
from typing import Any

from loadtest.bench.clients.client import ReportUnreadable


class Document:
    """A JSON document; each method raises `ReportUnreadable` if the file or the value is not as expected."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._value: Any = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ReportUnreadable(f"{path.name}: {error}") from error

    def at(self, *keys: str | int) -> Any:
        """Return the value at a path."""
        value = self._value
        for key in keys:
            try:
                value = value[key]
            except (LookupError, TypeError) as error:
                raise ReportUnreadable(f"{self._path.name} has no {'.'.join(map(str, keys))}") from error
        return value

    def seconds(self, *keys: str | int, unit_s: float = 1.0) -> float | None:
        """Return a time in seconds from one in units of ``unit_s``; None where the client has none."""
        value = self.at(*keys)
        return None if value is None else self._number(value, keys) * unit_s

    def count(self, *keys: str | int) -> int:
        """Return a whole number."""
        return round(self._number(self.at(*keys), keys))

    def _number(self, value: Any, keys: tuple[str | int, ...]) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ReportUnreadable(f"{self._path.name}: {'.'.join(map(str, keys))} is no number")
        return float(value)
