"""When tokens come: one prefill server, decode slots and a queue, on a clock that is passed in.

    submit -> waiting --admitted--> prefill --first token--> running --last token--> finished
                 +--------------------+------------------------+----- abort: leaves at once

* **Prefill** is serial. A step of tokens ``u_i`` behind contexts ``c_i`` takes
  ``a + sum(b * u_i * (1 + (c_i + u_i / 2) / c0))`` seconds. Without chunks a step is one whole
  prompt, so its time is the service-time formula of design section 5; with chunks a step takes
  up to ``chunk_tokens`` from several requests, in order of arrival, and a long prompt needs
  several steps, whose times add up to the same formula but for ``a``.
* **Admission** is first come, first served, when a slot is free and the cache has room for
  the whole request.
* **What is shared.** A SGLang engine inserts blocks after the step that computed them, so
  requests of one step do not share. A vLLM engine shares blocks that are still being computed.
* **Decode** goes in steps of ``tpot`` for all running requests. Steps that come due within the
  emission interval are delivered together, by one timer for the whole engine.

Modelled times do not drift: a step begins when the one before it was due to end, however late
the timer was.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.engine.cache import BlockCache, Lease
from loadtest.engine.outputs import Output
from loadtest.engine.settings import EngineSettings
from loadtest.engine.tokens import TOKEN_BYTES, count


class Timer(Protocol):
    """A call that has not happened yet."""

    def cancel(self) -> None:
        """Do not call."""


class Clock(Protocol):
    """The part of an event loop that the scheduler needs; times are in seconds."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Call later."""


class Sink(Protocol):
    """Who waits for the tokens of a job. May not call the scheduler back synchronously."""

    def emitted(self, job: "Job") -> None:
        """More tokens came: ``job.emitted_tokens`` in all."""

    def finished(self, job: "Job", reason: str) -> None:
        """No more tokens come. ``reason`` is that of the output, or ``abort``."""


@dataclass(slots=True, eq=False)
class Job:
    """One prompt with one answer, on its way through the engine.

    Attributes:
        tokens: Packed prompt.
        namespace: Which cache namespace it may share.
        output: What the answer will be; no tokens for embeddings.
        sink: Who is told.
        index: Number of the answer within its request.
        id: What the engine's clients call it.
        cached_tokens: Prompt tokens that needed no prefill; known from admission on.
        emitted_tokens: Tokens of the answer that have come.
        arrived_s: When it was submitted.
        started_s: When its prefill began.
        first_s: When its first token came.
    """

    tokens: bytes
    namespace: bytes
    output: Output
    sink: Sink
    index: int = 0
    id: str = ""
    cached_tokens: int = 0
    emitted_tokens: int = 0
    arrived_s: float = 0.0
    started_s: float = 0.0
    first_s: float = 0.0
    prompt_tokens: int = field(init=False)
    context_tokens: int = field(init=False, default=0)
    lease: Lease | None = field(init=False, default=None)
    done: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Count the prompt once."""
        self.prompt_tokens = count(self.tokens)


class Observer(Protocol):
    """Who counts: told once about each job that leaves, with ``job.lease`` still set if it had one."""

    def left(self, job: Job, reason: str, now_s: float) -> None:
        """A job finished or was aborted."""


class Scheduler:
    """The queue, the prefill server and the decode slots of one engine.

    Args:
        settings: The model of time; see `EngineSettings`.
        cache: The KV cache.
        clock: The event loop, or a virtual clock.
        observer: Told about every job that leaves.
    """

    def __init__(self, settings: EngineSettings, cache: BlockCache, clock: Clock, observer: Observer) -> None:
        self._cache = cache
        self._clock = clock
        self._observer = observer
        self._base_s = settings.prefill_base_ms / 1e3 / settings.speed
        self._token_s = 1 / settings.prefill_tokens_per_s / settings.speed
        self._c0_tokens = settings.context_tokens
        self._chunk_tokens = settings.chunk_tokens
        self._share_early = settings.dialect == "vllm" and settings.chunk_tokens > 0
        self._max_running = settings.max_running
        self._tpot_s = settings.tpot_ms / 1e3 / settings.speed
        self._tpot_batch = settings.tpot_batch
        self._emit_s = settings.emit_interval_ms / 1e3
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._running: dict[Job, None] = {}
        self._step: list[tuple[Job, int]] = []
        self._step_timer: Timer | None = None
        self._step_end_s = 0.0
        self._decode_timer: Timer | None = None
        self._decoded_until_s = 0.0
        self._closed = False
        self.busy_s = 0.0
        self.running_max = 0

    @property
    def waiting(self) -> int:
        """Jobs not admitted yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs in prefill or decode."""
        return len(self._prefilling) + len(self._running)

    def submit(self, job: Job) -> None:
        """Queue a job. Its prompt and answer must fit the cache's capacity when it is empty."""
        job.arrived_s = self._clock.time()
        self._waiting.append(job)
        if self._step_timer is None:
            self._begin_step(job.arrived_s)

    def abort(self, job: Job) -> None:
        """Drop a job wherever it is; its sink hears ``finished(job, "abort")``. Idempotent."""
        if job.done:
            return
        now_s = self._clock.time()
        if job in self._running:
            del self._running[job]
        elif job.lease is None:
            self._waiting.remove(job)
        else:
            self._prefilling.remove(job)
        self._leave(job, "abort", now_s)
        if self._step_timer is not None and not self._chunk_tokens and self._step[0][0].done:
            # A chunk that has begun runs to its end, as a kernel does; a whole prompt is many.
            self._step_timer.cancel()
            self._step_timer = None
            self.busy_s -= max(0.0, self._step_end_s - now_s)
        if self._step_timer is None:
            self._begin_step(now_s)

    def abort_id(self, id_prefix: str) -> None:
        """Abort all jobs whose id begins so; an empty one aborts all."""
        for job in [*self._waiting, *self._prefilling, *self._running]:
            if job.id.startswith(id_prefix):
                self.abort(job)

    def close(self) -> None:
        """Stop for good; nobody is told."""
        self._closed = True
        for timer in (self._step_timer, self._decode_timer):
            if timer is not None:
                timer.cancel()
        self._step_timer = self._decode_timer = None

    def _begin_step(self, now_s: float) -> None:
        """Choose the next prefill step and start its timer; do nothing if there is nothing to do."""
        if self._closed:
            return
        if not self._prefilling and self._waiting:
            # A late timer must not let a request begin before it came.
            now_s = max(now_s, self._waiting[0].arrived_s)
        budget = self._chunk_tokens
        step: list[tuple[Job, int]] = []
        cost_s = self._base_s
        for job in self._candidates(now_s):
            uncached = job.prompt_tokens - job.context_tokens
            if self._chunk_tokens:
                uncached = min(uncached, budget)
                budget -= uncached
            middle = job.context_tokens + uncached / 2
            cost_s += self._token_s * uncached * (1 + middle / self._c0_tokens)
            step.append((job, uncached))
            if self._share_early:
                self._insert(job, job.context_tokens + uncached)
            if budget <= 0:
                break
        if not step:
            return
        self._step = step
        self._step_end_s = now_s + cost_s
        self.busy_s += cost_s
        self._step_timer = self._clock.call_at(self._step_end_s, self._end_step)

    def _candidates(self, now_s: float) -> Iterator[Job]:
        yield from list(self._prefilling)
        while self._waiting and self.running < self._max_running:
            job = self._waiting[0]
            lease = self._cache.acquire(job.namespace, job.tokens, job.output.tokens)
            if lease is None:
                return
            self._waiting.popleft()
            job.lease = lease
            job.cached_tokens = job.context_tokens = lease.matched_tokens
            job.started_s = now_s
            self._prefilling.append(job)
            self.running_max = max(self.running_max, self.running)
            yield job

    def _end_step(self) -> None:
        """The step is over: insert what it computed, deliver first tokens, begin the next one."""
        now_s = self._step_end_s
        self._step_timer = None
        for job, computed in self._step:
            if job.done:
                continue
            job.context_tokens += computed
            if not self._share_early:
                self._insert(job, job.context_tokens)
            if job.context_tokens == job.prompt_tokens:
                self._prefilling.remove(job)
                self._first_token(job, now_s)
        self._begin_step(now_s)

    def _insert(self, job: Job, context_tokens: int) -> None:
        assert job.lease is not None
        tokens = (
            job.tokens if context_tokens == job.prompt_tokens else job.tokens[: context_tokens * TOKEN_BYTES]
        )
        self._cache.insert(job.lease, tokens)

    def _first_token(self, job: Job, now_s: float) -> None:
        job.first_s = now_s
        wanted = job.output.tokens
        job.emitted_tokens = min(1, wanted) if self._tpot_s else wanted
        if job.emitted_tokens == wanted:
            self._finish(job, now_s)
            return
        if not self._running:
            self._decoded_until_s = now_s
        self._running[job] = None
        job.sink.emitted(job)
        if self._decode_timer is None:
            self._schedule_decode()

    def _schedule_decode(self) -> None:
        """One timer for all running jobs, at the first step boundary behind the emission interval."""
        step_s = self._decode_step_s()
        steps = max(1, -(-self._emit_s // step_s))
        self._decode_timer = self._clock.call_at(self._decoded_until_s + steps * step_s, self._decode)

    def _decode_step_s(self) -> float:
        if not self._tpot_batch:
            return self._tpot_s
        return self._tpot_s * (1 + len(self._running) / self._tpot_batch)

    def _decode(self) -> None:
        now_s = self._clock.time()
        step_s = self._decode_step_s()
        # Half a step of grace: event loops may call a little early.
        steps = max(1, int((now_s - self._decoded_until_s) / step_s + 0.5))
        self._decoded_until_s += steps * step_s
        self._decode_timer = None
        slots_freed = False
        for job in list(self._running):
            job.emitted_tokens = min(job.output.tokens, job.emitted_tokens + steps)
            if job.emitted_tokens == job.output.tokens:
                del self._running[job]
                self._finish(job, self._decoded_until_s)
                slots_freed = True
            else:
                job.sink.emitted(job)
        if self._running:
            self._schedule_decode()
        if slots_freed and self._step_timer is None:
            self._begin_step(now_s)

    def _finish(self, job: Job, now_s: float) -> None:
        assert job.lease is not None
        # The last token was sampled but never computed, so its KV does not exist.
        self._cache.insert(job.lease, (job.tokens + job.output.kept)[: -TOKEN_BYTES or None])
        self._leave(job, job.output.finish_reason, now_s)

    def _leave(self, job: Job, reason: str, now_s: float) -> None:
        job.done = True
        self._observer.left(job, reason, now_s)
        if job.lease is not None:
            self._cache.release(job.lease)
            job.lease = None
        job.sink.finished(job, reason)
