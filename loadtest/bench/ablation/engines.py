"""Two real engines with caches that can be emptied between arms.

An engine empties its cache in development mode only (VLLM_SERVER_DEV_MODE=1, which `VllmServer` sets), and
refuses while requests hold blocks (vllm/entrypoints/serve/dev/cache/api_router.py). Its KV events report that
with its next step, so each is then asked for a token.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from loadtest.vllm import MODEL_NAME, EngineFailed, VllmEngine, VllmServer, VllmSettings

WORKERS = 2

BLOCK_TOKENS = 32
"""The smallest that vLLM's attention for CPUs takes."""

RESET_TIMEOUT_S = 30.0

HITS = "vllm:prefix_cache_hits_total"
"""Prompt tokens that were found in the cache (vllm/v1/metrics/loggers.py)."""

SETTINGS = {
    "qwen3": VllmSettings(
        model="qwen3", max_model_tokens=8192, block_tokens=BLOCK_TOKENS, kv_blocks=640, step_tokens_max=2048
    ),
    "gemma3": VllmSettings(
        model="gemma3", max_model_tokens=8192, block_tokens=BLOCK_TOKENS, kv_blocks=1280, step_tokens_max=2048
    ),
}
"""Caches that hold about a third of what the agents work on at a time, by kind of model."""


@asynccontextmanager
async def two_engines(kind: str) -> AsyncIterator[list[VllmEngine]]:
    """Start the engines of a kind of model, and stop them.

    `EngineFailed` if vLLM is missing or does not come up.
    """
    async with AsyncExitStack() as stack:
        servers = [VllmServer(SETTINGS[kind], f"{kind}-{number}", told=print) for number in range(WORKERS)]
        for server in servers:
            stack.push_async_callback(server.close)
        await asyncio.gather(*(server.start() for server in servers))
        yield list(servers)


async def hit_tokens(engines: Sequence[VllmEngine]) -> int:
    """Prompt tokens that the engines reused since they started, by their own count."""
    return round(sum([await engine.metric(HITS) for engine in engines]))


async def empty(engines: Sequence[VllmEngine]) -> None:
    """Empty all caches, as soon as nothing holds a block; `EngineFailed` if that does not succeed."""
    async with httpx.AsyncClient(trust_env=False, timeout=RESET_TIMEOUT_S) as client:
        for engine in engines:
            try:
                async with asyncio.timeout(RESET_TIMEOUT_S):
                    reset_url = f"{engine.url}/reset_prefix_cache"
                    while not (await client.post(reset_url)).json()["success"]:  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.05)
                    step = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 1}
                    (await client.post(f"{engine.url}/v1/completions", json=step)).raise_for_status()
            except (httpx.HTTPError, TimeoutError, ValueError, KeyError) as error:
                raise EngineFailed(f"{engine.url} does not empty its cache: {error!r}") from error
