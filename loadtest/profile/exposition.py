"""Counters of an engine's ``/metrics``: the names of SGLang's and of vLLM's exporters, read into one form.

    sglang:time_to_first_token_seconds, sglang:queue_time_seconds          prefill = the one less the other
    vllm:request_prefill_time_seconds                                      prefill

Values of several labels (ranks, models) are added up. Values that an engine does not export are NaN.
"""

import math
import re
from dataclasses import dataclass, fields

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^\n]*\})?[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

SAMPLES_MAX = 200_000
"""Lines that are read; engines have a few thousand."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the engine's start; ``running`` and ``waiting`` are of now.

    Attributes:
        requests: Answers that have begun.
        prompt_tokens: Tokens of all prompts; ``cached_tokens`` of them were reused.
        prefill_s: Seconds of prefill, of all requests together, without their queue.
        gaps: Gaps between two tokens, and ``gaps_s`` their sum.
    """

    requests: float
    prompt_tokens: float
    cached_tokens: float
    prefill_s: float
    gaps: float
    gaps_s: float
    running: float
    waiting: float

    def since(self, before: "Counts") -> "Counts":
        """Difference of two readings; ``running`` and ``waiting`` are means of both."""
        values = {
            field.name: getattr(self, field.name) - getattr(before, field.name) for field in fields(Counts)
        }
        return Counts(
            **values
            | {
                "running": (self.running + before.running) / 2,
                "waiting": (self.waiting + before.waiting) / 2,
            }
        )


def read_samples(text: str) -> dict[str, float]:
    """Add up the samples of each name, over all labels."""
    sums: dict[str, float] = {}
    for number, found in enumerate(_SAMPLE.finditer(text)):
        if number == SAMPLES_MAX:
            break
        try:
            value = float(found.group(3))
        except ValueError:
            continue
        if math.isfinite(value):
            sums[found.group(1)] = sums.get(found.group(1), 0.0) + value
    return sums


def read_labels(text: str, name: str) -> dict[str, str]:
    """Labels of the first sample of a name; empty without one."""
    for found in _SAMPLE.finditer(text):
        if found.group(1) == name:
            return dict(_LABEL.findall(found.group(2) or ""))
    return {}


def read_counts(text: str) -> Counts:
    """Read the counters of either engine."""
    of = read_samples(text)

    def first(*names: str) -> float:
        return next((of[name] for name in names if name in of), math.nan)

    ttft_s = first("sglang:time_to_first_token_seconds_sum")
    prefill_s = first("vllm:request_prefill_time_seconds_sum")
    if math.isnan(prefill_s):
        prefill_s = ttft_s - first("sglang:queue_time_seconds_sum")
    return Counts(
        requests=first("vllm:request_prefill_time_seconds_count", "sglang:time_to_first_token_seconds_count"),
        prompt_tokens=first("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
        cached_tokens=first("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
        prefill_s=prefill_s,
        gaps=first(
            "vllm:inter_token_latency_seconds_count",
            "vllm:time_per_output_token_seconds_count",
            "sglang:inter_token_latency_seconds_count",
        ),
        gaps_s=first(
            "vllm:inter_token_latency_seconds_sum",
            "vllm:time_per_output_token_seconds_sum",
            "sglang:inter_token_latency_seconds_sum",
        ),
        running=first("vllm:num_requests_running", "sglang:num_running_reqs"),
        waiting=first("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    )
