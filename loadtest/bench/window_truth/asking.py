"""Sends a script through a gateway to an engine, and brings back what was foretold and what came true.

One request at a time: each finds what the one before has left. The gateway's own predictions are read from
``GET /decisions`` when all is done: the prefix match, and what of it the engine was expected to reuse.
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
    """What became of one request; all in tokens.

    Attributes:
        asked: The request.
        gateway: What the gateway predicted.
        simulated: What the simulator's model did.
        cached_tokens: What the engine says it reused.
    """

    asked: Asked
    gateway: Predicted
    simulated: Predicted
    cached_tokens: int


async def truths(
    client: httpx.AsyncClient, script: Script, requests: int, simulated: Judge, model: str = "tiny"
) -> list[Truth]:
    """Send requests of a script and compare.

    Args:
        client: Of a gateway with one worker, the engine, that nobody else uses.
        script: Draws the requests.
        requests: How many, up to `KEPT_MAX`.
        simulated: The simulator's model of the engine, as empty as the engine is.
        model: Name of the model in requests.

    Raises:
        httpx.HTTPError: The gateway or the engine did not answer.
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
        said = answer.json()
        token_ids = tuple(said["choices"][0]["token_ids"])
        simulated.answered(asked.prompt, token_ids)
        script.answered(token_ids)
        details = said["usage"]["prompt_tokens_details"] or {}
        found.append((answer.headers["x-request-id"], asked, predicted, details.get("cached_tokens") or 0))
    foretold = await _foretold(client, requests)
    return [Truth(asked, foretold[key], predicted, cached) for key, asked, predicted, cached in found]


async def _foretold(client: httpx.AsyncClient, requests: int) -> dict[str, Predicted]:
    """What the gateway predicted for its latest requests, by request id."""
    said = (await client.get("/decisions", params={"limit": requests})).raise_for_status().json()
    return {
        decision["request_id"]: Predicted(decision["matched_tokens"], decision["predicted_cached_tokens"])
        for decision in said["decisions"]
    }
