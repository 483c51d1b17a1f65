"""A gateway that follows a real engine's KV events, and every request a comparison of both.

    known = await Known.before(engine, "gemma3", fleet)
    cached = (await known.ask(prompt)).cached_tokens     # as predicted, else the test fails

What an engine says with a step is published before its answer, so a question for old batches that brings none
proves that all of it came.
"""

from dataclasses import dataclass
from typing import Any

import httpx
import zmq
from fakes.running import Fleet, RunningGateway, until

from loadtest.bench.window_truth.judges import BLOCK_TOKENS, attention_of
from loadtest.vllm import MODEL_NAME, EnginesHome, VllmEngine
from loadtest.vllm.models import tiny_model
from router.fleet.kv_events.follower import Follower
from router.fleet.kv_events.sockets import replay

TIMEOUT_S = 120.0
LOOKS = 2
"""Questions without news that prove it: a batch may be on its way to the publisher at the first."""


def completion(prompt: list[int], answer_tokens: int = 1) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    cached_tokens: int
    token_ids: list[int]


@dataclass
class Known:
    """See the module."""

    gateway: RunningGateway
    engine: VllmEngine

    @classmethod
    async def before(
        cls, engine: VllmEngine, model: str, fleet: Fleet, **sections: dict[str, Any]
    ) -> "Known":
        """Start a gateway before an engine and wait until it knows everything."""
        profile = attention_of(model)
        known = {
            "attention": profile.kind,
            "window_tokens": profile.window_tokens,
            "tokenizer": str(tiny_model(EnginesHome.usual().models, model)),
        }
        gateway = await fleet.gateway(
            engine.url,
            fleet={"kv_events": "auto", "health_check_interval_s": 0.5, "slow_start_s": 0.0},
            placement={"block_tokens": BLOCK_TOKENS, "models": {MODEL_NAME: known}},
            **sections,
        )
        found = cls(gateway, engine)
        await found.live()
        return found

    @property
    def worker_id(self) -> str:
        return self.engine.url.removeprefix("http://")

    @property
    def follower(self) -> Follower | None:
        kv_events = self.gateway.process.kv_events
        assert kv_events is not None
        found: Follower | None = kv_events.followers.get(self.worker_id)
        return found

    def tracks(self) -> bool:
        """Whether the worker is described by its events now."""
        follower = self.follower
        return (
            self.gateway.process.fleet.tracks(self.worker_id)
            and follower is not None
            and follower.state.value == "live"
            and follower.settled
        )

    def serves(self) -> bool:
        """Whether the worker gets requests: its engine may tell of its cache before a probe finds it well."""
        local = self.gateway.process.registry.get(self.worker_id)
        return local is not None and local.state == "healthy"

    async def live(self) -> None:
        await until(self.tracks)

    async def settle(self) -> None:
        """Wait until all that the engine has said is in the tree."""
        looks = 0
        while looks < LOOKS:
            await self.live()
            looks = looks + 1 if not await self._behind() else 0
        await self.live()

    async def _behind(self) -> int:
        """How many batches the publisher has that were not read yet."""
        follower = self.follower
        assert follower is not None
        (feed,) = follower.feeds
        assert feed.source.replay is not None
        after = feed.sequence.next or 0
        with zmq.Context() as context:
            answers = [each async for each in replay(context, feed.source.replay, after)]
        return sum(number >= (feed.sequence.next or 0) for batch in answers for number, _ in batch)

    async def ask(self, prompt: list[int], answer_tokens: int = 1) -> Answer:
        """Send a request, when all is known, and see that the engine reused what was predicted."""
        await self.settle()
        body = completion(prompt, answer_tokens)
        sent = await self.gateway.client.post("/v1/completions", json=body, timeout=TIMEOUT_S)
        assert sent.status_code == 200, sent.text
        said = sent.json()
        cached_tokens = said["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
        predicted_tokens = int(sent.headers["x-cacheway-cached-tokens"])
        assert predicted_tokens == cached_tokens, f"of {len(prompt)} tokens"
        return Answer(cached_tokens, said["choices"][0]["token_ids"])

    async def ask_past_the_gateway(self, prompt: list[int], answer_tokens: int = 1) -> None:
        """Send a request to the engine itself: only its events can tell of it."""
        async with httpx.AsyncClient(base_url=self.engine.url, trust_env=False, timeout=TIMEOUT_S) as client:
            body = completion(prompt, answer_tokens)
            (await client.post("/v1/completions", json=body)).raise_for_status()
