"""All kinds of clients, in an open loop whose rate and phase can be changed while it runs.

The same seed sends the same requests in the same order, except that a follow-up continues an earlier answer.
Unless a `Mix` says otherwise:

    kind        share   prompt tokens                        uncached, if all is well
    short        70 %   200 to 1,000, new                    all
    follow-up    20 %   an answered prompt and 250 more      250; all of it before anything was answered
    long         10 %   6,000 to 12,000, new                 all

    priority    high 10 %, normal 60 %, low 30 %             as the header x-priority
    tenant      those given, by their shares of the load     by its key
    deadline    a quarter of all says x-request-timeout
    leaving     one in twenty leaves after a while, answered or not
    streamed    two of three

Clients never retry, so the rate is the load, unless the crowd waits (`sessions`).
"""

import asyncio
import itertools
import json
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Self

from loadtest.chaos.visitor import End, Visit, visit
from loadtest.engine import EngineSettings
from loadtest.workload import MODEL, words

PATH = "/v1/chat/completions"
PRIORITIES = {"high": 0.1, "normal": 0.6, "low": 0.3}
KINDS = ("short", "follow-up", "long")
STREAMED_SHARE = 2 / 3
LEAVES_AFTER_S = (0.1, 3.0)
CONTEXTS_MAX = 64
PROMPTS_MAX = 8
OPEN_MAX = 4000
"""More connections at once are not made: the machine's own limits would be measured."""

SESSIONS_OPEN_MAX = 32
"""Open requests of `sessions`, twice those of a machine that keeps up; then it waits, so no backlog grows."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Composition of a crowd; token ranges of prompts and answers.

    Attributes:
        shares: Of short requests, follow-ups and long ones.
        follow_up_tokens: Added by a follow-up.
        context_tokens_max: Longer prompts have no follow-up.
        deadline_share: Requests with ``x-request-timeout``.
        leaving_share: Clients that leave before the answer is complete.
    """

    shares: tuple[float, float, float] = (0.7, 0.2, 0.1)
    short_tokens: tuple[int, int] = (200, 1000)
    long_tokens: tuple[int, int] = (6000, 12_000)
    follow_up_tokens: int = 250
    context_tokens_max: int = 6000
    output_tokens: tuple[int, int] = (4, 24)
    deadline_share: float = 0.25
    leaving_share: float = 0.05


MIX = Mix()

SESSIONS = Mix(
    shares=(0.2, 0.8, 0.0),
    short_tokens=(600, 600),
    follow_up_tokens=300,
    context_tokens_max=2000,
    output_tokens=(2, 50),
    deadline_share=0.0,
    leaving_share=0.0,
)
"""Sessions that grow, whose clients stay: beside a fault, each of them must be answered."""


@dataclass(frozen=True, slots=True)
class Client:
    """One tenant's clients: ``load`` is its share of the requests in any unit, ``headers`` go with each."""

    tenant: str
    load: float = 1.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One client's request.

    Attributes:
        number: Position in the order of sending.
        kind: One of `KINDS`.
        priority: A key of `PRIORITIES`.
        uncached_tokens: New tokens, if everything sent before is still cached.
        deadline_s: ``x-request-timeout``; None for none.
        leaves_after_s: None if the client stays.
    """

    number: int
    kind: str
    priority: str
    client: Client
    text: str
    uncached_tokens: int
    prompt_tokens: int
    output_tokens: int
    streamed: bool
    deadline_s: float | None
    leaves_after_s: float | None

    def body(self) -> bytes:
        """The JSON that is sent."""
        asked: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
        }
        return json.dumps(asked | ({"stream": True} if self.streamed else {})).encode()


@dataclass(frozen=True, slots=True)
class Served:
    """A request without its text, and what came of it; ``work_tokens`` is what of it was new."""

    kind: str
    priority: str
    tenant: str
    phase: str
    replica: str
    streamed: bool
    deadline_s: float | None
    work_tokens: int
    visit: Visit


class Draw:
    """Draws the requests of a crowd; the same seed draws the same ones."""

    def __init__(self, clients: Sequence[Client], deadline_s: float, seed: int, mix: Mix = MIX) -> None:
        self._clients = clients
        self._mix = mix
        self._loads = [client.load for client in clients]
        self._deadline_s = deadline_s
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._contexts: deque[tuple[str, int]] = deque(maxlen=CONTEXTS_MAX)

    def next(self) -> Request:
        """Draw one."""
        chance, number, mix = self._chance, next(self._numbers), self._mix
        kind = chance.choices(KINDS, mix.shares)[0]
        priority = chance.choices(list(PRIORITIES), list(PRIORITIES.values()))[0]
        text, context_tokens = "", 0
        new_tokens = mix.follow_up_tokens
        if kind != "follow-up":
            new_tokens = chance.randint(*(mix.short_tokens if kind == "short" else mix.long_tokens))
        elif self._contexts:
            text, context_tokens = self._contexts[chance.randrange(len(self._contexts))]
        streamed = chance.random() < STREAMED_SHARE
        deadline_s = self._deadline_s if chance.random() < mix.deadline_share else None
        leaves_after_s = chance.uniform(*LEAVES_AFTER_S) if chance.random() < mix.leaving_share else None
        return Request(
            number=number,
            kind=kind,
            priority=priority,
            client=chance.choices(self._clients, self._loads)[0],
            text=text + words(chance, new_tokens),
            uncached_tokens=new_tokens,
            prompt_tokens=context_tokens + new_tokens,
            output_tokens=chance.randint(*mix.output_tokens),
            streamed=streamed,
            deadline_s=deadline_s,
            leaves_after_s=leaves_after_s,
        )

    @property
    def prompts(self) -> list[str]:
        """The newest prompts that were sent whole and answered."""
        return [text for text, _ in list(self._contexts)[-PROMPTS_MAX:]]

    def answered(self, request: Request) -> None:
        """Others may go on from here."""
        if request.prompt_tokens <= self._mix.context_tokens_max:
            self._contexts.append((request.text, request.prompt_tokens))


@cache
def mean_service_s(engine: EngineSettings, *, draws: int = 2000, seed: int = 0) -> float:
    """Mean prefill time in seconds of such a crowd's requests on an engine, if caches serve it well.

    ``a + b·u·(1 + (c + u/2)/c0)`` of its settings (`loadtest.engine.timing`).
    """
    draw, total_s = Draw([Client("")], 1.0, seed), 0.0
    for _ in range(draws):
        request = draw.next()
        draw.answered(request)
        new, cached = request.uncached_tokens, request.prompt_tokens - request.uncached_tokens
        slower = 1 + (cached + new / 2) / engine.context_tokens
        total_s += engine.prefill_base_ms / 1e3 + new / engine.prefill_tokens_per_s * slower
    return total_s / draws


class Crowd:
    """Sends requests from entering its context to `stop` or leaving it.

    Args:
        urls: Base URLs of the replicas that are asked now, in turn, by name.
        rate_per_s: Requests per second; may be changed while it runs.
        deadline_s: Of requests with a deadline.
        patience_s: A request that is not over by then hangs.
        waits_at: Open requests at which the crowd waits for an end, and forgets what fell due meanwhile. 0
            turns it off: the rate is the load.

    Attributes:
        phase: Phase of the requests that are sent now.
        sent: Requests sent so far, by replica.
        served: Outcomes of all that are over.
        unsent: Requests that were not sent, because `OPEN_MAX` were open.
        late_s_max: Largest delay, seconds: the machine's part of every time.
    """

    def __init__(
        self,
        urls: Callable[[], Mapping[str, str]],
        clients: Sequence[Client],
        *,
        rate_per_s: float,
        deadline_s: float,
        patience_s: float,
        seed: int = 1,
        mix: Mix = MIX,
        waits_at: int = 0,
    ) -> None:
        self._urls = urls
        self._waits_at = waits_at
        self.rate_per_s = rate_per_s
        self.phase = ""
        self.sent: Counter[str] = Counter()
        self.served: list[Served] = []
        self.unsent = 0
        self.late_s_max = 0.0
        self._patience_s = patience_s
        self._draw = Draw(clients, deadline_s, seed, mix)
        self._running: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        """Requests without an end."""
        return len(self._running)

    @property
    def failed(self) -> list[Served]:
        """The requests that were not answered."""
        return [one for one in self.served if one.visit.end is not End.ANSWERED]

    @property
    def prompts(self) -> list[str]:
        """The newest prompts that were sent whole and answered."""
        return self._draw.prompts

    async def completed(self, requests: int, within_s: float = 60.0) -> None:
        """Wait until ``requests`` have been sent from now on and have ended; may raise `TimeoutError`."""
        from_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(within_s):
            while sum(one.visit.sent_s >= from_s for one in self.served[-4 * requests :]) < requests:  # noqa: ASYNC110 - plain state without a signal
                await asyncio.sleep(0.02)

    async def __aenter__(self) -> Self:
        self._ticker = asyncio.create_task(self._tick(), name="crowd")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for task in self._running:
                task.cancel()
        await self.stop()

    async def stop(self) -> None:
        """Send no more, and wait for the last ends; at most as long as patience lasts."""
        assert self._ticker is not None
        self._ticker.cancel()
        await asyncio.gather(self._ticker, *self._running, return_exceptions=True)

    async def _tick(self) -> None:
        """Send until cancelled. Requests that fell due while the machine was busy are sent at once."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s += 1 / self.rate_per_s
            await asyncio.sleep(due_s - loop.time())
            self.late_s_max = max(self.late_s_max, loop.time() - due_s)
            while self.open >= (self._waits_at or math.inf):
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                due_s = loop.time()
            if self.open >= OPEN_MAX:
                self.unsent += 1
                continue
            request, urls = self._draw.next(), self._urls()
            name = list(urls)[request.number % len(urls)]
            self.sent[name] += 1
            send = self._send(request, name, urls[name], self.phase, due_s)
            task = asyncio.create_task(send, name="crowd-request")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _send(self, request: Request, name: str, url: str, phase: str, due_s: float) -> None:
        headers = {**request.client.headers, "x-priority": request.priority}
        if request.deadline_s is not None:
            headers["x-request-timeout"] = f"{request.deadline_s:g}"
        seen = await visit(
            url,
            PATH,
            request.body(),
            headers=headers,
            streamed=request.streamed,
            patience_s=self._patience_s,
            leaves_after_s=request.leaves_after_s,
            due_s=due_s,
        )
        self.served.append(
            Served(
                *(request.kind, request.priority, request.client.tenant, phase, name),
                *(request.streamed, request.deadline_s, request.uncached_tokens, seen),
            )
        )
        if seen.end is End.ANSWERED:
            self._draw.answered(request)


def sessions(urls: Sequence[str], *, rate_per_s: float = 60.0) -> Crowd:
    """A crowd of `SESSIONS`, none of whose requests may fail, to run while something else does."""
    return Crowd(
        lambda: {url: url for url in urls},
        [Client("")],
        rate_per_s=rate_per_s,
        deadline_s=30.0,
        patience_s=30.0,
        mix=SESSIONS,
        waits_at=SESSIONS_OPEN_MAX,
    )
