"""What logging and counting cost per request: ``python -m loadtest.bench.observability``.

With ``PROMETHEUS_MULTIPROC_DIR=$(mktemp -d)`` in front it measures the way of several processes.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from router.logs import Logs
from router.metric_families import of_kind
from router.metrics import Metrics

REQUEST_LINE: dict[str, object] = {
    "event": "request.finished",
    "request_id": "req-0123456789abcdef01234567",
    "endpoint": "/v1/chat/completions",
    "client": "10.0.0.1",
    "status": 200,
    "outcome": "completed",
    "duration_s": 1.234567,
    "request_bytes": 4096,
    "answer_bytes": 20480,
    "attempts": 1,
    "model": "mimo-v2.5-pro",
    "stream": True,
    "worker_id": "10.0.0.1:8000",
    "reason": "affinity",
    "cached_tokens": 1024,
    "uncached_tokens": 22,
    "estimated_ttft_s": 0.123456,
    "ttft_s": 0.2,
}


@dataclass(frozen=True, slots=True)
class Usage:
    """An answer's usage."""

    prompt_tokens: int = 1000
    cached_tokens: int | None = 900
    completion_tokens: int | None = 100


def cpu_us(call: Callable[[], object], repeats: int = 10_000, runs: int = 5) -> float:
    """CPU of one call in microseconds, all threads: the median of several runs."""
    figures = []
    for _ in range(runs):
        start_ns = time.process_time_ns()
        for _ in range(repeats):
            call()
        time.sleep(0.05)  # the writer's thread belongs to the price
        figures.append((time.process_time_ns() - start_ns) / repeats / 1000)
    return sorted(figures)[runs // 2]


def main() -> None:
    """Print the figures."""
    with open(os.devnull, "wb") as sink:  # noqa: PTH123 - a device, not a path
        logs = Logs("info", sink.fileno())
        print(f"request line          {cpu_us(lambda: logs.request_log(REQUEST_LINE)):8.2f} µs")
        logs.close()
    metrics = Metrics("bench", multiprocess_dir=os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
    usage = Usage()

    def request() -> None:
        metrics.decided("expected_cost", "affinity", 2e-5)
        metrics.answered(True, 0.1, 0.01, 1.0, 1, 896, usage)  # noqa: FBT003 - as the exchange calls it
        metrics.finished("/v1/chat/completions", "completed", 1.1, 4096, 20480)

    print(f"metrics of a request  {cpu_us(request):8.2f} µs")
    print(f"flush                 {cpu_us(metrics.flush, 100):8.2f} µs")
    of_workers = [family for family in of_kind("worker") if family.labels == ("worker",)]
    metrics.readers.append(lambda: [(family, (f"w{i}",), 1.0) for i in range(100) for family in of_workers])
    print(f"scrape, 100 workers   {cpu_us(metrics.exposition, 20):8.2f} µs")


if __name__ == "__main__":
    main()
