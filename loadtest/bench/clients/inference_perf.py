"""inference-perf, the load client of the Kubernetes community.

Its TTFT goes from before the connection to the first event with text, for requests with more than one
(``inference_perf/reportgen/base.py``). It reads a YAML configuration, so JSON, too, and offline a folder as
tokenizer.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.bench.clients.client import OFFLINE, Install, Load, Report
from loadtest.bench.clients.documents import Document

CONFIGURATION = "inference_perf.yml"
FOLDER = "inference_perf"
REPORT = "summary_lifecycle_metrics.json"

VERSION = "0.7.0"

GROUPS = 2
"""Groups of prompts with a common prefix."""


class InferencePerf:
    """The client."""

    name = "inference-perf"
    install = Install(
        "infperf",
        "inference-perf",
        python=((3, 12), (3, 13)),
        steps=((f"inference-perf=={VERSION}",),),
    )
    variables: Mapping[str, str] = OFFLINE

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """A constant rate of text completions, in groups with a common prefix."""
        configuration = folder / CONFIGURATION
        configuration.write_text(json.dumps(_configured(load, folder), indent=1))
        return [str(program), "--config_file", str(configuration)]

    def read(self, folder: Path) -> Report:
        """Read its summary."""
        document = Document(folder / FOLDER / REPORT)
        ttft = ("successes", "latency", "time_to_first_token")
        tokens = ("successes", "prompt_tokens")
        return Report(
            completed=document.count("successes", "count"),
            failed=document.count("failures", "count"),
            ttft_s=document.seconds(*ttft, "mean"),
            ttft_p50_s=document.seconds(*ttft, "median"),
            ttft_p90_s=document.seconds(*ttft, "p90"),
            prompt_tokens=document.count(*tokens, "total"),
            cached_tokens=document.count(*tokens, "cached"),
            output_tokens=document.count("successes", "output_tokens", "total"),
        )


def _configured(load: Load, folder: Path) -> dict[str, Any]:
    rate = max(1, round(load.rate_per_s))
    return {
        "load": {
            "type": "constant",
            "stages": [{"rate": rate, "duration": max(1, load.requests // rate)}],
            "num_workers": 1,
            "worker_max_concurrency": 16,
        },
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": load.model, "base_url": load.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(load.tokenizer)},
        "data": {
            "type": "shared_prefix",
            "shared_prefix": {
                "num_groups": GROUPS,
                "num_prompts_per_group": max(1, load.requests // GROUPS),
                "system_prompt_len": load.shared_tokens,
                "question_len": load.prompt_tokens - load.shared_tokens,
                "output_len": load.output_tokens,
            },
        },
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
        "storage": {"local_storage": {"path": str(folder / FOLDER)}},
    }
