"""Workers with a real block cache and a prefill queue, cheap enough to share two cores with a router.

A child (`loadtest.bench.child`): it gets a `WorkerPlan`, says its ports, and when its input ends a
`WorkerReport` for each worker.

    arrival ──> FIFO queue ──> match in the LRU cache, prefill ──> touch all blocks ──> decode: 4 chunks

Times are divided by `WorkerPlan.speed`. A prefill begins when its predecessor was due to end, so a late timer
delays one first token and not all that follow.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from functools import partial

import msgspec

from loadtest.bench.child import input_ended, say
from loadtest.bench.mock_server import MockConnection, answered, framed, listening

BLOCK_TOKENS = 512
CHARS_PER_TOKEN = 4
_BLOCK_CHARS = BLOCK_TOKENS * CHARS_PER_TOKEN
CHUNKS = 4
"""Events of a streamed answer, spread evenly over its decode time."""

_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODEL = {"id": "mock", "object": "model", "created": 1, "owned_by": "mock", "max_model_len": 1048576}
_INFO = {
    "model_path": "mock",
    "tokenizer_path": "mock",
    "is_generation": True,
    "model_type": "llama",
    "served_model_name": "mock",
    "dp_size": 1,
    "version": "mock",
}
_ANSWERS = {
    b"/v1/models": msgspec.json.encode({"object": "list", "data": [_MODEL]}),
    **dict.fromkeys(
        (b"/get_model_info", b"/get_server_info", b"/server_info", b"/model_info"), msgspec.json.encode(_INFO)
    ),
    **dict.fromkeys((b"/health", b"/health_generate", b"/ready", b"/live", b"/"), b"ok"),
}


class WorkerPlan(msgspec.Struct, frozen=True):
    """Workers of one run; times in trace time.

    Attributes:
        cache_tokens: Per worker, like ``prefill_tokens_per_s``.
        speed: Trace seconds in a second.
        fixed_s: Part of a prefill that does not depend on its length.
        token_s: Decode time of one token.
    """

    workers: int
    cache_tokens: int
    prefill_tokens_per_s: float
    speed: float
    fixed_s: float = 0.03
    token_s: float = 0.02


class WorkerReport(msgspec.Struct, frozen=True):
    """Counts of one worker's finished prefills; times in trace time.

    Attributes:
        late_s: Sum of the delays of first tokens after they were due.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    busy_s: float
    late_s: float


class _Message(msgspec.Struct):
    content: str


class _Request(msgspec.Struct):
    messages: list[_Message]
    max_tokens: int = 16
    stream: bool = False


_DECODER = msgspec.json.Decoder(_Request)


def block_keys(prompt: str) -> list[bytes]:
    """Return a key for each full block of a prompt; a key stands for the whole prefix up to its block."""
    text, keys, digest = prompt.encode(), [], hashlib.blake2b(digest_size=8)
    for end in range(_BLOCK_CHARS, len(text) + 1, _BLOCK_CHARS):
        digest.update(text[end - _BLOCK_CHARS : end])
        keys.append(digest.digest())
    return keys


class BlockCache:
    """Prefix cache of ``blocks_max`` blocks that evicts the one used longest ago."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, keys: list[bytes]) -> int:
        """Return how many leading blocks it holds."""
        for at, key in enumerate(keys):
            if key not in self._blocks:
                return at
        return len(keys)

    def touch(self, keys: list[bytes]) -> None:
        """Hold these blocks, in this order of use, and evict what is too much."""
        blocks = self._blocks
        for key in keys:
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self._blocks_max:
            blocks.popitem(last=False)


class MockWorker:
    """One worker: its cache, its queue and its figures."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._cache = BlockCache(plan.cache_tokens // BLOCK_TOKENS)
        self._queue: deque[_Exchange] = deque()
        self._requests = self._prompt_tokens = self._cached_tokens = 0
        self._busy_s = self._late_s = 0.0
        self.running = 0

    def enqueue(self, exchange: "_Exchange") -> None:
        """Take a request; it is prefilled when its turn comes."""
        self._queue.append(exchange)
        if len(self._queue) == 1:
            self._begin(self._loop.time())

    def metrics(self) -> bytes:
        """Return vLLM's gauges of load."""
        usage = len(self._cache) / max(1, self._plan.cache_tokens // BLOCK_TOKENS)
        return (
            f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {len(self._queue)}\n"
            f"vllm:kv_cache_usage_perc {usage}\n"
        ).encode()

    def report(self) -> WorkerReport:
        """Return what it did."""
        return WorkerReport(
            self._requests, self._prompt_tokens, self._cached_tokens, self._busy_s, self._late_s
        )

    def _begin(self, at_s: float) -> None:
        plan, exchange = self._plan, self._queue[0]
        matched_tokens = self._cache.matched(exchange.keys) * BLOCK_TOKENS
        exchange.cached_tokens = min(matched_tokens, exchange.prompt_tokens - 1)
        uncached_tokens = exchange.prompt_tokens - exchange.cached_tokens
        took_s = plan.fixed_s + uncached_tokens / plan.prefill_tokens_per_s
        self._busy_s += took_s
        due_s = at_s + took_s / plan.speed
        self._loop.call_at(due_s, self._end, due_s)

    def _end(self, due_s: float) -> None:
        exchange = self._queue.popleft()
        self._late_s += (self._loop.time() - due_s) * self._plan.speed
        self._cache.touch(exchange.keys)
        self._requests += 1
        self._prompt_tokens += exchange.prompt_tokens
        self._cached_tokens += exchange.cached_tokens
        if self._queue:
            self._begin(due_s)
        exchange.decode(self._plan.token_s / self._plan.speed)


class _Exchange:
    def __init__(self, worker: MockWorker, transport: asyncio.WriteTransport, request: _Request) -> None:
        self._worker, self._transport, self._request = worker, transport, request
        prompt = "".join(message.content for message in request.messages)
        self.keys = block_keys(prompt)
        self.prompt_tokens = max(1, len(prompt) // CHARS_PER_TOKEN)
        self.cached_tokens = 0
        self._steps = max(1, min(request.max_tokens, CHUNKS))

    def decode(self, token_s: float) -> None:
        """Send the answer: a stream in steps, any other when it is complete; none on a closed connection."""
        if self._transport.is_closing():
            return
        self._worker.running += 1
        loop = asyncio.get_running_loop()
        if self._request.stream:
            self._transport.write(_STREAM_HEAD)
            self._step(0, loop.time(), self._request.max_tokens * token_s / self._steps)
        else:
            loop.call_later(self._request.max_tokens * token_s, self._whole)

    def _step(self, at: int, due_s: float, gap_s: float) -> None:
        if self._transport.is_closing():
            self._worker.running -= 1
            return
        last = at == self._steps - 1
        choice = {"index": 0, "delta": {"content": "tok "}, "finish_reason": "stop" if last else None}
        event = _head("chat.completion.chunk", [choice]) | ({"usage": self._usage()} if last else {})
        data = b"data: %b\n\n" % msgspec.json.encode(event)
        if last:
            self._worker.running -= 1
            data += b"data: [DONE]\n\n"
        self._transport.write(framed(data) + (b"0\r\n\r\n" if last else b""))
        if not last:
            due_s += gap_s
            asyncio.get_running_loop().call_at(due_s, self._step, at + 1, due_s, gap_s)

    def _whole(self) -> None:
        self._worker.running -= 1
        if self._transport.is_closing():
            return
        message = {"role": "assistant", "content": "ok"}
        answer = _head("chat.completion", [{"index": 0, "message": message, "finish_reason": "stop"}])
        self._transport.write(answered(msgspec.json.encode(answer | {"usage": self._usage()})))

    def _usage(self) -> dict[str, object]:
        prompt_tokens, output_tokens = self.prompt_tokens, self._request.max_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def _head(kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
    return {"id": "x", "object": kind, "created": 1, "model": "mock", "choices": choices}


class _Connection(MockConnection):
    def __init__(self, worker: MockWorker) -> None:
        super().__init__()
        self._worker = worker

    def asked(self, transport: asyncio.WriteTransport, path: bytes, body: bytes) -> None:
        if path == b"/v1/chat/completions":
            self._worker.enqueue(_Exchange(self._worker, transport, _DECODER.decode(body)))
        elif path == b"/metrics":
            transport.write(answered(self._worker.metrics()))
        elif answer := _ANSWERS.get(path):
            transport.write(answered(answer))
        else:
            transport.write(answered(b"{}", b"404 Not Found"))


async def serve(plan: WorkerPlan) -> None:
    """Serve until the input ends, then say what each worker did."""
    workers = [MockWorker(plan) for _ in range(plan.workers)]
    say(await listening(partial(_Connection, worker) for worker in workers))
    await input_ended()
    say([worker.report() for worker in workers])
