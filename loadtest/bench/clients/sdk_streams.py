"""Streams with the OpenAI SDK, and their times; a program that needs the SDK alone.

    python loadtest/bench/clients/sdk_streams.py --url http://127.0.0.1:30000 --model tiny --concurrency 64

One loop per concurrent request sends chats with a common start and an end of their own.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
from openai.resources.chat import AsyncCompletions
from openai.types import CompletionUsage


@dataclass(slots=True)
class Seen:
    """Results of the requests.

    Attributes:
        ttft_s: To the first content, of each that completed and had any.
        completed: Requests that ended with their usage, to which the token counts belong.
    """

    ttft_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    completed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, ttft_s: float | None, usage: CompletionUsage) -> None:
        """Count a request that completed."""
        self.completed += 1
        if ttft_s is not None:
            self.ttft_s.append(ttft_s)
        self.prompt_tokens += usage.prompt_tokens
        self.output_tokens += usage.completion_tokens
        details = usage.prompt_tokens_details
        self.cached_tokens += (details.cached_tokens or 0) if details else 0

    def told(self) -> dict[str, object]:
        """All of it, for a file."""
        deciles = statistics.quantiles(self.ttft_s, n=10, method="inclusive") if len(self.ttft_s) > 1 else []
        return {
            "completed": self.completed,
            "failed": len(self.errors),
            "errors": self.errors[:10],
            "ttft_s": {
                "mean": statistics.fmean(self.ttft_s) if self.ttft_s else None,
                "p50": deciles[4] if deciles else None,
                "p90": deciles[8] if deciles else None,
            },
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
        }


async def stream(api: AsyncCompletions, options: argparse.Namespace, prompt: str, seen: Seen) -> None:
    """Make one request, and read its stream to the end."""
    began_s = time.perf_counter()
    ttft_s: float | None = None
    usage: CompletionUsage | None = None
    try:
        chunks = await api.create(
            model=options.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=options.output_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        async for chunk in chunks:
            if ttft_s is None and chunk.choices and chunk.choices[0].delta.content:
                ttft_s = time.perf_counter() - began_s
            usage = chunk.usage or usage
    except openai.OpenAIError as error:
        seen.errors.append(f"{type(error).__name__}: {error}")
        return
    if usage is None:
        seen.errors.append("the stream ended without usage")
    else:
        seen.add(ttft_s, usage)


async def run(options: argparse.Namespace) -> Seen:
    """Make all requests."""
    chance = random.Random(options.seed)
    start = _words(chance, options.shared_words)
    prompts = iter([f"{start} {_words(chance, options.words)}" for _ in range(options.requests)])
    seen = Seen()
    base_url = f"{options.url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=options.api_key, max_retries=0) as client:
        # The SDK imports what it needs with the first call, which takes longer than a token.
        await client.models.list()
        api = client.chat.completions

        async def loop(left: Iterator[str]) -> None:
            for prompt in left:
                await stream(api, options, prompt, seen)

        await asyncio.gather(*(loop(prompts) for _ in range(options.concurrency)))
    return seen


def _words(chance: random.Random, count: int) -> str:
    return " ".join(f"{chance.randrange(16**6):06x}" for _ in range(count))


def main() -> int:
    """Run, and write the report; the status is 1 if a request failed."""
    parser = argparse.ArgumentParser(description="Streams with the OpenAI SDK.")
    parser.add_argument("--url", required=True, help="of the gateway, without /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--shared-words", type=int, default=32, help="with which all prompts start")
    parser.add_argument("--words", type=int, default=64, help="that follow, of each prompt its own")
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="a file [standard output]")
    options = parser.parse_args()
    seen = asyncio.run(run(options))
    report = json.dumps(seen.told(), indent=1)
    if options.report:
        options.report.write_text(report)
    else:
        print(report)
    return 1 if seen.errors else 0


if __name__ == "__main__":
    sys.exit(main())
