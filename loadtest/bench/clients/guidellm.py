"""guidellm, vLLM's own load client.

Its TTFT goes from the first byte of the request, so without the connection, to the first event with text
(``guidellm/backends/openai/http.py``): half of a character is not its first. It counts from the usage of
every event. On a busy machine it sometimes ends without its last request, though that is answered.
"""

from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.clients.client import OFFLINE, Install, Load, Report
from loadtest.bench.clients.documents import Document

REPORT = "guidellm.json"

VERSION = "0.8.1"

TORCH = "2.13.0"
"""Comes first, so that pip's own configuration decides which build of it; else guidellm brings CUDA's."""


class Guidellm:
    """The client."""

    name = "guidellm"
    install = Install("guidellm", "guidellm", steps=((f"torch=={TORCH}",), (f"guidellm=={VERSION}",)))
    variables: Mapping[str, str] = OFFLINE

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """A closed loop, synthetic text of which nothing is shared."""
        return [
            *(str(program), "run", "--disable-console-interactive"),
            *("--backend", f"kind=openai_http,target={load.url},model={load.model}"),
            *("--profile", f"kind=concurrent,streams={load.concurrency}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
            *("--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"),
            "--data",
            f"kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}",
            *("--seed", f"kind=static,value={load.seed}"),
            *("--output", f"kind=json,path={folder / REPORT}"),
        ]

    def read(self, folder: Path) -> Report:
        """Read the first benchmark of its JSON."""
        document = Document(folder / REPORT)
        metrics = ("benchmarks", 0, "metrics")
        ttft = (*metrics, "time_to_first_token_ms", "successful")
        completed = document.at("benchmarks", 0, "requests", "successful")
        return Report(
            completed=document.count(*metrics, "request_totals", "successful"),
            failed=document.count(*metrics, "request_totals", "errored"),
            ttft_s=document.seconds(*ttft, "mean", unit_s=1e-3),
            ttft_p50_s=document.seconds(*ttft, "median", unit_s=1e-3),
            ttft_p90_s=document.seconds(*ttft, "percentiles", "p90", unit_s=1e-3),
            prompt_tokens=document.count(*metrics, "prompt_token_count", "successful", "total_sum"),
            cached_tokens=sum(request.get("cached_tokens") or 0 for request in completed),
            output_tokens=document.count(*metrics, "output_token_count", "successful", "total_sum"),
            unfinished=document.count("benchmarks", 0, "scheduler_state", "processing_requests"),
        )
