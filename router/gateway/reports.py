"""The takers of requests' results: metrics, log, trace, spans, and the operators' views."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from router.gateway.recent_decisions import RecentDecisions
from router.metrics import Metrics
from router.request_trace import TraceLine
from router.settings import ObservabilitySettings

if TYPE_CHECKING:
    from router.gateway.spans import Spans


KEPT = 20
WINDOW_S = 60


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A request refused at log time ``at_us``; ``flow`` is ``CLASS/TENANT``, or empty if not known yet."""

    at_us: int
    code: str
    flow: str
    retry_after_s: float


class Refusals:
    """The refusals of one replica; ``now_us`` is log time."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._latest: deque[Refusal] = deque(maxlen=KEPT)
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=WINDOW_S)

    def add(self, code: str, flow: str = "", retry_after_s: float = 0.0) -> None:
        """Add one."""
        now_us = self._now_us()
        self._latest.append(Refusal(now_us, code, flow, retry_after_s))
        second = now_us // 1_000_000
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][code] += 1

    def described(self) -> dict[str, Any]:
        """Return counts by code of the last minute, and the latest, the newest first."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The outputs of a process; ``trace_request`` takes lines for replay of requests with a prompt."""

    metrics: Metrics
    request_log: Callable[[dict[str, object]], None]
    trace_request: Callable[[TraceLine], None] | None = None
    spans: "Spans | None" = None


class Reports:
    """Takes the result of each request; ``logs_all`` if the log takes a line of each."""

    def __init__(self, rules: ObservabilitySettings, telemetry: Telemetry, now_us: Callable[[], int]) -> None:
        self.request_log = telemetry.request_log
        self.trace_request = telemetry.trace_request
        self.decisions = RecentDecisions()
        self.refusals = Refusals(now_us)
        self._log_due = 0.0
        self.use(rules)

    def use(self, rules: ObservabilitySettings) -> None:
        """Apply new rules to requests that end from now on."""
        self.rules = rules
        self.logs_all = rules.request_logs and rules.request_log_ratio >= 1.0

    def logs(self, outcome: str) -> bool:
        """Return True if a request that ended like this is logged: of the completed ones, a share is."""
        if not self.rules.request_logs or outcome != "completed":
            return self.rules.request_logs
        self._log_due += self.rules.request_log_ratio
        if self._log_due < 1.0:
            return False
        self._log_due -= 1.0
        return True
