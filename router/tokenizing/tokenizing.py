"""Tokenizing of requests between parsing and placement, for models with a tokenizer.

    begin ── no tokenizer, ids already ─────────────────────────> the request as it is
      ├── seen before ──────────────────────────────────────────> the request with its ids
      ├── short: at once ───────────────────────────────────────> the same
      └── long, or an engine is asked: a job ── in time ──> done(the request with its ids)
              │ the same prompt joins it       └── not ───> done(the request as it is)
              └── goes on: its result is cached for the next turn

If it fails, takes too long or is not supported, the request goes on with its text identity, which is counted
and logged once. Tokenizing releases the interpreter's lock; rendering and decoding do not, but they are a
tenth of it.

Each answer's prompt token count is compared with the ids'. A model whose counts differ time after time
(another template or version at the engine) is set aside for a while.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import msgspec
import xxhash

from router.gateway.endpoints import Endpoint
from router.gateway.identity import Identity, PromptHasher
from router.gateway.parsing import ParsedRequest
from router.metric_families import TOKENIZED_PROMPTS, TOKENIZING_HELD, TOKENIZING_MISCOUNTS
from router.metrics import Metrics
from router.tokenizing.engine import EngineTokenizer, answered, question_of
from router.tokenizing.local import RENDERED, LocalTokenizer
from router.tokenizing.lru import Remembered
from router.tokenizing.refusal import Cause, NotTokenized

logger = logging.getLogger(__name__)

INLINE_BYTES_MAX = 2 * 1024
"""Bodies up to here are tokenized at once: to hand one to a thread and back costs as much
(``python -m loadtest.bench.tokenizing``)."""

LIMIT_S_PER_BYTE = 1e-6
"""Seconds beyond the limit for each byte of a body. Tokenizing takes half of it; the prefill that
it may save, twenty times as long."""

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Larger bodies are not tokenized, which would take tens of seconds."""

JOBS_MAX = 1_000
JOBS_BYTES_MAX = 256 * 1024 * 1024
"""Bounds on jobs that wait for a thread; beyond them requests keep their text identity."""

STALE_S = 5.0
"""Seconds after which a job that no request waits for any more is given up."""

MISCOUNTS_MAX = 8
"""Different counts in a row that are no accident."""

SET_ASIDE_S = 600.0
"""Then a model's prompts keep their text identity for so long."""

Done = Callable[[ParsedRequest], None]
Key = tuple[int, Endpoint, str, bytes]


class _Waiter(msgspec.Struct, eq=False):
    """A request that waits for a job."""

    parsed: ParsedRequest
    done: Done
    since_s: float
    timer: asyncio.TimerHandle | None = None


class Tokenizing:
    """Turns prompts into token ids; for use from the event loop's thread.

    Args:
        tokenizers: By model of requests, ``*`` for all others; None leaves a model's prompts as they are.
        hasher: Chains ids.
        loop: The event loop.
        limit_s: Most seconds that a request waits, beside `LIMIT_S_PER_BYTE`.
        threads: Jobs at a time.
        remembered: Identities by prompt.
        metrics: Count the results.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, LocalTokenizer | EngineTokenizer | None],
        hasher: PromptHasher,
        loop: asyncio.AbstractEventLoop,
        *,
        limit_s: float,
        threads: int,
        remembered: Remembered[Key, Identity],
        metrics: Metrics,
    ) -> None:
        self._tokenizers = tokenizers
        self._others = tokenizers.get("*")
        self._hasher = hasher
        self._loop = loop
        self._limit_s = limit_s
        self._remembered = remembered
        self._metrics = metrics
        self._seed = secrets.randbits(64)
        self._threads = ThreadPoolExecutor(threads, "tokenizing")
        self._jobs: dict[Key, list[_Waiter]] = {}
        self._jobs_bytes = 0
        self._asking: set[asyncio.Task[None]] = set()
        self._said: set[tuple[str, Cause]] = set()
        self._miscounts: dict[str, int] = {}
        self._aside_until_s: dict[str, float] = {}

    def begin(self, parsed: ParsedRequest, body: bytes, done: Done) -> ParsedRequest | None:
        """Find the ids of a request's prompts; return the request to go on with, or None.

        After None ``done`` is called with it, not before this returns, even if the request has ended
        meanwhile.
        """
        model = parsed.model or ""
        tokenizer = self._tokenizers.get(model, self._others)
        if tokenizer is None or not parsed.prompt_bytes or parsed.endpoint not in RENDERED:
            return parsed
        if parsed.ids_root is None or parsed.prompt_token_ids:
            return self._as_it_is(parsed, Cause.UNSUPPORTED, "engines see more of it than token ids", 0.0)
        if self._aside_until_s and self._is_aside(model):
            self._tokenized("set_aside", 0.0)
            return parsed
        if len(body) > BODY_BYTES_MAX:
            return self._as_it_is(parsed, Cause.TOO_LARGE, f"it has {len(body)} bytes", 0.0)
        variant = tokenizer.variant() if isinstance(tokenizer, LocalTokenizer) else model
        key = (parsed.ids_root, parsed.endpoint, variant, xxhash.xxh3_128_digest(body, self._seed))
        cached = self._remembered.get(key)
        if cached is not None:
            self._tokenized("remembered", 0.0)
            return with_identity(parsed, cached)
        if len(body) <= INLINE_BYTES_MAX and isinstance(tokenizer, LocalTokenizer):
            began_s = perf_counter()
            try:
                identity = self._hasher.identify_packed(
                    parsed.ids_root, tokenizer.packed(parsed.endpoint, body)
                )
            except Exception as error:  # noqa: BLE001 - after any error the request goes on
                refusal = _refusal(error)
                return self._as_it_is(parsed, refusal.cause, refusal.detail, perf_counter() - began_s)
            self._keep(key, identity)
            self._tokenized("at_once", perf_counter() - began_s)
            return with_identity(parsed, identity)
        waiter = _Waiter(parsed, done, perf_counter())
        waiters = self._jobs.get(key)
        if waiters is None:
            if len(self._jobs) >= JOBS_MAX or self._jobs_bytes + len(body) > JOBS_BYTES_MAX:
                return self._as_it_is(parsed, Cause.BUSY, "too many prompts wait for a thread", 0.0)
            waiters = self._jobs[key] = []
            self._jobs_bytes += len(body)
            self._start(key, tokenizer, parsed, body)
        waiters.append(waiter)
        limit_s = self._limit_s + LIMIT_S_PER_BYTE * len(body)
        waiter.timer = self._loop.call_later(limit_s, self._late, key, waiter)
        return None

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        """Find out the ids of a request's prompts, as `begin` does."""
        future: asyncio.Future[ParsedRequest] = self._loop.create_future()

        def done(found: ParsedRequest) -> None:
            if not future.done():
                future.set_result(found)

        found = self.begin(parsed, body, done)
        return await future if found is None else found

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Compare an engine's count of a single prompt with its ids."""
        model = parsed.model or ""
        if prompt_tokens == parsed.prompt_token_ids:
            self._miscounts.pop(model, None)
            return
        # Names that are in the settings; all others are '*'.
        self._metrics.counts[TOKENIZING_MISCOUNTS].add((model if model in self._tokenizers else "*",))
        if len(self._miscounts) >= JOBS_MAX:
            self._miscounts.clear()
        count = self._miscounts[model] = self._miscounts.get(model, 0) + 1
        if count < MISCOUNTS_MAX:
            return
        del self._miscounts[model]
        self._aside_until_s[model] = self._loop.time() + SET_ASIDE_S
        logger.error(
            "an engine's prompts have other token ids than ours: its template or tokenizer is another one",
            extra={
                "event": "tokenizing.miscounted",
                "model": model,
                "prompt_tokens": prompt_tokens,
                "prompt_token_ids": parsed.prompt_token_ids,
                "set_aside_s": SET_ASIDE_S,
            },
        )

    def close(self) -> None:
        """Begin no more jobs; those under way end in their time."""
        for task in self._asking:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Jobs.

    def _start(
        self, key: Key, tokenizer: LocalTokenizer | EngineTokenizer, parsed: ParsedRequest, body: bytes
    ) -> None:
        if isinstance(tokenizer, EngineTokenizer):
            task = self._loop.create_task(self._ask(key, tokenizer, parsed, body), name="tokenizing")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            return
        future = self._threads.submit(self._found, key, tokenizer, body, perf_counter())
        future.add_done_callback(lambda ended: self._tell(key, body, ended))

    def _found(self, key: Key, tokenizer: LocalTokenizer, body: bytes, queued_s: float) -> Identity:
        """In a thread: return the identity of a body's prompts."""
        if perf_counter() - queued_s > STALE_S:
            raise NotTokenized(Cause.BUSY, "it waited too long for a thread")
        return self._hasher.identify_packed(key[0], tokenizer.packed(key[1], body))

    def _tell(self, key: Key, body: bytes, ended: "Future[Identity]") -> None:
        """In a thread: call the loop, if it still runs."""
        if ended.cancelled():
            return
        error = ended.exception()
        try:
            self._loop.call_soon_threadsafe(self._ended, key, len(body), error or ended.result())
        except RuntimeError:
            logger.debug("the loop has ended before a prompt was tokenized")

    async def _ask(self, key: Key, tokenizer: EngineTokenizer, parsed: ParsedRequest, body: bytes) -> None:
        run = self._loop.run_in_executor
        try:
            served = "" if parsed.choice is None else parsed.model or ""
            question = await run(self._threads, question_of, parsed.endpoint, body, served)
            answer = await tokenizer.asked(parsed.model or "", question, self._limit_s)
            found: Identity | BaseException = await run(
                self._threads, lambda: self._hasher.identify_packed(key[0], answered(answer))
            )
        except Exception as error:  # noqa: BLE001 - the waiting request goes on
            found = error
        self._ended(key, len(body), found)

    def _ended(self, key: Key, body_bytes: int, found: Identity | BaseException) -> None:
        """Let the requests go on that waited for a job."""
        self._jobs_bytes -= body_bytes
        waiters = self._jobs.pop(key)
        if isinstance(found, Identity):
            self._keep(key, found)
        else:
            found = _refusal(found)
        for waiter in waiters:
            if waiter.timer is not None:
                waiter.timer.cancel()
            held_s = perf_counter() - waiter.since_s
            if isinstance(found, Identity):
                self._tokenized("in_a_thread", held_s)
                waiter.done(with_identity(waiter.parsed, found))
            else:
                waiter.done(self._as_it_is(waiter.parsed, found.cause, found.detail, held_s))

    def _late(self, key: Key, waiter: _Waiter) -> None:
        """Let a request go on after its limit."""
        self._jobs[key].remove(waiter)
        held_s = perf_counter() - waiter.since_s
        waiter.done(self._as_it_is(waiter.parsed, Cause.LATE, f"it took more than {held_s:.3g} s", held_s))

    # Inside.

    def _keep(self, key: Key, identity: Identity) -> None:
        self._remembered.put(key, identity, sum(map(len, identity.paths)))

    def _tokenized(self, how: str, held_s: float) -> None:
        """Count a request by its result, and the seconds that it waited."""
        self._metrics.counts[TOKENIZED_PROMPTS].add((how,))
        self._metrics.distributions[TOKENIZING_HELD].observe(held_s)

    def _as_it_is(self, parsed: ParsedRequest, cause: Cause, detail: str, held_s: float) -> ParsedRequest:
        """Let a request go on with its text identity."""
        self._tokenized(cause.value, held_s)
        model = parsed.model or ""
        known_as = model if model in self._tokenizers else "*"
        if (known_as, cause) not in self._said:
            self._said.add((known_as, cause))
            logger.warning(
                "a prompt keeps its text identity, which matches no token ids; said once",
                extra={
                    "event": "tokenizing.refused",
                    "model": model,
                    "reason": cause.value,
                    "detail": detail,
                },
            )
        return parsed

    def _is_aside(self, model: str) -> bool:
        until_s = self._aside_until_s.get(model)
        if until_s is None:
            return False
        if self._loop.time() < until_s:
            return True
        del self._aside_until_s[model]
        return False


def _refusal(error: BaseException) -> NotTokenized:
    """Return the cause and detail of a failure; an unexpected one is logged as a bug."""
    if isinstance(error, NotTokenized):
        return error
    logger.error("a prompt could not be tokenized", exc_info=error, extra={"event": "tokenizing.crashed"})
    return NotTokenized(Cause.FAILED, type(error).__name__)


def with_identity(parsed: ParsedRequest, identity: Identity) -> ParsedRequest:
    """Return a request with its prompts as token ids."""
    return msgspec.structs.replace(
        parsed,
        paths=identity.paths,
        prompt_bytes=0,
        prompt_token_ids=identity.prompt_token_ids,
        key=identity.key,
        prefix_key=identity.prefix_key,
        tokenized_bytes=parsed.prompt_bytes,
    )
