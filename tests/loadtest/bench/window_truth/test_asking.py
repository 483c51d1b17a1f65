"""Sending a script and joining the predictions of the gateway."""

import json

import httpx
import pytest

from loadtest.bench.window_truth.asking import truths
from loadtest.bench.window_truth.judges import Predicted, Simulated, rules_of
from loadtest.bench.window_truth.script import Script


class Gateway:
    """Answers as a gateway before a vLLM does; its prediction is one more with every request."""

    def __init__(self, details: dict[str, object] | None) -> None:
        self.details = details
        self.bodies: list[dict[str, object]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/decisions":
            assert request.url.params["limit"] == str(len(self.bodies))
            decisions = [
                {"request_id": f"r{number}", "matched_tokens": 32 * number, "predicted_cached_tokens": number}
                for number in reversed(range(len(self.bodies)))
            ]
            return httpx.Response(200, json={"decisions": decisions})
        body = json.loads(request.content)
        self.bodies.append(body)
        answer = {
            "choices": [{"token_ids": [150] * body["max_tokens"]}],
            "usage": {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": self.details},
        }
        return httpx.Response(200, json=answer, headers={"x-request-id": f"r{len(self.bodies) - 1}"})

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://gateway", transport=httpx.MockTransport(self))


def simulated() -> Simulated:
    return Simulated(rules_of("gemma3", kv_blocks=4096, step_tokens=256))


@pytest.mark.parametrize(
    ("details", "cached"), [({"cached_tokens": 64}, 64), ({"cached_tokens": None}, 0), (None, 0)]
)
async def test_each_request_is_joined_with_what_was_foretold_of_it(
    details: dict[str, object] | None, cached: int
) -> None:
    gateway = Gateway(details)
    async with gateway.client() as client:
        found = await truths(client, Script(3), 5, simulated())

    assert [truth.gateway for truth in found] == [Predicted(32 * number, number) for number in range(5)]
    assert [truth.cached_tokens for truth in found] == [cached] * 5
    assert [truth.asked.prompt for truth in found] == [tuple(body["prompt"]) for body in gateway.bodies]
    assert all(body["ignore_eos"] and body["return_token_ids"] for body in gateway.bodies)


async def test_an_engine_that_refuses_ends_the_run() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(503))
    async with httpx.AsyncClient(base_url="http://gateway", transport=transport) as client:
        with pytest.raises(httpx.HTTPStatusError):
            await truths(client, Script(3), 5, simulated())
