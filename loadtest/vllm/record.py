"""Records KV events and reuse of a real engine: the truth for tests.

    python -m loadtest.vllm.record gemma3 tests/router/fleet/kv_events/recorded/gemma3.msgpack.gz

An engine with a small cache gets one request after the other, by the script of
`loadtest.bench.window_truth.script`, until it evicts; after two thirds its cache is emptied. Each request
stands with its ZeroMQ messages, as they came.
"""

import argparse
import asyncio
import gzip
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from loadtest.bench.window_truth.judges import BLOCK_TOKENS, attention_of
from loadtest.bench.window_truth.script import Script
from loadtest.vllm.engine import MODEL_NAME
from loadtest.vllm.server import VllmServer, VllmSettings

REQUESTS = 45
PROMPT_TOKENS_MAX = 300
SEED = 9

QUIET_S = 0.5
"""A request is over when its answer has come, and then nothing more for this time."""


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One request.

    Attributes:
        prompt: Token ids.
        cached_tokens: Reused by the engine.
        frames: Messages until the next request: topic, number, batch.
    """

    prompt: list[int]
    cached_tokens: int
    frames: list[list[bytes]]


class Recording(msgspec.Struct, frozen=True):
    """Steps of one engine from its start; ``window_tokens`` is None without a sliding window."""

    engine: str
    block_tokens: int
    window_tokens: int | None
    steps: list[Step]


def load(file: Path) -> Recording:
    """Read a recording."""
    return msgspec.msgpack.decode(gzip.decompress(file.read_bytes()), type=Recording)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Asks an engine, just started, and listens."""

    server: VllmServer
    client: httpx.AsyncClient

    async def record(self, requests: int) -> list[Step]:
        """Send a number of requests."""
        import zmq
        import zmq.asyncio

        script = Script(SEED, prompt_tokens_max=PROMPT_TOKENS_MAX)
        steps: list[Step] = []
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.subscribe(b"")
            socket.connect(self.server.kv_events)
            await asyncio.sleep(QUIET_S)
            for number in range(requests):
                if number == requests * 2 // 3:
                    await self.server.forget()
                asked = script.draw()
                cached_tokens, answer = await self._ask([*asked.prompt], asked.answer_tokens)
                script.answered(tuple(answer))
                frames = []
                while await socket.poll(QUIET_S * 1e3):
                    frames.append(await socket.recv_multipart())
                steps.append(Step([*asked.prompt], cached_tokens, frames))
        return steps

    async def _ask(self, prompt: list[int], answer_tokens: int) -> tuple[int, list[int]]:
        body = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        said = (await self.client.post("/v1/completions", json=body)).raise_for_status().json()
        details = said["usage"]["prompt_tokens_details"] or {}
        return details.get("cached_tokens") or 0, said["choices"][0]["token_ids"]


async def record(kind: str, requests: int) -> Recording:
    """Start an engine and record."""
    settings = VllmSettings(
        model=kind,
        max_model_tokens=512,
        kv_blocks=150 if kind != "qwen3" else 60,
        step_tokens_max=256,
        block_tokens=BLOCK_TOKENS,
    )
    async with (
        VllmServer(settings, told=print) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=120.0) as client,
    ):
        engine = "vLLM " + (await client.get("/version")).json()["version"]
        steps = await Recorder(server, client).record(requests)
    return Recording(f"{engine}, tiny {kind}", BLOCK_TOKENS, attention_of(kind).window_tokens, steps)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Record what an engine publishes of its KV cache.")
    parser.add_argument("model", help="a kind of tiny model: qwen3, gemma3 or mimo_v2")
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    given = parser.parse_args()
    recording = asyncio.run(record(given.model, given.requests))
    given.file.write_bytes(gzip.compress(msgspec.msgpack.encode(recording), mtime=0))
    hits = sum(step.cached_tokens > 0 for step in recording.steps)
    print(f"{given.file}: {given.file.stat().st_size / 1e3:.0f} kB, {hits} hits")


if __name__ == "__main__":
    main()
