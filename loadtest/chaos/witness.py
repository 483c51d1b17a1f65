"""Requests that came to engines: each writes down the id of every request that brings work.

So repeated work is seen. A line without its end is left for the next look.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path


class Observer:
    """Reader of new lines in the engines' journals, with the role of each."""

    def __init__(self, journals: Mapping[Path, str]) -> None:
        self._journals = journals
        self._read_bytes = dict.fromkeys(journals, 0)

    def look(self) -> dict[str, Counter[str]]:
        """Number of arrivals of each new id, by role."""
        came: dict[str, Counter[str]] = {}
        for path, role in self._journals.items():
            if not path.exists():
                continue
            with path.open("rb") as journal:
                journal.seek(self._read_bytes[path])
                whole, end, _ = journal.read().rpartition(b"\n")
            self._read_bytes[path] += len(whole) + len(end)
            for line in whole.splitlines():
                came.setdefault(line.decode("latin-1"), Counter())[role] += 1
        return came
