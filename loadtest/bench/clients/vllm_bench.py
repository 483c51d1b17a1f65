"""``vllm bench serve``, which comes with vLLM.

Its TTFT goes from before the request, with a new connection if none is idle, to the first event with choices:
the role, which vLLM sends with the first token (``vllm/benchmarks/lib/endpoint_request_func.py``). It reads
prompt and output tokens from ``usage``, and no cached ones.
"""

from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.clients.client import OFFLINE, Install, Load, Report
from loadtest.bench.clients.documents import Document

REPORT = "vllm_bench.json"


class VllmBench:
    """The client; it is installed with the engines (`loadtest.vllm`)."""

    name = "vllm-bench"
    install = Install("vllm", "vllm")
    variables: Mapping[str, str] = OFFLINE

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """Poisson arrivals, prompts of random tokens behind a common start."""
        return [
            *(str(program), "bench", "serve", "--backend", "openai-chat"),
            *("--base-url", load.url, "--endpoint", "/v1/chat/completions"),
            *("--model", load.model, "--tokenizer", str(load.tokenizer)),
            *("--dataset-name", "random", "--random-prefix-len", str(load.shared_tokens)),
            *("--random-input-len", str(load.prompt_tokens - load.shared_tokens)),
            *("--random-output-len", str(load.output_tokens), "--ignore-eos"),
            *("--num-prompts", str(load.requests), "--request-rate", f"{load.rate_per_s:g}"),
            *("--seed", str(load.seed), "--percentile-metrics", "ttft", "--metric-percentiles", "50,90"),
            *("--save-result", "--result-dir", str(folder), "--result-filename", REPORT),
        ]

    def read(self, folder: Path) -> Report:
        """Read the saved result."""
        document = Document(folder / REPORT)
        return Report(
            completed=document.count("completed"),
            failed=document.count("failed"),
            ttft_s=document.seconds("mean_ttft_ms", unit_s=1e-3),
            ttft_p50_s=document.seconds("p50_ttft_ms", unit_s=1e-3),
            ttft_p90_s=document.seconds("p90_ttft_ms", unit_s=1e-3),
            prompt_tokens=document.count("total_input_tokens"),
            output_tokens=document.count("total_output_tokens"),
        )
