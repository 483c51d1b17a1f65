"""Where this replica had requests prefilled lately and why, for ``GET /offload`` and the metrics.

Bounded: the newest `KEPT`, and counts by reason for each second of the last minute. Only requests for which
two sites were compared are noted; in a fleet of one site there are none.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec

from policies import OffloadVerdict

KEPT = 50
WINDOW_S = 60


class Offloaded(msgspec.Struct, frozen=True, gc=False):
    """One decision.

    Attributes:
        at_us: When, log time.
        request_id: Of which request.
        verdict: What was decided, and why.
    """

    at_us: int
    request_id: str
    verdict: OffloadVerdict


class _Second:
    """What was decided in one second."""

    __slots__ = ("at_s", "kv_bytes", "reasons", "remote")

    def __init__(self, at_s: int) -> None:
        self.at_s = at_s
        self.reasons: Counter[str] = Counter()
        self.remote = 0
        self.kv_bytes = 0


class Offloads:
    """The decisions of one replica.

    Args:
        now_us: Log time.
        counted: Told the reason of each.
    """

    def __init__(self, now_us: Callable[[], int], counted: Callable[[str], None] = lambda _: None) -> None:
        self._now_us = now_us
        self._counted = counted
        self._latest: deque[Offloaded] = deque(maxlen=KEPT)
        self._seconds: deque[_Second] = deque(maxlen=WINDOW_S)

    def add(self, request_id: str, verdict: OffloadVerdict) -> None:
        """Note one that was carried out."""
        now_us = self._now_us()
        self._counted(verdict.reason.value)
        self._latest.append(Offloaded(now_us, request_id, verdict))
        at_s = now_us // 1_000_000
        if not self._seconds or self._seconds[-1].at_s != at_s:
            self._seconds.append(_Second(at_s))
        second = self._seconds[-1]
        second.reasons[verdict.reason.value] += 1
        if verdict.remote:
            second.remote += 1
            second.kv_bytes += max(verdict.kv_bytes, 0)

    def described(self) -> dict[str, Any]:
        """The last minute added up, and the latest decisions, the newest first."""
        now_us = self._now_us()
        since_s = now_us // 1_000_000 - WINDOW_S
        seconds = [second for second in self._seconds if second.at_s > since_s]
        reasons: Counter[str] = Counter()
        for second in seconds:
            reasons += second.reasons
        return {
            "last_minute": {
                "requests": reasons.total(),
                "remote": sum(second.remote for second in seconds),
                "kv_bytes": sum(second.kv_bytes for second in seconds),
                "reasons": dict(sorted(reasons.items())),
            },
            "latest": [_described(each, now_us) for each in reversed(self._latest)],
        }


def _described(decided: Offloaded, now_us: int) -> dict[str, Any]:
    verdict = decided.verdict
    return {
        "age_s": round(max(now_us - decided.at_us, 0) / 1e6, 3),
        "request_id": decided.request_id,
        "remote": verdict.remote,
        "site": verdict.site or None,
        "reason": verdict.reason.value,
        "why": explained(verdict),
        "threshold_tokens": verdict.threshold_tokens or None,
        "home": None
        if verdict.local_s < 0
        else {
            "uncached_tokens": verdict.uncached_local,
            "ttft_s": round(verdict.local_s, 4),
            "others_lose_s": round(verdict.local_others_s, 4),
        },
        "elsewhere": {
            "link": verdict.link,
            "link_state": verdict.state.value,
            "utilisation": round(verdict.utilisation, 4),
            "uncached_tokens": verdict.uncached_remote,
            "kv_bytes": verdict.kv_bytes if verdict.kv_bytes >= 0 else None,
            "ttft_s": round(verdict.remote_s, 4),
            "link_s": round(verdict.link_s, 4),
            "wait_s": round(verdict.wait_s, 4),
            "others_lose_s": round(verdict.remote_others_s, 4),
        },
    }


def explained(verdict: OffloadVerdict) -> str:
    """One decision in a sentence, in tokens, seconds and bytes."""
    where = f"prefilled {'over ' + verdict.link if verdict.remote else 'at home'} ({verdict.reason.value})"
    home = (
        "nobody prefills at home"
        if verdict.local_s < 0
        else f"{verdict.uncached_local:,} uncached tokens take {verdict.local_s:.3f} s at home"
    )
    weight = f"{verdict.kv_bytes / 1e6:,.1f} MB of KV" if verdict.kv_bytes >= 0 else "KV of unknown weight"
    limit = f", threshold {verdict.threshold_tokens:,}" if verdict.threshold_tokens else ""
    return (
        f"{where}: {home}; {verdict.uncached_remote:,} take {verdict.remote_s:.3f} s there, "
        f"{verdict.link_s:.3f} s of it for {weight} on a link that is {verdict.state.value} and "
        f"{verdict.utilisation:.0%} full{limit}"
    )
