"""Engines that compute nothing, so that a benchmark measures the gateway and not them.

A child (`loadtest.bench.child`): it gets an `EnginePlan`, says its ports, and ends when its input does. A
chat request carries its number in ``user`` and the chunks of its stream in ``max_tokens``; every byte of the
answer follows from these (`whole_answer`, `streamed_answer`), so the client can check all of them.

Streams share one gap between chunks, cut into slots: a stream keeps the phase in which it came and needs no
timer. On a slow machine the gap gets longer; nothing is sent in a burst.
"""

import asyncio
from functools import partial

import msgspec

from loadtest.bench.child import input_ended, say
from loadtest.bench.mock_server import MockConnection, answered, framed, listening

MODEL = "mock"
CAPACITY_TOKENS = 400_000
"""Reported cache size of each engine: a gateway's picture of it is full after 1,600 blocks."""

SLOTS_MAX = 100
SLOT_S_MIN = 0.001
"""uvloop's timers know whole milliseconds."""


class EnginePlan(msgspec.Struct, frozen=True):
    """Number of engines, the gap between two chunks of a stream, and their model."""

    engines: int
    gap_s: float
    model: str = MODEL


class ChatMessage(msgspec.Struct):
    """Needed field of a message."""

    content: str


class ChatRequest(msgspec.Struct):
    """Needed fields of a request."""

    user: str
    max_tokens: int
    messages: list[ChatMessage]
    stream: bool = False


def chunk(number: int, at: int) -> bytes:
    """One event of a stream; all have the same length."""
    return (
        b'data: {"id":"%08d","object":"chat.completion.chunk","model":"mock",'
        b'"choices":[{"index":0,"delta":{"content":"%08d "},"finish_reason":null}]}\n\n' % (number, at)
    )


CHUNK_BYTES = len(chunk(0, 0))


def last_chunk(number: int, chunks: int, prompt_tokens: int) -> bytes:
    """The events that end a stream."""
    return b'data: {"id":"%08d","object":"chat.completion.chunk","model":"mock","choices":[],%b}\n\n%b' % (
        number,
        _usage(prompt_tokens, chunks),
        b"data: [DONE]\n\n",
    )


def streamed_answer(number: int, chunks: int, prompt_tokens: int) -> bytes:
    """The body of a streamed answer."""
    events = [chunk(number, at) for at in range(chunks)]
    return b"".join([*events, last_chunk(number, chunks, prompt_tokens)])


def whole_answer(number: int, tokens: int, prompt_tokens: int) -> bytes:
    """The body of an answer that is not streamed."""
    return b'{"id":"%08d","object":"chat.completion","model":"mock","choices":[%b],%b}' % (
        number,
        b'{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}' % (b"x" * 200),
        _usage(prompt_tokens, tokens),
    )


def prompt_tokens_of(prompt: str) -> int:
    """Number of tokens of a prompt."""
    return len(prompt) // 4 + 1


def _usage(prompt_tokens: int, tokens: int) -> bytes:
    return b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
        prompt_tokens,
        tokens,
        prompt_tokens + tokens,
    )


class Streams:
    """All streams that are not complete."""

    def __init__(self, gap_s: float) -> None:
        self._slots: list[list[_Stream]] = [
            [] for _ in range(max(1, min(SLOTS_MAX, int(gap_s / SLOT_S_MIN))))
        ]
        self._slot_s = gap_s / len(self._slots)
        self._slot = 0

    def begin(self, transport: asyncio.WriteTransport, request: ChatRequest) -> None:
        """Send the head and the first chunk; the others follow."""
        transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        stream = _Stream(transport, request)
        if stream.goes_on():
            self._slots[self._slot - 1].append(stream)  # the slot just served: next in a gap from now

    async def run(self) -> None:
        """Serve the slots in turn, until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            self._slots[self._slot] = [stream for stream in self._slots[self._slot] if stream.goes_on()]
            self._slot = (self._slot + 1) % len(self._slots)
            due_s = max(due_s + self._slot_s, loop.time())
            await asyncio.sleep(due_s - loop.time())


class _Stream:
    __slots__ = ("_at", "_request", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, request: ChatRequest) -> None:
        self._transport = transport
        self._request = request
        self._at = 0

    def goes_on(self) -> bool:
        """Send one chunk, with the end of the stream if it is the last; whether there are more."""
        request, number = self._request, int(self._request.user)
        if self._transport.is_closing():
            return False
        self._transport.write(framed(chunk(number, self._at)))
        self._at += 1
        if self._at < request.max_tokens:
            return True
        end = last_chunk(number, self._at, prompt_tokens_of(request.messages[0].content))
        self._transport.write(framed(end) + b"0\r\n\r\n")
        return False


_DECODER = msgspec.json.Decoder(ChatRequest)


class EngineConnection(MockConnection):
    """One connection of the gateway. An empty body asks for the model and the size of the cache."""

    def __init__(self, streams: Streams, model: str = MODEL) -> None:
        super().__init__()
        self._streams = streams
        self._model = model

    def asked(self, transport: asyncio.WriteTransport, path: bytes, body: bytes) -> None:
        """Answer."""
        if not body:
            info = {"object": "list", "data": [{"id": self._model}], "max_total_num_tokens": CAPACITY_TOKENS}
            transport.write(answered(msgspec.json.encode(info)))
            return
        request = _DECODER.decode(body)
        if request.stream:
            self._streams.begin(transport, request)
        else:
            prompt_tokens = prompt_tokens_of(request.messages[0].content)
            transport.write(answered(whole_answer(int(request.user), request.max_tokens, prompt_tokens)))


async def serve(plan: EnginePlan) -> None:
    """Serve until the input ends."""
    streams = Streams(plan.gap_s)
    say(await listening([partial(EngineConnection, streams, plan.model)] * plan.engines))
    ticking = asyncio.create_task(streams.run(), name="streams")
    await input_ended()
    ticking.cancel()
