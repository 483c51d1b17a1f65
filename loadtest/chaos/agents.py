"""A load whose answers are known beforehand: sessions, plain requests, pairs, and clients who leave.

    turn    65 %   a session's next one: application's prompt, all earlier turns and answers, a new message
    plain   20 %   a prompt of its own, new
    pair    15 %   a prompt for the model whose prefill and decode are apart, half of them seen before

Two of three answers are streamed; one client in thirty leaves early. An emulated engine's answer follows from
its prompt (`loadtest.engine.outputs`), so every byte is compared. The loop is closed: each client waits for
its answer, thinks, and asks again. Sessions go to random replicas, as behind a balancer.
"""

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from loadtest.chaos.testbed import PAIR_MODEL, TENANTS
from loadtest.chaos.visitor import End, Visit, visit
from loadtest.engine.template import render_chat
from loadtest.engine.tokens import seed_of, words
from loadtest.workload import MODEL
from loadtest.workload import words as new_words

PATH = "/v1/chat/completions"
KINDS = {"turn": 0.65, "plain": 0.20, "pair": 0.15}
APPLICATIONS = 4
SYSTEM_TOKENS = 1500
MESSAGE_TOKENS = (150, 600)
PLAIN_TOKENS = (300, 1200)
TURNS = (4, 12)
OUTPUT_TOKENS = (6, 30)
LONG_OUTPUT_SHARE = 0.05
LONG_OUTPUT_TOKENS = 250
"""Seconds of decoding: runs across the beginning of a fault."""

STREAMED_SHARE = 2 / 3
LEAVING_SHARE = 1 / 30
LEAVES_AFTER_S = (0.02, 0.6)
PATIENCE_S = 75.0
"""Longer than a gateway lets any request take (`loadtest.chaos.testbed.FLAGS`)."""

SESSIONS_SHARE = 0.8
BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """Outcome of one request.

    Attributes:
        kind: A key of `KINDS`.
        reusable_tokens: Prompt tokens sent and answered before, in whole blocks.
        cached_tokens: By the engine; None if it did not say.
        visit: Its end, without the body.
        wrong: Error in the content; empty for none.
    """

    request_id: str
    kind: str
    replica: str
    streamed: bool
    reusable_tokens: int
    cached_tokens: int | None
    visit: Visit
    wrong: str


@dataclass(frozen=True, slots=True)
class Question:
    """One request, before it is sent."""

    kind: str
    messages: Sequence[Mapping[str, str]]
    output_tokens: int
    streamed: bool
    reusable_tokens: int
    leaves_after_s: float | None

    @property
    def model(self) -> str:
        """Model of the request."""
        return PAIR_MODEL if self.kind == "pair" else MODEL

    def expected(self) -> str:
        """The only right answer."""
        return words(seed_of(render_chat(list(self.messages), None), 0), self.output_tokens).decode()

    def body(self) -> bytes:
        """The JSON that is sent."""
        asked: dict[str, Any] = {"model": self.model, "messages": self.messages}
        asked |= {"max_tokens": self.output_tokens, "ignore_eos": True}
        if self.streamed:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(asked).encode()


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Piece(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_piece = msgspec.json.Decoder(_Piece)


@dataclass(frozen=True, slots=True)
class Read:
    """Parsed answer: its text, and the cached tokens of the prompt."""

    text: str
    prompt_tokens: int
    cached_tokens: int | None


def read(body: bytes, *, streamed: bool, broken: bool = False) -> Read:
    """Read an answer, or of a broken one the whole events; `msgspec.DecodeError` if it is none."""
    text, prompt_tokens, cached_tokens = "", 0, None
    events = body.split(b"\n\n")[:-1] if streamed else [b"data: " + body]
    for event in events:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            continue
        try:
            piece = _piece.decode(data)
        except msgspec.DecodeError:
            if broken:
                break
            raise
        for choice in piece.choices:
            message = choice.delta or choice.message
            text += (message and message.content) or ""
        if piece.usage is not None:
            prompt_tokens = piece.usage.prompt_tokens
            details = piece.usage.prompt_tokens_details
            # SGLang leaves the details out where nothing was cached.
            cached_tokens = (details and details.cached_tokens) or 0
    return Read(text, prompt_tokens, cached_tokens)


def fault_of(question: Question, seen: Visit) -> tuple[str, Read | None]:
    """Return the error in an answer's content, and the parsed answer.

    A complete one is the expected text; a broken one begins as that does; nothing follows either.
    """
    if seen.surplus_bytes:
        return f"{seen.surplus_bytes} bytes behind the end of the answer", None
    if seen.status != 200 or not seen.body:
        return "", None
    if seen.end is not End.ANSWERED and not question.streamed:
        return "", None
    try:
        parsed = read(seen.body, streamed=question.streamed, broken=seen.end is not End.ANSWERED)
    except msgspec.DecodeError as error:
        return f"not an answer: {error}: {seen.body[:200]!r}", None
    expected = question.expected()
    if seen.end is End.ANSWERED and parsed.text != expected:
        return f"{_difference(parsed.text, expected)}", None
    if not expected.startswith(parsed.text):
        return f"broken off, and not as it begins: {_difference(parsed.text, expected)}", None
    return "", parsed


def _difference(text: str, expected: str) -> str:
    at = next(
        (at for at, (one, other) in enumerate(zip(text, expected, strict=False)) if one != other),
        min(len(text), len(expected)),
    )
    return f"{len(text)} bytes of {len(expected)}, the same up to {at}: {text[at : at + 40]!r}"


class Agents:
    """The clients; an async context manager that sends until it is left.

    Args:
        urls: Base URLs of the replicas behind the balancer now, by name.
        headers: Headers of each tenant.
        clients: Number of clients.
        think_s: Mean pause of each between an answer and its next request.

    Attributes:
        asked: Outcomes of the newest `KEPT_MAX` requests.
        ends: Ends of all requests.
        late_s_max: Largest delay of the clients' event loop: the machine's part of every time.
    """

    KEPT_MAX = 20_000

    def __init__(
        self,
        urls: Callable[[], Mapping[str, str]],
        headers: Callable[[str], Mapping[str, str]],
        *,
        clients: int,
        think_s: float,
        seed: int,
    ) -> None:
        self._urls = urls
        self._headers = headers
        self._clients = clients
        self._think_s = think_s
        self._seed = seed
        self._going = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[Visit]] = set()
        self._numbers = 0
        self._systems = [
            new_words(random.Random(f"{seed}/system/{number}"), SYSTEM_TOKENS)
            for number in range(APPLICATIONS)
        ]
        self.asked: deque[Asked] = deque(maxlen=self.KEPT_MAX)
        self.ends: Counter[str] = Counter()
        self.sent = 0
        self.late_s_max = 0.0

    @property
    def open(self) -> int:
        """Requests without an end."""
        return len(self._open)

    async def __aenter__(self) -> "Agents":
        self._going.set()
        whole = round(self._clients * SESSIONS_SHARE)
        for number in range(self._clients):
            client = self._session if number < whole else self._single
            self._tasks.append(asyncio.create_task(client(number), name="chaos-client"))
        self._tasks.append(asyncio.create_task(self._late(), name="chaos-late"))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what ended a client, if anything did: none ends by itself."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def pause(self) -> None:
        """Ask nothing more, and wait until all that was asked is over; patience bounds that."""
        self._going.clear()
        while self.sent != self.ends.total():
            if self._open:
                await asyncio.wait(self._open)
            await asyncio.sleep(0.01)

    def resume(self) -> None:
        """Ask again."""
        self._going.set()

    def leave(self) -> int:
        """All who wait now close their connections; how many that are."""
        for task in self._open:
            task.cancel()
        return len(self._open)

    async def _session(self, number: int) -> None:
        for life in range(1_000_000):
            chance = random.Random(f"{self._seed}/session/{number}/{life}")
            system = self._systems[chance.randrange(APPLICATIONS)]
            messages: list[dict[str, str]] = [{"role": "system", "content": system}]
            reusable_tokens = 0
            for _ in range(chance.randint(*TURNS)):
                await self._thought(chance)
                messages.append(
                    {"role": "user", "content": new_words(chance, chance.randint(*MESSAGE_TOKENS))}
                )
                answer = await self._ask(chance, "turn", messages, reusable_tokens)
                if answer is None:
                    break  # an agent that got no answer starts over
                messages.append({"role": "assistant", "content": answer.text})
                # The answer's own tokens and the one that ends the prompt are not counted on.
                reusable_tokens = max(0, answer.prompt_tokens // BLOCK_TOKENS - 1) * BLOCK_TOKENS

    async def _single(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/single/{number}")
        seen: deque[list[dict[str, str]]] = deque(maxlen=8)
        while True:
            await self._thought(chance)
            if chance.random() < KINDS["plain"] / (KINDS["plain"] + KINDS["pair"]):
                text = new_words(chance, chance.randint(*PLAIN_TOKENS))
                await self._ask(chance, "plain", [{"role": "user", "content": text}], 0)
                continue
            messages = list(chance.choice(seen)) if seen and chance.random() < 0.5 else []
            text = new_words(chance, chance.randint(*PLAIN_TOKENS))
            messages.append({"role": "user", "content": text})
            if await self._ask(chance, "pair", messages, 0) is not None and len(messages) < 4:
                seen.append(messages)

    async def _thought(self, chance: random.Random) -> None:
        await asyncio.sleep(chance.expovariate(1 / self._think_s))
        await self._going.wait()
        while not self._urls():  # noqa: ASYNC110 - processes begin to listen without telling
            await asyncio.sleep(0.1)

    async def _ask(
        self, chance: random.Random, kind: str, messages: Sequence[Mapping[str, str]], reusable_tokens: int
    ) -> Read | None:
        """Send one; return the answer's text, if it is complete."""
        streamed = chance.random() < STREAMED_SHARE
        long = chance.random() < LONG_OUTPUT_SHARE
        tokens = LONG_OUTPUT_TOKENS if long else chance.randint(*OUTPUT_TOKENS)
        leaves_after_s = chance.uniform(*LEAVES_AFTER_S) if chance.random() < LEAVING_SHARE else None
        question = Question(kind, tuple(messages), tokens, streamed, reusable_tokens, leaves_after_s)
        names = self._urls()
        replica = chance.choice(sorted(names))
        self._numbers += 1
        request_id = f"chaos-{self._seed}-{self._numbers}"
        named = {"x-request-id": request_id, "x-correlation-id": request_id}
        headers = {**self._headers(chance.choice(TENANTS).name), **named}
        loop = asyncio.get_running_loop()
        self.sent += 1
        began_s = loop.time()
        task = asyncio.create_task(
            visit(
                names[replica],
                PATH,
                question.body(),
                headers=headers,
                streamed=streamed,
                patience_s=PATIENCE_S,
                leaves_after_s=leaves_after_s,
                whole=True,
            ),
            name="chaos-request",
        )
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            seen = await task
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise
            seen = Visit(End.LEFT, began_s, began_s, loop.time(), None, 0, "", None, "")
        wrong, parsed = fault_of(question, seen)
        self.ends[seen.end.value] += 1
        self.asked.append(
            Asked(
                request_id,
                kind,
                replica,
                streamed,
                reusable_tokens,
                None if parsed is None or seen.end is not End.ANSWERED else parsed.cached_tokens,
                replace(seen, body=b""),
                wrong,
            )
        )
        return parsed if seen.end is End.ANSWERED and not wrong else None

    async def _late(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + 0.1
            await asyncio.sleep(0.1)
            self.late_s_max = max(self.late_s_max, loop.time() - due_s)
