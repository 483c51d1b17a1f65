"""A bound on lines that repeat: one in a while for each key, with the number of those that were left out.

For events that a client, a proxy or an engine can repeat again and again. A replica logs its own changes
once each, without a pace.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

INTERVAL_S = 60.0
KEYS_MAX = 1000
"""Keys that are remembered; a line of one that was forgotten is written once more."""


class _Row(NamedTuple):
    written_s: float
    left_out: int


class LogPace:
    """Decides which lines of one event are written.

    Args:
        interval_s: Time between two lines of a key, in seconds.
        now_s: The local clock; its zero does not matter.
    """

    def __init__(self, interval_s: float = INTERVAL_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._now_s = now_s
        self._rows: dict[str, _Row] = {}

    def due(self, key: str = "") -> int | None:
        """Return the number of lines left out since the last one; None if this one is left out, too."""
        now_s, row = self._now_s(), self._rows.get(key)
        if row is not None and now_s - row.written_s < self._interval_s:
            self._rows[key] = row._replace(left_out=row.left_out + 1)
            return None
        self._rows.pop(key, None)
        self._rows[key] = _Row(now_s, 0)
        if len(self._rows) > KEYS_MAX:
            del self._rows[next(iter(self._rows))]
        return 0 if row is None else row.left_out
