"""The workers' cache and queue, beside a naive model, and on real sockets."""

import asyncio
import random

import httpx

from loadtest.bench.child import started
from loadtest.bench.fleet.worker import BLOCK_TOKENS, BlockCache, WorkerPlan, WorkerReport, block_keys, serve


class NaiveCache:
    """A list of blocks, the one used longest ago first."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        self.blocks: list[str] = []

    def matched(self, prefixes: list[str]) -> int:
        """Leading blocks that are there."""
        matched = 0
        while matched < len(prefixes) and prefixes[matched] in self.blocks:
            matched += 1
        return matched

    def touch(self, prefixes: list[str]) -> None:
        """Put blocks to the end, and drop from the front."""
        for prefix in prefixes:
            if prefix in self.blocks:
                self.blocks.remove(prefix)
            self.blocks.append(prefix)
        self.blocks = self.blocks[-self.blocks_max :]


def text(blocks: list[int]) -> str:
    """A prompt of full blocks."""
    return "".join(f"{block:04d}" * BLOCK_TOKENS for block in blocks)


def test_the_cache_agrees_with_a_naive_one() -> None:
    """Random prompts of up to 6 blocks out of 4 in a cache of 10 hit and evict all the time."""
    chance = random.Random(1)
    cache, naive = BlockCache(10), NaiveCache(10)
    for _ in range(500):
        blocks = chance.choices(range(4), k=chance.randint(0, 6))
        keys = block_keys(text(blocks))
        prefixes = [str(blocks[: end + 1]) for end in range(len(blocks))]
        assert len(keys) == len(blocks)
        assert cache.matched(keys) == naive.matched(prefixes)
        cache.touch(keys)
        naive.touch(prefixes)
        assert len(cache) == len(naive.blocks)


async def test_answers_tell_what_was_reused_and_all_prefills_add_up() -> None:
    """Three equal prompts of two blocks and a half, one after the other: the second and third reuse two."""
    plan = WorkerPlan(workers=2, cache_tokens=10_000, prefill_tokens_per_s=1e6, speed=100.0)
    prompt = text([1, 2]) + "x" * BLOCK_TOKENS * 2
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
    async with started(serve, plan) as workers:
        ports = await workers.next(list[int])
        assert ports is not None
        url = f"http://127.0.0.1:{ports[0]}"
        async with httpx.AsyncClient(trust_env=False) as client:
            answers = [(await client.post(f"{url}/v1/chat/completions", json=body)).json() for _ in range(2)]
            stream = await client.post(f"{url}/v1/chat/completions", json={**body, "stream": True})
            paths = ("/health", "/v1/models", "/get_server_info", "/metrics")
            assert [(await client.get(url + path)).status_code for path in paths] == [200] * 4
            assert (await client.get(f"{url}/nothing")).status_code == 404
        await asyncio.sleep(0)
        workers.stop()
        reports = await workers.next(list[WorkerReport])
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0, 1024]
    assert '"cached_tokens":1024' in stream.text
    assert stream.text.endswith("data: [DONE]\n\n")
    assert reports is not None
    assert (reports[0].requests, reports[0].prompt_tokens, reports[0].cached_tokens) == (3, 3 * 1280, 2048)
    assert reports[1].requests == 0
