"""Made-up results of an ablation."""

from typing import Any

from loadtest.bench.ablation.results import Run
from loadtest.client import Outcome


def run(**differing: Any) -> Run:
    """One run; half of its tokens were reused."""
    figures: dict[str, Any] = {
        "model": "qwen3",
        "arm": "history",
        "round_number": 0,
        "requests": 10,
        "prompt_tokens": 1000,
        "cached_tokens": 500,
        "engine_hit_tokens": 500,
        "ideal_ratio": 0.8,
        "predicted_tokens": 510,
        "error_tokens": 1.0,
        "promised_tokens": 1.0,
        "promised_ratio": 0.0,
        "ttft_mean_s": 0.1,
        "ttft_p50_s": 0.1,
        "ttft_p90_s": 0.2,
        "gateway_cpu_ms": 1.5,
        "duration_s": 3.0,
    }
    return Run(**{**figures, **differing})


def outcome(*, cached: int = 0, predicted: int = 0, ttft_s: float = 0.1) -> Outcome:
    """One answer to a prompt of a thousand tokens."""
    return Outcome(
        ttft_s=ttft_s,
        tpot_s=0.01,
        itl_s_max=0.01,
        total_s=ttft_s + 0.1,
        prompt_tokens=1000,
        cached_tokens=cached,
        output_tokens=8,
        status=200,
        error=None,
        worker="w",
        text="",
        tool_calls=(),
        predicted_tokens=predicted,
    )
