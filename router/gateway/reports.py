"""Where it is told what became of requests: metrics, log, trace, spans, and the views of people."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.gateway.recent_decisions import RecentDecisions
from router.gateway.refusals import Refusals
from router.gateway.tracer import Tracer
from router.metrics import Metrics
from router.request_trace import TraceLine
from router.settings import ObservabilitySettings

if TYPE_CHECKING:
    from router.gateway.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What a process has for it.

    Attributes:
        metrics: Counts.
        request_log: Takes one line per request.
        trace_request: Takes one line per request with a prompt, for replay; None while that is off.
        spans: Makes the spans of requests; None while tracing is off.
    """

    metrics: Metrics
    request_log: Callable[[dict[str, object]], None]
    trace_request: Callable[[TraceLine], None] | None = None
    spans: "Spans | None" = None


class Reports:
    """Takes in what became of each request.

    Args:
        rules: Which requests are logged.
        telemetry: What there is.
        tracer: Notes every request for replay; None if nobody asked for that.
        now_us: Log time.

    Attributes:
        request_log: See `Telemetry`.
        spans: See `Telemetry`.
        tracer: As given.
        decisions: The newest decisions.
        refusals: The newest refusals.
        rules: Which requests are logged; others take their place when settings change.
    """

    def __init__(
        self,
        rules: ObservabilitySettings,
        telemetry: Telemetry,
        tracer: Tracer | None,
        now_us: Callable[[], int],
    ) -> None:
        self.request_log = telemetry.request_log
        self.spans = telemetry.spans
        self.tracer = tracer
        self.decisions = RecentDecisions()
        self.refusals = Refusals(now_us)
        self.rules = rules
        self._log_due = 0.0

    def log_completed(self) -> bool:
        """Whether the request that was just completed is one of those that are logged."""
        self._log_due += self.rules.request_log_ratio
        if self._log_due < 1.0:
            return False
        self._log_due -= 1.0
        return True
