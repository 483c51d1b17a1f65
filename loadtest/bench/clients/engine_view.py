"""Counters of vLLM engines: the third witness, beside client and gateway.

``vllm:prefix_cache_queries_total`` and ``vllm:prefix_cache_hits_total`` are in tokens of all requests; the
first counts every prompt token once (vLLM: ``v1/core/kv_cache_manager.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class EngineTokens:
    """Sums over all engines: tokens looked up in the prefix cache, and found."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def of(cls, urls: Sequence[str]) -> Self:
        """Read them; `httpx.HTTPError` if an engine does not answer."""
        names = {"vllm:prefix_cache_queries_total": 0.0, "vllm:prefix_cache_hits_total": 0.0}
        for url in urls:
            answer = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S, trust_env=False)
            answer.raise_for_status()
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    if sample.name in names:
                        names[sample.name] += sample.value
        asked, had = names.values()
        return cls(round(asked), round(had))

    def __sub__(self, before: "EngineTokens") -> "EngineTokens":
        return EngineTokens(
            self.prompt_tokens - before.prompt_tokens, self.cached_tokens - before.cached_tokens
        )
