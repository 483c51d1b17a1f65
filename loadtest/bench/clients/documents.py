"""Reading the JSON that clients write: values are found by their path, and odd ones are refused."""

import json
from pathlib import Path
from typing import Any

from loadtest.bench.clients.client import ReportUnreadable


class Document:
    """A JSON document.

    Args:
        path: Where it is.

    Raises:
        ReportUnreadable: It is not there, or no JSON.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._value: Any = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ReportUnreadable(f"{path.name}: {error}") from error

    def at(self, *keys: str | int) -> Any:
        """Return what is at a path.

        Raises:
            ReportUnreadable: Nothing is.
        """
        value = self._value
        for key in keys:
            try:
                value = value[key]
            except (LookupError, TypeError) as error:
                raise ReportUnreadable(f"{self._path.name} has no {'.'.join(map(str, keys))}") from error
        return value

    def seconds(self, *keys: str | int, unit_s: float = 1.0) -> float | None:
        """Return a time; None where the client has none, as of no request.

        Args:
            keys: Its path.
            unit_s: In which it is told, seconds.

        Raises:
            ReportUnreadable: It is no number.
        """
        value = self.at(*keys)
        return None if value is None else self._number(value, keys) * unit_s

    def count(self, *keys: str | int) -> int:
        """Return a whole number.

        Raises:
            ReportUnreadable: It is no number.
        """
        return round(self._number(self.at(*keys), keys))

    def _number(self, value: Any, keys: tuple[str | int, ...]) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ReportUnreadable(f"{self._path.name}: {'.'.join(map(str, keys))} is no number")
        return float(value)
