"""For every model, both of its engines give the same answers, and from their caches."""

import random

import httpx
from fakes.real_engines import EACH_MODEL, random_ids
from fakes.running import Fleet

from loadtest.vllm import MODEL_NAME, VllmEngine

TIMEOUT_S = 120.0
BLOCK_TOKENS = 32


def cached_tokens(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@EACH_MODEL
async def test_a_request_that_is_repeated_elsewhere_has_the_same_answer_and_one_repeated_there_is_cached(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random, model: str
) -> None:
    """Weights are equal, so a redispatched request has the answer that it would have had."""
    gateway = await fleet.gateway(*(engine.url for engine in engines))
    body = {"model": MODEL_NAME, "prompt": random_ids(chance, 200), "max_tokens": 16, "temperature": 0}
    first, again = [
        await gateway.client.post("/v1/completions", json=body, timeout=TIMEOUT_S) for _ in range(2)
    ]
    assert first.headers["x-cacheway-worker"] == again.headers["x-cacheway-worker"]
    assert cached_tokens(again) == 199 // BLOCK_TOKENS * BLOCK_TOKENS
    await gateway.client.post(f"/workers/{first.headers['x-cacheway-worker']}/drain")
    elsewhere = await gateway.client.post("/v1/completions", json=body, timeout=TIMEOUT_S)
    assert elsewhere.headers["x-cacheway-worker"] != first.headers["x-cacheway-worker"]
    assert cached_tokens(elsewhere) == 0
    texts = {answer.json()["choices"][0]["text"] for answer in (first, again, elsewhere)}
    assert len(texts) == 1, model
