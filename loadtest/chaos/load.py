"""A steady load of growing sessions, to run while something fails.

Open loop: a request leaves every ``1 / rate_per_s`` seconds, whatever happened to the ones before. It
is the next turn of a session that is not waiting for an answer, or the first of a new one. Turns of one
session go to all replicas in turn, so a replica that missed what its siblings did shows in the hits.
Every fourth request does not stream; every tenth has a long answer, which runs across a short fault.

    session   |-- opening --|                      turn 1 at replica 0
              |-- opening --|-- more --|           turn 2 at replica 1
              |-- opening --|-- more --|-- more --| ...  until `TURNS`, then it is over
"""

import asyncio
import itertools
import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from loadtest.client import LoadClient
from loadtest.workload import MODEL, words

PATH = "/v1/chat/completions"
TURNS = 6
OPENING_TOKENS = 600
TURN_TOKENS = 300
SHORT_ANSWER_TOKENS = 6
INFLIGHT_MAX = 256
PROMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one request.

    Attributes:
        number: Position in the order of sending.
        sent_s: When it was due, in event loop time.
        ttft_s: From then to the first content; None if there was none or the answer did not stream.
        replica: Base URL it was sent to.
        worker: Who answered.
        prompt_tokens: As the engine counts.
        cached_tokens: As the engine says.
        error: What went wrong; None if nothing did.
    """

    number: int
    sent_s: float
    ttft_s: float | None
    replica: str
    worker: str
    prompt_tokens: int
    cached_tokens: int
    error: str | None


@dataclass(slots=True, eq=False)
class _Session:
    text: str
    turns: int = 0


class SteadyLoad:
    """Sends requests from entering its context to `stop` or leaving it.

    Args:
        urls: The replicas; may be changed while it runs.
        rate_per_s: Requests per second, over all replicas.
        long_answer_tokens: Length of the long answers.
        seed: The same one sends the same prompts in the same order.
        timeout_s: A request that takes longer has failed.

    Attributes:
        served: What came of all requests so far.
        unsent: Requests that were not sent, because `INFLIGHT_MAX` had no answer yet.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        rate_per_s: float = 60.0,
        long_answer_tokens: int = 200,
        seed: int = 1,
        timeout_s: float = 30.0,
    ) -> None:
        self.urls = list(urls)
        self.served: list[Served] = []
        self.unsent = 0
        self._interval_s = 1.0 / rate_per_s
        self._long_answer_tokens = long_answer_tokens
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._sent = 0
        self._idle: deque[_Session] = deque()
        self._prompts: deque[str] = deque(maxlen=PROMPTS_MAX)
        self._client = LoadClient(timeout_s)
        self._plain = httpx.AsyncClient(timeout=timeout_s, trust_env=False)
        self._running: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None

    @property
    def failed(self) -> list[Served]:
        """The requests that failed."""
        return [served for served in self.served if served.error is not None]

    @property
    def prompts(self) -> list[str]:
        """Texts of the newest sessions that are over, each sent whole and answered."""
        return list(self._prompts)

    async def completed(self, requests: int, within_s: float = 60.0) -> None:
        """Wait until so many requests have been sent from now on and have ended.

        Raises:
            TimeoutError: They have not.
        """
        first = self._sent
        async with asyncio.timeout(within_s):
            while sum(served.number >= first for served in self.served[-4 * requests :]) < requests:  # noqa: ASYNC110 - plain state, which nobody signals
                await asyncio.sleep(0.02)

    async def __aenter__(self) -> Self:
        self._ticker = asyncio.create_task(self._tick(), name="steady-load")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for task in self._running:
                task.cancel()
        await self.stop()
        await self._client.__aexit__()
        await self._plain.aclose()

    async def stop(self) -> None:
        """Send no more, and wait for the last answers."""
        assert self._ticker is not None
        self._ticker.cancel()
        await asyncio.gather(self._ticker, *self._running, return_exceptions=True)

    async def _tick(self) -> None:
        """Send until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s += self._interval_s
            await asyncio.sleep(due_s - loop.time())
            if len(self._running) >= INFLIGHT_MAX:
                self.unsent += 1
                continue
            task = asyncio.create_task(self._request(next(self._numbers), due_s), name="steady-request")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _request(self, number: int, due_s: float) -> None:
        self._sent = number + 1
        session = self._idle.popleft() if self._idle else _Session(words(self._chance, OPENING_TOKENS))
        url = self.urls[(number + session.turns) % len(self.urls)]
        long_answer = number % 10 == 9
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": session.text}],
            "max_tokens": self._long_answer_tokens if long_answer else SHORT_ANSWER_TOKENS,
            "ignore_eos": True,
        }
        send = self._whole if number % 4 == 3 else self._streamed
        served = await send(number, due_s, url, body)
        self.served.append(served)
        if served.error is not None:
            return
        session.turns += 1
        if session.turns == TURNS:
            self._prompts.append(session.text)
        else:
            session.text += words(self._chance, TURN_TOKENS)
            self._idle.append(session)

    async def _streamed(self, number: int, due_s: float, url: str, body: dict[str, Any]) -> Served:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        outcome = await self._client.send(url, PATH, json.dumps(body).encode(), due_s)
        return Served(
            number,
            due_s,
            outcome.ttft_s,
            url,
            outcome.worker,
            outcome.prompt_tokens,
            outcome.cached_tokens,
            outcome.error,
        )

    async def _whole(self, number: int, due_s: float, url: str, body: dict[str, Any]) -> Served:
        error, worker, usage = None, "", {}
        try:
            answer = await self._plain.post(url + PATH, json=body)
            worker = answer.headers.get("x-cacheway-worker", "")
            if answer.status_code == 200:
                usage = answer.json()["usage"]
            else:
                error = f"status {answer.status_code}: {answer.text}"
        except (httpx.HTTPError, ValueError, KeyError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        return Served(
            number,
            due_s,
            None,
            url,
            worker,
            usage.get("prompt_tokens", 0),
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            error,
        )
