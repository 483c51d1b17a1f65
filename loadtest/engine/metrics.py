"""Counters of an engine, and its ``/metrics`` with the names and labels of SGLang's and vLLM's exporters."""

from collections import deque
from collections.abc import Iterable

from loadtest.engine.handover import Counters as HandoverCounters
from loadtest.engine.histogram import Histogram, sample
from loadtest.engine.job import Job
from loadtest.engine.kv_metrics import sglang_lines, vllm_lines
from loadtest.engine.scheduler import Observer, Scheduler
from loadtest.engine.settings import EngineSettings

_ABORTED_MAX = 256
"""Ids of the jobs that were aborted last are kept, for tests."""


class Counters(Observer):
    """All counters; the scheduler's `Observer`."""

    def __init__(self, started_unix_s: float = 0.0) -> None:
        self._started_unix_s = started_unix_s
        self.requests = 0
        self.finished: dict[str, int] = {}
        self.aborted_ids: deque[str] = deque(maxlen=_ABORTED_MAX)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.host_tokens = 0
        self.pool_tokens = 0
        self.generated_tokens = 0
        self.ttft = Histogram()
        self.itl = Histogram()
        self.e2e = Histogram()
        self.queue = Histogram()
        self.prefill = Histogram()
        self.decode = Histogram()

    def left(self, job: Job, reason: str, now_s: float) -> None:
        """Count a job that leaves."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
        if reason == "abort":
            self.aborted_ids.append(job.id)
        self.generated_tokens += job.emitted_tokens
        if not job.was_admitted:
            return
        self.prompt_tokens += job.prompt_tokens
        self.cached_tokens += job.cached_tokens
        self.host_tokens += job.lease.host_tokens
        self.pool_tokens += job.lease.pool_tokens
        self.queue.observe(job.started_s - job.arrived_s)
        if job.context_tokens < job.prompt_tokens:
            return
        self.ttft.observe(job.first_s - job.arrived_s)
        self.prefill.observe(job.first_s - job.started_s)
        if job.emitted_tokens > 1:
            decode_s = now_s - job.first_s
            self.decode.observe(decode_s)
            self.itl.observe(decode_s / (job.emitted_tokens - 1), job.emitted_tokens - 1)
        if reason != "abort":
            self.e2e.observe(now_s - job.arrived_s)

    def exposition(
        self, settings: EngineSettings, scheduler: Scheduler, handover: HandoverCounters | None
    ) -> bytes:
        """The text of ``/metrics``."""
        lines = self._vllm if settings.dialect == "vllm" else self._sglang
        process = (
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started_unix_s}",
        )
        return ("\n".join((*process, *lines(settings, scheduler, handover))) + "\n").encode()

    def _sglang(
        self, settings: EngineSettings, scheduler: Scheduler, handover: HandoverCounters | None
    ) -> Iterable[str]:
        labels = f'model_name="{settings.models[0]}"'
        hit_ratio = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        ranks, rank_tokens = scheduler.ranks, settings.cache_tokens // settings.dp_ranks
        for name, values in (
            ("num_running_reqs", [rank.running for rank in ranks]),
            ("num_queue_reqs", [len(rank.waiting) for rank in ranks]),
            ("num_used_tokens", [rank.cache.used_tokens for rank in ranks]),
            ("max_total_num_tokens", [rank_tokens] * len(ranks)),
        ):
            yield f"# TYPE sglang:{name} gauge"
            for number, value in enumerate(values):
                ranked = f'{labels},dp_rank="{number}"' if len(ranks) > 1 else labels
                yield f"sglang:{name}{{{ranked}}} {value}"
        yield from sample("sglang:cache_hit_rate", "gauge", labels, hit_ratio)
        for name, value in (
            ("prompt_tokens_total", self.prompt_tokens),
            ("generation_tokens_total", self.generated_tokens),
            ("num_requests_total", sum(self.finished.values())),
            ("num_aborted_requests_total", self.finished.get("abort", 0)),
        ):
            yield from sample(f"sglang:{name}", "counter", labels, value)
        yield from sglang_lines(
            labels,
            scheduler,
            handover,
            cached=self.cached_tokens,
            host=self.host_tokens,
            pool=self.pool_tokens,
        )
        yield from self.ttft.lines("sglang:time_to_first_token_seconds", labels)
        yield from self.itl.lines("sglang:inter_token_latency_seconds", labels)
        yield from self.e2e.lines("sglang:e2e_request_latency_seconds", labels)
        yield from self.queue.lines("sglang:queue_time_seconds", labels)

    def _vllm(
        self, settings: EngineSettings, scheduler: Scheduler, handover: HandoverCounters | None
    ) -> Iterable[str]:
        labels = f'engine="0",model_name="{settings.models[0]}"'
        ranks, rank_tokens = scheduler.ranks, settings.cache_tokens // settings.dp_ranks
        for name, values in (
            ("num_requests_running", [rank.running for rank in ranks]),
            ("num_requests_waiting", [len(rank.waiting) for rank in ranks]),
            ("kv_cache_usage_perc", [rank.cache.used_tokens / rank_tokens for rank in ranks]),
        ):
            yield f"# TYPE vllm:{name} gauge"
            for number, value in enumerate(values):
                yield f'vllm:{name}{{engine="{number}",model_name="{settings.models[0]}"}} {value}'
        for name, value in (
            ("prompt_tokens_total", self.prompt_tokens),
            ("generation_tokens_total", self.generated_tokens),
            ("num_preemptions_total", 0),
        ):
            yield from sample(f"vllm:{name}", "counter", labels, value)
        yield from vllm_lines(
            labels,
            scheduler,
            handover,
            prompt=self.prompt_tokens,
            cached=self.cached_tokens,
            host=self.host_tokens,
            pool=self.pool_tokens,
        )
        name = "vllm:request_success_total"
        yield f"# TYPE {name} counter"
        for reason in ("stop", "length", "abort"):
            # vLLM counts a forced tool call as a stop.
            counted = self.finished.get(reason, 0) + (reason == "stop") * self.finished.get("tool_calls", 0)
            yield f'{name}{{{labels},finished_reason="{reason}"}} {counted}'
        # vLLM adds up the blocks of its data-parallel ranks, but not their tokens (v1/engine/core_client.py).
        config = {
            "block_size": settings.block_tokens,
            "num_gpu_blocks": settings.cache_tokens // settings.block_tokens,
            "kv_cache_size_tokens": settings.cache_tokens // settings.dp_ranks,
        }
        labelled = ",".join(f'{key}="{value}"' for key, value in config.items())
        yield from sample("vllm:cache_config_info", "gauge", f'engine="0",{labelled}', 1)
        yield from self.ttft.lines("vllm:time_to_first_token_seconds", labels)
        yield from self.itl.lines("vllm:inter_token_latency_seconds", labels)
        yield from self.e2e.lines("vllm:e2e_request_latency_seconds", labels)
        yield from self.queue.lines("vllm:request_queue_time_seconds", labels)
        yield from self.prefill.lines("vllm:request_prefill_time_seconds", labels)
        yield from self.decode.lines("vllm:request_decode_time_seconds", labels)
