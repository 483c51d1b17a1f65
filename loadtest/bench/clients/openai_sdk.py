"""The OpenAI SDK, asynchronous, many streams at a time (`loadtest.bench.clients.sdk_streams`).

Its TTFT goes from before ``create``, so with the connection, to the first chunk with content.
"""

from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.clients.client import Install, Load, Report
from loadtest.bench.clients.documents import Document

REPORT = "openai_sdk.json"
PROGRAM = Path(__file__).with_name("sdk_streams.py")


class OpenAiSdk:
    """The client; it is part of the extra ``dev``."""

    name = "openai-sdk"
    install = Install("", "python", module="openai")
    variables: Mapping[str, str] = {}

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """A closed loop of chats with a common prefix."""
        return [
            *(str(program), str(PROGRAM), "--url", load.url, "--model", load.model),
            *("--requests", str(load.requests), "--concurrency", str(load.concurrency)),
            *("--shared-words", str(load.shared_tokens // 4)),
            *("--words", str((load.prompt_tokens - load.shared_tokens) // 4)),
            *("--output-tokens", str(load.output_tokens), "--seed", str(load.seed)),
            *("--report", str(folder / REPORT)),
        ]

    def read(self, folder: Path) -> Report:
        """Read what the program wrote."""
        document = Document(folder / REPORT)
        return Report(
            completed=document.count("completed"),
            failed=document.count("failed"),
            ttft_s=document.seconds("ttft_s", "mean"),
            ttft_p50_s=document.seconds("ttft_s", "p50"),
            ttft_p90_s=document.seconds("ttft_s", "p90"),
            prompt_tokens=document.count("prompt_tokens"),
            cached_tokens=document.count("cached_tokens"),
            output_tokens=document.count("output_tokens"),
        )
