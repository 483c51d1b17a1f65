"""Send a script through a gateway to an engine, and compare predictions with results.

One request at a time. The gateway's predictions come from ``GET /decisions`` at the end.
"""

from dataclasses import dataclass

import httpx

from loadtest.bench.window_truth.judges import Judge, Predicted
from loadtest.bench.window_truth.script import Asked, Script

TIMEOUT_S = 120.0
KEPT_MAX = 4_000
"""Requests of one run: the gateway keeps its newest 4,096 decisions."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Predictions and result for one request, in tokens."""

    asked: Asked
    gateway: Predicted
    simulated: Predicted
    cached_tokens: int


async def truths(
    client: httpx.AsyncClient, script: Script, requests: int, simulated: Judge, model: str = "tiny"
) -> list[Truth]:
    """Send up to `KEPT_MAX` requests of a script to a gateway with one worker, and compare.

    ``simulated`` must be as empty as the engine, which has no other traffic. Raises `httpx.HTTPError`.
    """
    assert 0 < requests <= KEPT_MAX
    found: list[tuple[str, Asked, Predicted, int]] = []
    for _ in range(requests):
        asked = script.draw()
        predicted = simulated.predict(asked.prompt)
        answer = await client.post(
            "/v1/completions",
            json={
                "model": model,
                "prompt": asked.prompt,
                "max_tokens": asked.answer_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            },
            timeout=TIMEOUT_S,
        )
        answer.raise_for_status()
        body = answer.json()
        token_ids = tuple(body["choices"][0]["token_ids"])
        simulated.answered(asked.prompt, token_ids)
        script.answered(token_ids)
        details = body["usage"]["prompt_tokens_details"] or {}
        found.append((answer.headers["x-request-id"], asked, predicted, details.get("cached_tokens") or 0))
    foretold = await _foretold(client, requests)
    return [Truth(asked, foretold[key], predicted, cached) for key, asked, predicted, cached in found]


async def _foretold(client: httpx.AsyncClient, requests: int) -> dict[str, Predicted]:
    """Predictions of the gateway for its latest requests, by request id."""
    body = (await client.get("/decisions", params={"limit": requests})).raise_for_status().json()
    return {
        decision["request_id"]: Predicted(decision["matched_tokens"], decision["predicted_cached_tokens"])
        for decision in body["decisions"]
    }
