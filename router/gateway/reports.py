"""The takers of requests' results: metrics, log, trace, spans, and the operators' views."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.gateway.recent_decisions import RecentDecisions
from router.gateway.refusals import Refusals
from router.metrics import Metrics
from router.request_trace import TraceLine
from router.settings import ObservabilitySettings

if TYPE_CHECKING:
    from router.gateway.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The outputs of a process.

    Attributes:
        request_log: Takes one line per request.
        trace_request: Takes one line per request with a prompt, for replay; None while that is off.
        spans: None while tracing is off.
    """

    metrics: Metrics
    request_log: Callable[[dict[str, object]], None]
    trace_request: Callable[[TraceLine], None] | None = None
    spans: "Spans | None" = None


class Reports:
    """Takes the result of each request. New ``rules`` replace the old when settings change."""

    def __init__(
        self,
        rules: ObservabilitySettings,
        telemetry: Telemetry,
        now_us: Callable[[], int],
    ) -> None:
        self.request_log = telemetry.request_log
        self.spans = telemetry.spans
        self.trace_request = telemetry.trace_request
        self.decisions = RecentDecisions()
        self.refusals = Refusals(now_us)
        self.rules = rules
        self._log_due = 0.0

    def log_completed(self) -> bool:
        """Return True if the request just completed is in the logged share."""
        self._log_due += self.rules.request_log_ratio
        if self._log_due < 1.0:
            return False
        self._log_due -= 1.0
        return True
