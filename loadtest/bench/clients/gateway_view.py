"""Counts of a gateway for the requests of one client: ``mark``, run the client, ``since(mark)``.

Sums come from ``/metrics`` of the admin API, percentiles of ``GET /decisions`` there, which keeps the newest
ones of one process. The gateway must have no other traffic.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 20.0
DECISIONS_MAX = 500
"""Decisions that the admin API lists at a time."""

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@dataclass(frozen=True, slots=True)
class Mark:
    """State at a moment.

    Attributes:
        sums: Sums of the metrics, by name.
        completed: Requests that generated something and completed.
        left: Requests whose client left.
        cursor: The newest decision.
    """

    sums: dict[str, float]
    completed: int
    failed: int
    left: int
    cursor: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Changes since a mark.

    Attributes:
        completed: Requests that generated something and completed.
        left: Requests whose client left, as some do at the end of their time.
        ttft_s: Mean of the histogram; None if nothing was streamed.
        ttft_p50_s: Of single requests; None if the gateway keeps fewer, like ``ttft_p90_s``.
        prompt_tokens: As engines reported them, like ``cached_tokens`` and ``output_tokens``.
    """

    completed: int
    failed: int
    left: int
    ttft_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class GatewayView:
    """Observer of a gateway at ``admin_url``; a context manager. Methods raise `httpx.HTTPError`."""

    def __init__(self, admin_url: str) -> None:
        self._admin = httpx.Client(base_url=admin_url, trust_env=False, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def worker_urls(self) -> list[str]:
        """Return the URLs of its workers."""
        return [worker["url"] for worker in _json(self._admin, "/workers")["workers"]]

    def mark(self) -> Mark:
        """Read the present state."""
        answer = self._admin.get("/metrics")
        answer.raise_for_status()
        sums: dict[str, float] = {}
        completed = failed = left = 0
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                if sample.name == "cacheway_requests_total" and sample.labels["endpoint"] in GENERATING:
                    if sample.labels["outcome"] == "completed":
                        completed += round(sample.value)
                    elif sample.labels["outcome"] == "client_left":
                        left += round(sample.value)
                    else:
                        failed += round(sample.value)
        cursor = _json(self._admin, "/decisions", limit=1)["cursor"]
        return Mark(sums, completed, failed, left, cursor)

    def since(self, mark: Mark) -> Counted:
        """Return the changes since a mark."""
        now = self.mark()

        def grown(name: str) -> float:
            return now.sums.get(name, 0.0) - mark.sums.get(name, 0.0)

        streamed = grown("cacheway_ttft_seconds_count")
        listed = _json(self._admin, "/decisions", limit=DECISIONS_MAX, after=mark.cursor)["decisions"]
        times_s = [
            decision["ttft_since_arrival_s"]
            for decision in listed
            if decision["endpoint"] in GENERATING and decision["outcome"] == "completed"
        ]
        whole = len(times_s) == streamed
        return Counted(
            completed=now.completed - mark.completed,
            failed=now.failed - mark.failed,
            left=now.left - mark.left,
            ttft_s=grown("cacheway_ttft_seconds_sum") / streamed if streamed else None,
            ttft_p50_s=percentile(times_s, 50) if whole else None,
            ttft_p90_s=percentile(times_s, 90) if whole else None,
            prompt_tokens=round(grown("cacheway_prompt_tokens_total")),
            cached_tokens=round(grown("cacheway_reported_cached_tokens_total")),
            output_tokens=round(grown("cacheway_output_tokens_total")),
        )


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile as NumPy and most clients do: in a straight line between the two nearest values."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _json(client: httpx.Client, path: str, **parameters: int) -> Any:
    answer = client.get(path, params=parameters)
    answer.raise_for_status()
    return answer.json()
