"""Whom this replica sent away lately, for ``GET /queue``: how many for which reason, and the last of them.

Bounded: the newest `KEPT`, and counts by code for each second of the last minute. Metrics count all for ever.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec

KEPT = 20
WINDOW_S = 60


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """One request that was sent away.

    Attributes:
        at_us: When, log time.
        code: ``code`` of the error.
        flow: Whose it was: ``CLASS/TENANT``; empty if that was not known yet.
        retry_after_s: What the client was told; 0 for nothing.
    """

    at_us: int
    code: str
    flow: str
    retry_after_s: float


class Refusals:
    """The refusals of one replica.

    Args:
        now_us: Log time.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._latest: deque[Refusal] = deque(maxlen=KEPT)
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=WINDOW_S)

    def add(self, code: str, flow: str = "", retry_after_s: float = 0.0) -> None:
        """Note one."""
        now_us = self._now_us()
        self._latest.append(Refusal(now_us, code, flow, retry_after_s))
        second = now_us // 1_000_000
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][code] += 1

    def described(self) -> dict[str, Any]:
        """Counts by code of the last minute, and the latest, the newest first."""
        now_us = self._now_us()
        since = now_us // 1_000_000 - WINDOW_S
        counts: Counter[str] = Counter()
        for second, counted in self._seconds:
            if second > since:
                counts += counted
        return {
            "last_minute": dict(sorted(counts.items())),
            "latest": [
                {
                    "age_s": round(max(now_us - refusal.at_us, 0) / 1e6, 3),
                    "code": refusal.code,
                    "flow": refusal.flow or None,
                    "retry_after_s": round(refusal.retry_after_s, 3) or None,
                }
                for refusal in reversed(self._latest)
            ],
        }
