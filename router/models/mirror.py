"""Copies a share of the requests to a second fleet, and throws its answers away.

    request ──> the gateway, as always
       └─ drawn, few enough under way, short enough? ──> POST, the body alone ──> answer read and dropped

The copy is made where a request may be tokenized (`router.gateway.gateway.TokenizingPort`): its client is
known and its body is sound. No header of a client goes along, so no key does. Requests that do not fit are
counted and not copied; nothing waits for a copy.
"""

import asyncio
import random
from collections.abc import Callable

import httpx
import msgspec

from router.gateway.edits import members
from router.gateway.gateway import TokenizingPort
from router.gateway.parsing import ParsedRequest
from router.metric_families import MIRRORED_REQUESTS
from router.metrics import Metrics
from router.model_rules import ModelRules
from router.offsets import edited

BODY_BYTES_MAX = 4 * 1024 * 1024
ANSWER_BYTES_MAX = 16 * 1024 * 1024

Done = Callable[[ParsedRequest], None]


class Mirror:
    """The copies of one process; ``tokenizing`` is the next step of a request, None for none."""

    def __init__(self, rules: ModelRules, metrics: Metrics) -> None:
        self.rules, self._metrics = rules, metrics
        self.tokenizing: TokenizingPort | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: httpx.AsyncClient | None = None

    @property
    def is_on(self) -> bool:
        """True if requests are copied."""
        return bool(self.rules.mirror_url) and self.rules.mirror_ratio > 0

    def begin(self, parsed: ParsedRequest, body: bytes, done: Done) -> ParsedRequest | None:
        """Copy a request if it is drawn, and go on with it."""
        if random.random() < self.rules.mirror_ratio:  # noqa: S311 - a share of traffic
            self._copy(parsed, body)
        return parsed if self.tokenizing is None else self.tokenizing.begin(parsed, body, done)

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        """Go on with a request that is only explained."""
        return parsed if self.tokenizing is None else await self.tokenizing.now(parsed, body)

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Compare the number of ids with an engine's count."""
        if self.tokenizing is not None:
            self.tokenizing.answered(parsed, prompt_tokens)

    async def close(self) -> None:
        """End the copies that are under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _copy(self, parsed: ParsedRequest, body: bytes) -> None:
        if len(self._tasks) >= self.rules.mirror_inflight_max:
            self._count("too_many")
        elif len(body) > BODY_BYTES_MAX:
            self._count("too_large")
        else:
            task = asyncio.create_task(self._send(self.rules, parsed.endpoint.value, body), name="mirror")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, rules: ModelRules, path: str, body: bytes) -> None:
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)
        outcome = "failed"
        try:
            async with asyncio.timeout(rules.mirror_timeout_s):
                if rules.mirror_model:
                    body = await asyncio.to_thread(_renamed, body, rules.mirror_model)
                headers = {"content-type": "application/json", "accept-encoding": "identity"}
                if rules.mirror_key is not None:
                    headers["authorization"] = f"Bearer {rules.mirror_key.get_secret_value()}"
                url, left = f"{rules.mirror_url}{path}", ANSWER_BYTES_MAX
                async with self._client.stream(
                    "POST", url, content=body, headers=headers, timeout=rules.mirror_timeout_s
                ) as answer:
                    async for piece in answer.aiter_raw():
                        left -= len(piece)
                        if left < 0:
                            break
                    outcome = "answered" if answer.is_success else "refused"
        except TimeoutError:
            outcome = "late"
        except Exception:  # noqa: BLE001 - a failed copy harms no client
            outcome = "failed"
        self._count(outcome)

    def _count(self, outcome: str) -> None:
        self._metrics.counts[MIRRORED_REQUESTS].add((outcome,))


def _renamed(body: bytes, model: str) -> bytes:
    """Return a body with another model."""
    served = msgspec.json.encode(model)
    edits = [(each.start, each.end, served) for each in members(body, "model")]
    return b"".join(edited(body, edits))
