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
    """The result of one request."""

    cached_tokens: int
    token_ids: list[int]
    worker: str


@dataclass
class Known:
    """See the module.

    Attributes:
        ranks: Data-parallel ranks of the engine, all of which are followed.
        loads_whole_prompts: The engine counts a prompt of whole blocks as reused if host memory had the last
            one, without its last token if there are windows: their place is then the end of the prompt, and
            may be the only one. A device never gives that block: the last token is computed, and its block
            with it.
    """

    gateway: RunningGateway
    engine: VllmEngine
    ranks: int = 1
    loads_whole_prompts: bool = False

    @classmethod
    async def before(
        cls, engine: VllmEngine, model: str, fleet: Fleet, ranks: int = 1, **sections: dict[str, Any]
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
        found = cls(gateway, engine, ranks)
        await found.live()
        return found

    @property
    def worker_id(self) -> str:
        return self.engine.url.removeprefix("http://")

    @property
    def places(self) -> list[str]:
        """Rows of the worker that requests go to."""
        numbers = range(self.ranks)
        return [f"{self.worker_id}@{rank}" for rank in numbers] if self.ranks > 1 else [self.worker_id]

    @property
    def followers(self) -> list[Follower]:
        kv_events = self.gateway.process.kv_events
        assert kv_events is not None
        return [kv_events.followers[place] for place in self.places if place in kv_events.followers]

    def tracks(self) -> bool:
        """True if events describe the worker now."""
        followers = self.followers
        return (
            len(followers) == self.ranks
            and all(map(self.gateway.process.fleet.tracks, self.places))
            and all(each.state.value == "live" and each.settled for each in followers)
        )

    def serves(self) -> bool:
        """True if the worker gets requests: its engine may publish its cache before a probe succeeds."""
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
        """Number of published batches that were not read yet."""
        found = 0
        for follower in self.followers:
            (feed,) = follower.feeds
            assert feed.source.replay is not None
            after = feed.sequence.next or 0
            with zmq.Context() as context:
                answers = [each async for each in replay(context, feed.source.replay, after)]
            found += sum(number >= (feed.sequence.next or 0) for batch in answers for number, _ in batch)
        return found

    async def ask(self, prompt: list[int], answer_tokens: int = 1) -> Answer:
        """Send a request, when all is known, and check that the engine reused the predicted tokens."""
        await self.settle()
        body = completion(prompt, answer_tokens)
        sent = await self.gateway.client.post("/v1/completions", json=body, timeout=TIMEOUT_S)
        assert sent.status_code == 200, sent.text
        said = sent.json()
        cached_tokens = said["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
        predicted_tokens = int(sent.headers["x-cacheway-cached-tokens"])
        said_so = f"predicted {predicted_tokens}, reused {cached_tokens} of {len(prompt)} tokens"
        if self.loads_whole_prompts and len(prompt) % BLOCK_TOKENS == 0 and cached_tokens >= len(prompt) - 1:
            assert predicted_tokens <= len(prompt) - BLOCK_TOKENS, said_so
            assert predicted_tokens == len(prompt) - BLOCK_TOKENS or cached_tokens < len(prompt), said_so
        else:
            assert predicted_tokens == cached_tokens, said_so
        return Answer(cached_tokens, said["choices"][0]["token_ids"], sent.headers["x-cacheway-worker"])

    async def ask_past_the_gateway(
        self, prompt: list[int], answer_tokens: int = 1, headers: dict[str, str] | None = None
    ) -> None:
        """Send a request to the engine itself: only its events can report it."""
        async with httpx.AsyncClient(base_url=self.engine.url, trust_env=False, timeout=TIMEOUT_S) as client:
            body = completion(prompt, answer_tokens)
            (await client.post("/v1/completions", json=body, headers=headers)).raise_for_status()
