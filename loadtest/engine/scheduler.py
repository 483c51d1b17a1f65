"""Timing of tokens: queues, prefill steps and a decode batch, on a clock that is passed in.

* **Prefill** steps take up to ``chunk_tokens`` from several requests, those begun first, then in the order of
  the queue (`loadtest.engine.waiting`); without chunks a step is one whole prompt. Its time is
  `PrefillTiming.step_of`, over all data-parallel ranks. Loading from host memory hides behind the step that
  uses it, layer by layer. The first step of an idle engine passes its pipeline stages one by one, and later
  ones follow close behind.
* **Decode** is a batch that shares the engine (`loadtest.engine.batch`); the profile's ``interleave`` says
  what it does during a prefill step.
* **Admission** needs a free slot, room in the cache for the whole request, and the end of its prefetch. So a
  running request is never preempted.
* **Sharing.** A SGLang engine inserts blocks after the step that computed them, so requests of one step do
  not share. A vLLM engine shares blocks that are still being computed (``insert_early``).
* **Ranks.** A job goes to the rank that its request names. Otherwise the engine looks at no cache: the rank
  with the fewest requests takes it, the next in turn among equals (vLLM 0.33 v1/engine/core_client.py,
  ``get_core_engine_for_request``; SGLang 0.5.23 managers/data_parallel_controller.py, in turn).
* **Hand-over.** A ``prefill`` job ends with its first token and keeps its blocks until `release`. A
  ``decode`` job reserves its room (``job.admitted``), and joins the batch once its KV is there (`deliver`)
  and fewer than ``max_running`` decode; ``preallocated`` more may hold room until then.

Modelled times do not drift: a step begins when the one before it was due to end, however late the timer was.
There is at most one timer for steps, one for the batch and one for prefetches.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, inf
from typing import Protocol

from loadtest.engine.batch import DecodeBatch
from loadtest.engine.job import Job, State
from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.stack import KvStack
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.rank import Rank
from loadtest.engine.waiting import WaitingJobs


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


class Observer:
    """Hears once of each job that leaves, before its sink; this base class ignores it."""

    def left(self, job: Job, reason: str, now_s: float) -> None:
        """A job finished, was aborted or refused."""


class Scheduler:
    """The queues, the prefill steps and the decode batch of one engine.

    Args:
        stacks: KV stack of each data-parallel rank.
        clock: The event loop, or a virtual clock.
        insert_early: Share blocks while they are being computed (vLLM).
        release_tokens: Decoded tokens after which a request's window moves on; 0: only at its end.
        emit_s: Tokens of streams that come due within this time are sent together.

    Attributes:
        busy_s: Seconds of prefill steps so far, the one that runs included.
        running_max: Most jobs that ever had a slot at the same time.
    """

    def __init__(
        self,
        profile: EngineProfile,
        stacks: Sequence[KvStack],
        clock: Clock,
        observer: Observer,
        *,
        insert_early: bool = False,
        release_tokens: int = 0,
        emit_s: float = 0.0,
    ) -> None:
        assert len(stacks) == profile.dp_ranks
        self.profile = profile
        self._clock = clock
        self._observer = observer
        self._insert_early = insert_early
        self._emit_s = emit_s
        slots = max(1, profile.max_running // profile.dp_ranks)
        spare = profile.preallocated // profile.dp_ranks
        self.ranks = [
            Rank(i, stack, self._queue(stack.cache), slots, spare) for i, stack in enumerate(stacks)
        ]
        self._batch = DecodeBatch(profile.decode, profile.dp_ranks, release_tokens)
        self._at_once = profile.decode.base_s <= 0
        self._frozen = profile.interleave != "apart"
        self._stages = profile.parallelism.pipeline_parallel
        self._step: list[tuple[Job, int]] = []
        self._step_timer: Timer | None = None
        self._step_end_s = -inf
        self._decode_timer: Timer | None = None
        self._decode_due_s = inf
        self._decoded_until_s = 0.0
        self._emit_at = 0.0
        self._streams = 0
        self._ready_timer: Timer | None = None
        self._closed = False
        self._next_rank = 0
        self.busy_s = 0.0
        self.running_max = 0

    def _queue(self, cache: KvCache) -> WaitingJobs:
        profile = self.profile

        def matched(job: Job) -> float:
            return -cache.match_tokens(job.blocks, job.prompt_tokens)

        def aged(job: Job) -> float:
            cached = cache.match_tokens(job.blocks, job.prompt_tokens)
            work_s = profile.prefill.prompt_s(job.prompt_tokens - cached, cached)
            return job.arrived_s + profile.aging * work_s

        match profile.queue_order:
            case "fcfs":
                return WaitingJobs(None)
            case "lpm":
                return WaitingJobs(matched, arrival_beyond=True)
            case "uncached":
                return WaitingJobs(aged)

    @property
    def waiting(self) -> int:
        """Jobs not admitted yet."""
        return sum(len(rank.waiting) for rank in self.ranks)

    @property
    def running(self) -> int:
        """Jobs in prefill or decode, and those whose KV is on its way."""
        return sum(rank.running for rank in self.ranks)

    @property
    def held(self) -> int:
        """Prefill jobs whose blocks wait for another engine."""
        return sum(len(rank.held) for rank in self.ranks)

    @property
    def held_tokens(self) -> int:
        """Tokens that can be matched, over all ranks."""
        return sum(rank.cache.held_tokens for rank in self.ranks)

    @property
    def used_tokens(self) -> int:
        """Tokens that running requests lock or reserve, over all ranks."""
        return sum(rank.cache.used_tokens for rank in self.ranks)

    @property
    def evicted_tokens(self) -> int:
        """Tokens evicted since the start, over all ranks."""
        return sum(rank.cache.evicted_tokens for rank in self.ranks)

    def clear(self) -> bool:
        """Evict everything that is not in use; True if nothing is left."""
        # Every rank, also behind one that is in use.
        return sum(not rank.cache.clear() for rank in self.ranks) == 0

    def match_tokens(self, blocks: bytes, prompt_tokens: int) -> int:
        """Tokens that the best rank would reuse from its device now."""
        return max(rank.cache.match_tokens(blocks, prompt_tokens) for rank in self.ranks)

    def submit(self, job: Job) -> None:
        """Queue a job. One that can never fit is ``refused`` as soon as its rank is idle."""
        now_s = job.arrived_s = self._clock.time()
        rank = self.ranks[job.rank] if job.rank >= 0 else self._choose(job)
        uncached = job.prompt_tokens if len(self.ranks) == 1 else rank.uncached_tokens(job)
        rank.push(job, 0 if job.role == "decode" else uncached, now_s)
        if self._step_timer is None:
            self._begin_step(now_s)

    def _choose(self, _job: Job) -> Rank:
        """Choose the rank of a job that names none."""
        count, first = len(self.ranks), self._next_rank
        in_turn = [self.ranks[(first + step) % count] for step in range(count)]
        chosen = min(in_turn, key=lambda rank: rank.running + len(rank.waiting))
        self._next_rank = (chosen.number + 1) % count
        return chosen

    def deliver(self, job: Job) -> None:
        """The KV of a decode job is there: it joins the batch, now or when it is admitted."""
        job.delivered = True
        if job.state is State.ARRIVING:
            now_s = self._clock.time()
            self._sync(now_s)
            self._join_delivered(job, now_s)
            self._schedule_decode()

    def release(self, job: Job) -> None:
        """The KV of a prefill job was taken: its blocks may go. Idempotent."""
        if job.state is State.HELD:
            rank = self.ranks[job.rank]
            now_s = self._clock.time()
            rank.cache.close(job.lease, job.final_blocks, job.final_tokens, now_s)
            rank.forget(job)
            job.state = State.DONE
            self._room_came(now_s)

    def abort(self, job: Job) -> None:
        """Drop a job wherever it is; its sink hears ``abort`` if it has not heard an end. Idempotent."""
        state = job.state
        if state is State.DONE:
            return
        now_s = self._clock.time()
        if state is State.RUNNING:
            self._sync(now_s)
            job.emitted_tokens = min(job.output_tokens, 1 + self._batch.got(job))
            self._batch.leave(job)
            self._streams -= job.stream
        rank = self.ranks[job.rank]
        rank.cache.abort(job.lease, now_s)
        rank.forget(job)
        job.state = State.DONE
        if state is not State.HELD:
            self._tell(job, "abort", now_s)
        if state is State.PREFILLING and self._step_timer is not None and not self.profile.chunk_tokens:
            self._cut_step(now_s)
        self._schedule_decode()
        self._room_came(now_s)

    def abort_id(self, id_prefix: str) -> None:
        """Abort all jobs whose id begins so; an empty one aborts all."""
        for job in list(self.jobs()):
            if job.id.startswith(id_prefix):
                self.abort(job)

    def close(self) -> None:
        """Stop for good without a notice."""
        self._closed = True
        for timer in (self._step_timer, self._decode_timer, self._ready_timer):
            if timer is not None:
                timer.cancel()
        self._step_timer = self._decode_timer = self._ready_timer = None

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs in the engine."""
        for rank in self.ranks:
            yield from rank.waiting
            yield from rank.prefilling
            yield from rank.arriving
            yield from rank.held
        yield from self._batch

    # Prefill steps.

    def _room_came(self, now_s: float) -> None:
        if self._step_timer is None:
            self._begin_step(now_s)

    def _begin_step(self, now_s: float) -> None:
        """Choose the next prefill step and start its timer; do nothing if there is nothing to do."""
        if self._closed:
            return
        self._sync(now_s)
        if self.profile.preallocated:
            self._join_arrived(now_s)
        chunks: list[list[tuple[int, int]]] = []
        step: list[tuple[Job, int]] = []
        begun, load_bytes = 0, 0
        for rank in self.ranks:
            mine: list[tuple[int, int]] = []
            rank_load_bytes = 0
            for job, tokens in self._fill(rank, now_s):
                if job.context_tokens == job.lease.matched_tokens:
                    begun += 1
                    rank_load_bytes += job.lease.load_bytes
                mine.append((tokens, job.context_tokens))
                step.append((job, tokens))
                if self._insert_early:
                    rank.cache.computed(job.lease, job.context_tokens + tokens, now_s)
            chunks.append(mine)
            load_bytes = max(load_bytes, rank_load_bytes)
        if not step:
            self._schedule_decode()
            self._await_prefetch(now_s)
            return
        cost_s = self.profile.prefill.step_of(begun, chunks)
        if self._step_end_s < now_s:
            cost_s *= self._stages
        if self.profile.interleave == "mixed" and len(self._batch):
            cost_s = max(cost_s, self.profile.decode.base_s) + self._batch.beside_s()
        cost_s += self.profile.host.exposed_s(load_bytes, cost_s, self.profile.shape.layers)
        self._step = step
        self._step_end_s = now_s + cost_s
        self.busy_s += cost_s
        self._step_timer = self._clock.call_at(self._step_end_s, self._end_step)
        self._schedule_decode()

    def _fill(self, rank: Rank, now_s: float) -> Iterator[tuple[Job, int]]:
        """Jobs of a rank's next step with the tokens that each gets of its budget."""
        budget = self.profile.chunk_tokens // len(self.ranks)
        whole = not self.profile.chunk_tokens
        for job in self._candidates(rank, now_s):
            tokens = job.prompt_tokens - job.context_tokens
            if not whole:
                tokens = min(tokens, budget)
                budget -= tokens
            yield job, tokens
            if budget <= 0:
                return

    def _candidates(self, rank: Rank, now_s: float) -> Iterator[Job]:
        """Jobs of a rank that have a prompt to compute: those begun, then those that can be admitted."""
        yield from list(rank.prefilling)
        while len(rank.waiting):
            for job in rank.admit(now_s):
                self.running_max = max(self.running_max, self.running)
                if job.admitted is not None:
                    job.admitted(job)
                if job.role != "decode":
                    yield job
                elif job.delivered:
                    self._join_delivered(job, now_s)
            # A job that finds no room although no other holds any never will.
            stuck = next(rank.waiting.next(now_s), None) if rank.idle else None
            if stuck is None:
                return
            rank.cache.abort(stuck.lease, now_s)
            rank.forget(stuck)
            stuck.state = State.DONE
            self._tell(stuck, "refused", now_s)

    def _await_prefetch(self, now_s: float) -> None:
        """Nothing to compute: look again when the first prefetch is over."""
        ready_s = min(rank.waiting.ready_s(now_s) for rank in self.ranks)
        if self._ready_timer is not None:
            self._ready_timer.cancel()
            self._ready_timer = None
        if ready_s < inf:
            self._ready_timer = self._clock.call_at(ready_s, self._prefetched)

    def _prefetched(self) -> None:
        self._ready_timer = None
        self._room_came(self._clock.time())

    def _end_step(self) -> None:
        """The step is over: insert what it computed, deliver first tokens, begin the next one."""
        now_s = self._step_end_s
        self._step_timer = None
        if self._frozen:
            self._decoded_until_s = max(self._decoded_until_s, now_s)
            if self.profile.interleave == "mixed":
                self._batch.step()
        self._sync(now_s)
        self._progressed(now_s)
        for job, tokens in self._step:
            if job.state is not State.PREFILLING:
                continue
            rank = self.ranks[job.rank]
            rank.compute(job, tokens)
            if not self._insert_early:
                rank.cache.computed(job.lease, job.context_tokens, now_s)
            if job.context_tokens == job.prompt_tokens:
                rank.prefilling.remove(job)
                self._first_token(job, rank, now_s)
        self._begin_step(now_s)

    def _cut_step(self, now_s: float) -> None:
        """Stop a step whose whole prompts are all gone; a chunk runs to its end, as a kernel does."""
        if any(job.state is State.PREFILLING for job, _ in self._step):
            return
        assert self._step_timer is not None
        self._step_timer.cancel()
        self._step_timer = None
        self.busy_s -= max(0.0, self._step_end_s - now_s)
        if self._frozen:
            self._decoded_until_s = max(self._decoded_until_s, now_s)

    # Decode.

    def _first_token(self, job: Job, rank: Rank, now_s: float) -> None:
        job.first_s = now_s
        if job.role == "prefill":
            job.emitted_tokens = min(1, job.output_tokens)
            job.state = State.HELD
            rank.held.append(job)
            self._tell(job, job.reason, now_s)
        else:
            self._join(job, rank, now_s)

    def _join_arrived(self, now_s: float) -> None:
        """Let those whose KV came while the batch was full take the places of those who left it."""
        for rank in self.ranks:
            free = rank.running_max - rank.decoding
            for job in [job for job in rank.arriving if job.delivered][:free]:
                self._join_delivered(job, now_s)

    def _join_delivered(self, job: Job, now_s: float) -> None:
        rank = self.ranks[job.rank]
        if rank.decoding >= rank.running_max:
            return
        rank.arriving.remove(job)
        rank.cache.computed(job.lease, job.prompt_tokens, now_s)
        job.context_tokens = job.prompt_tokens
        job.first_s = now_s
        self._join(job, rank, now_s)

    def _join(self, job: Job, rank: Rank, now_s: float) -> None:
        """Begin to decode a job whose prompt is there, unless its first token is all."""
        job.emitted_tokens = job.output_tokens if self._at_once else min(1, job.output_tokens)
        if job.emitted_tokens == job.output_tokens:
            self._finish(job, rank, now_s)
            return
        job.state = State.RUNNING
        rank.decoding += 1
        self._batch.join(job, job.output_tokens - 1)
        if job.stream:
            self._streams += 1
            if self._streams == 1:
                self._emit_next()
        job.sink.emitted(job)

    def _sync(self, now_s: float) -> None:
        """Bring the batch up to a moment, unless a prefill step keeps it from decoding."""
        if self._step_timer is not None and self._frozen:
            return
        if now_s > self._decoded_until_s:
            self._batch.run(now_s - self._decoded_until_s)
            self._decoded_until_s = now_s

    def _progressed(self, now_s: float) -> bool:
        """Report progress: tokens, ends, moved windows. Return True if a slot is free."""
        batch = self._batch
        ended = False
        for job in batch.ended():
            ended = True
            batch.leave(job)
            rank = self.ranks[job.rank]
            rank.decoding -= 1
            self._streams -= job.stream
            job.emitted_tokens = job.output_tokens
            self._finish(job, rank, now_s)
        for job in batch.released():
            self.ranks[job.rank].cache.decoded(job.lease, 1 + batch.got(job), now_s)
        if self._streams and batch.tokens_to(self._emit_at) <= 0:
            for job in batch:
                got = 1 + batch.got(job)
                if job.stream and got > job.emitted_tokens:
                    job.emitted_tokens = got
                    job.sink.emitted(job)
            self._emit_next()
        return ended

    def _emit_next(self) -> None:
        """Streams are told next at the first whole token behind the emission interval."""
        self._emit_at = self._batch.progress + max(1, ceil(self._batch.tokens_in(self._emit_s) - 1e-6))

    def _schedule_decode(self) -> None:
        """One timer for all that run: at the next end, or when streams are told next."""
        due_s = inf
        if len(self._batch) and not (self._frozen and self._step_timer is not None):
            tokens = self._batch.tokens_to_end()
            if self._streams:
                tokens = min(tokens, self._batch.tokens_to(self._emit_at))
            due_s = self._decoded_until_s + self._batch.seconds_until(tokens)
        if due_s == self._decode_due_s:
            return
        if self._decode_timer is not None:
            self._decode_timer.cancel()
            self._decode_timer = None
        self._decode_due_s = due_s
        if due_s < inf and not self._closed:
            self._decode_timer = self._clock.call_at(due_s, self._decode)

    def _decode(self) -> None:
        # Event loops may call a little early.
        now_s = max(self._clock.time(), self._decode_due_s)
        self._decode_timer, self._decode_due_s = None, inf
        self._sync(now_s)
        if self._progressed(now_s) and self._step_timer is None:
            self._begin_step(now_s)
        else:
            self._schedule_decode()

    # Ends.

    def _finish(self, job: Job, rank: Rank, now_s: float) -> None:
        rank.cache.close(job.lease, job.final_blocks, job.final_tokens, now_s)
        job.state = State.DONE
        self._tell(job, job.reason, now_s)

    def _tell(self, job: Job, reason: str, now_s: float) -> None:
        job.finished_s = now_s
        self._observer.left(job, reason, now_s)
        job.sink.finished(job, reason)
