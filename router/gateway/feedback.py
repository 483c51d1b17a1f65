"""What answers teach (`policies.Feedback`), with a line in the log when a worker has lost its cache."""

import logging

import policies
from policies import Attempt, RequestFacts, Usage

logger = logging.getLogger(__name__)


class Feedback(policies.Feedback):
    """Turns answers into operations."""

    def answered(
        self,
        request: RequestFacts,
        attempt: Attempt,
        usage: Usage,
        ttft_s: float | None,
        now_us: int,
        decode_s: float = 0.0,
    ) -> bool:
        """Learn from a complete answer, and log a flushed cache."""
        flushed = super().answered(request, attempt, usage, ttft_s, now_us, decode_s)
        if flushed:
            logger.warning(
                "worker has lost its cache",
                extra={"event": "worker.flushed", "worker_id": attempt.worker_id},
            )
        return flushed
