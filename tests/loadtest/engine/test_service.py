"""The scheduler on a virtual clock, with numbers worked out by hand."""

import heapq
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.engine.cache import PrefixCache
from loadtest.engine.outputs import NO_OUTPUT, Output
from loadtest.engine.service import Job, Scheduler
from loadtest.engine.settings import Dialect, EngineSettings
from loadtest.engine.tokens import pack_ids, words

EXACT = {
    "prefill_base_ms": 100.0,
    "prefill_tokens_per_s": 1000.0,
    "context_tokens": 1e12,
    "tpot_ms": 10.0,
    "emit_interval_ms": 0.0,
    "block_tokens": 4,
}


class VirtualClock:
    """Time that passes when it is told to."""

    class Timer:
        def __init__(self, callback: Any) -> None:
            self.callback = callback

        def cancel(self) -> None:
            self.callback = None

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, int, VirtualClock.Timer]] = []
        self._order = 0

    def time(self) -> Any:
        return self.now_s

    def call_at(self, when: Any, callback: Any) -> Any:
        timer = self.Timer(callback)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, timer))
        return timer

    def run(self, until_s: float = float("inf")) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self.now_s = max(self.now_s, when)
                timer.callback()
        if until_s < float("inf"):
            self.now_s = max(self.now_s, until_s)


class Recorder:
    """A sink that notes what it is told, and when."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.tokens: list[Any] = []
        self.ends: list[Any] = []

    def emitted(self, job: Any) -> None:
        self.tokens.append((round(self.clock.now_s, 6), job.index, job.emitted_tokens))

    def finished(self, job: Any, reason: Any) -> None:
        self.ends.append((round(self.clock.now_s, 6), job.index, reason))


class Silent:
    def left(self, job: Any, reason: Any, now_s: Any) -> None:
        pass


class Bench:
    def __init__(self, clock: Any, **more: Any) -> None:
        self.settings = EngineSettings(**EXACT | more)
        self.clock = clock
        self.cache = PrefixCache(self.settings.cache_tokens, self.settings.block_tokens)
        self.scheduler = Scheduler(self.settings, self.cache, clock, Silent())
        self.sink = Recorder(clock)
        self.jobs: list[Job] = []

    def submit(self, prompt_tokens: Any, output_tokens: Any = 1, first_id: Any = 0) -> Any:
        output = NO_OUTPUT
        if output_tokens:
            text = words(first_id, output_tokens)
            output = Output(output_tokens, text.decode(), text)
        ids = [first_id, *range(1, prompt_tokens)]
        job = Job(pack_ids(ids), b"", output, self.sink, index=len(self.jobs), id=f"r{len(self.jobs)}")
        self.jobs.append(job)
        self.scheduler.submit(job)
        return job


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def bench(clock: Any) -> Any:
    return lambda **more: Bench(clock, **more)


def test_a_prefill_takes_the_time_of_the_formula(bench: Any, clock: Any) -> None:
    """It is a + b u (1 + (c + u/2) / c0): cold 0.1 + 1 * (1 + 500/2000) = 1.35 s; then c = 996, u = 4."""
    one = bench(context_tokens=2000.0)
    one.submit(1000)
    clock.run()
    one.submit(1000)
    clock.run()

    assert one.sink.ends[0] == (1.35, 0, "stop")
    assert one.jobs[1].cached_tokens == 996
    warm_s = 0.1 + 0.004 * (1 + (996 + 2) / 2000)
    assert one.sink.ends[1] == (round(1.35 + warm_s, 6), 1, "stop")
    assert one.scheduler.busy_s == pytest.approx(1.35 + warm_s)


def test_prefills_go_one_after_the_other_in_order_of_arrival(bench: Any, clock: Any) -> None:
    one = bench()
    for first_id in (1, 2, 3):
        one.submit(900, first_id=first_id)
    assert (one.scheduler.running, one.scheduler.waiting) == (1, 2)
    clock.run()

    assert one.sink.ends == [(1.0, 0, "stop"), (2.0, 1, "stop"), (3.0, 2, "stop")]
    assert [job.started_s for job in one.jobs] == pytest.approx([0.0, 1.0, 2.0])


def test_speed_divides_all_modelled_times(bench: Any, clock: Any) -> None:
    one = bench(speed=10.0)
    one.submit(900, output_tokens=3)
    clock.run()

    assert one.sink.ends == [(0.102, 0, "stop")]


def test_answers_of_waiting_sharers_hit_what_the_first_one_computed(bench: Any, clock: Any) -> None:
    one = bench()
    for _ in range(3):
        one.submit(101)
    clock.run()

    assert [job.cached_tokens for job in one.jobs] == [0, 100, 100]


@pytest.mark.parametrize(("dialect", "cached"), [("sglang", [0, 0]), ("vllm", [0, 100])])
def test_only_vllm_shares_blocks_that_are_still_being_computed(
    bench: Any, clock: Any, dialect: str, cached: Any
) -> None:
    """A step of 400 tokens takes up both of 101 tokens at once."""
    one = bench(chunk_tokens=400, dialect=dialect)
    one.submit(300, first_id=7)
    one.submit(101)
    one.submit(101)
    clock.run()

    assert [job.cached_tokens for job in one.jobs[1:]] == cached


def test_chunks_are_filled_from_several_requests_and_add_up_to_the_same_time(bench: Any, clock: Any) -> None:
    """900 tokens in steps of 500: 0.6 s, then 400 + 100 of the next in 0.6 s, then 200 in 0.3 s."""
    one = bench(chunk_tokens=500)
    one.submit(900, first_id=1)
    one.submit(300, first_id=2)
    clock.run()

    assert one.sink.ends == [(1.2, 0, "stop"), (1.5, 1, "stop")]


def test_decode_steps_are_shared_by_all_that_run(bench: Any, clock: Any) -> None:
    one = bench()
    one.submit(900, output_tokens=3)
    clock.run()

    assert one.sink.tokens == [(1.0, 0, 1), (1.01, 0, 2)]
    assert one.sink.ends == [(1.02, 0, "stop")]


def test_tokens_due_within_the_emission_interval_come_as_one(bench: Any, clock: Any) -> None:
    one = bench(emit_interval_ms=35.0)
    one.submit(900, output_tokens=10)
    clock.run()

    assert one.sink.tokens == [(1.0, 0, 1), (1.04, 0, 5), (1.08, 0, 9)]
    assert one.sink.ends == [(1.12, 0, "stop")]


def test_without_a_decode_time_the_answer_comes_with_its_first_token(bench: Any, clock: Any) -> None:
    one = bench(tpot_ms=0.0)
    one.submit(900, output_tokens=500)
    clock.run()

    assert one.sink.ends == [(1.0, 0, "stop")]
    assert one.jobs[0].emitted_tokens == 500


def test_a_batch_slows_decoding_down(bench: Any, clock: Any) -> None:
    """One running request at tpot_batch 1 doubles the step."""
    one = bench(tpot_batch=1)
    one.submit(900, output_tokens=2)
    clock.run()

    assert one.sink.ends == [(1.02, 0, "stop")]


def test_requests_wait_for_a_slot(bench: Any, clock: Any) -> None:
    """The slot is free at 1.0 + 9 * 0.01 s; the second prompt needs 1.0 s from then."""
    one = bench(max_running=1)
    one.submit(900, output_tokens=10, first_id=1)
    one.submit(900, output_tokens=1, first_id=2)
    clock.run()

    assert one.sink.ends == [(1.09, 0, "stop"), (2.09, 1, "stop")]
    assert one.scheduler.running_max == 1


def test_requests_wait_for_room_in_the_cache(bench: Any, clock: Any) -> None:
    one = bench(cache_tokens=1500)
    one.submit(900, output_tokens=10, first_id=1)
    one.submit(900, output_tokens=1, first_id=2)
    clock.run(until_s=1.05)
    assert (one.scheduler.running, one.scheduler.waiting) == (1, 1)
    clock.run()

    assert one.sink.ends == [(1.09, 0, "stop"), (2.09, 1, "stop")]


def test_the_next_turn_finds_the_answer_in_the_cache(bench: Any, clock: Any) -> None:
    one = bench()
    first = one.submit(40, output_tokens=9)
    clock.run()
    turn = Job(first.tokens + first.output.kept + pack_ids([1, 2]), b"", NO_OUTPUT, one.sink)
    one.scheduler.submit(turn)
    clock.run()

    assert turn.cached_tokens == 48


def test_an_embedding_is_done_with_its_prefill(bench: Any, clock: Any) -> None:
    one = bench()
    one.submit(900, output_tokens=0)
    clock.run()

    assert one.sink.ends == [(1.0, 0, "length")]
    assert one.sink.tokens == []


@pytest.mark.parametrize("at_s", [0.0, 0.5, 1.05])
def test_an_abort_leaves_at_once_wherever_it_is(bench: Any, clock: Any, at_s: Any) -> None:
    """In prefill, or decoding: the one behind it starts as soon as the slot is free."""
    one = bench(max_running=1)
    one.submit(900, output_tokens=10, first_id=1)
    one.submit(900, first_id=2)
    clock.run(until_s=at_s)
    one.scheduler.abort(one.jobs[0])
    one.scheduler.abort(one.jobs[0])
    clock.run()

    assert one.sink.ends == [(at_s, 0, "abort"), (at_s + 1.0, 1, "stop")]
    assert (one.scheduler.running, one.scheduler.waiting, one.cache.used_tokens) == (0, 0, 0)


def test_an_abort_of_a_waiting_request_leaves_the_others_alone(bench: Any, clock: Any) -> None:
    one = bench()
    for first_id in (1, 2, 3):
        one.submit(900, first_id=first_id)
    one.scheduler.abort_id("r1")
    clock.run()

    assert one.sink.ends == [(0.0, 1, "abort"), (1.0, 0, "stop"), (2.0, 2, "stop")]


def test_a_chunk_that_has_begun_runs_to_its_end_for_the_others_in_it(bench: Any, clock: Any) -> None:
    one = bench(chunk_tokens=2000)
    one.submit(900, first_id=1)
    clock.run(until_s=0.5)
    one.submit(100, first_id=2)
    one.scheduler.abort(one.jobs[0])
    clock.run()

    assert one.sink.ends == [(0.5, 0, "abort"), (1.2, 1, "stop")]
    assert one.cache.used_tokens == 0


def test_a_late_timer_does_not_add_up(bench: Any, clock: Any) -> None:
    """The timer of the first prefill is half a second late; the second still ends on time."""
    one = bench()
    one.submit(900, first_id=1)
    one.submit(900, first_id=2)
    clock.now_s = 1.5
    clock.run()

    assert one.jobs[1].first_s == pytest.approx(2.0)


def test_a_late_timer_does_not_start_a_request_before_it_came(bench: Any, clock: Any) -> None:
    one = bench()
    one.submit(900, first_id=1)
    clock.now_s = 1.5
    one.submit(900, first_id=2)
    clock.run()

    assert one.jobs[1].started_s == 1.5


def test_nothing_happens_after_close(bench: Any, clock: Any) -> None:
    one = bench()
    one.submit(900, output_tokens=5)
    one.submit(900, output_tokens=5)
    one.scheduler.close()
    one.scheduler.abort(one.jobs[0])
    clock.run()

    assert one.sink.ends == [(0.0, 0, "abort")]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 120),
            st.integers(0, 30),
            st.integers(0, 3),
            st.floats(0, 0.3),
            st.one_of(st.none(), st.integers(0, 30)),
        ),
        max_size=30,
    ),
    st.sampled_from([0, 50]),
    st.sampled_from(["sglang", "vllm"]),
)
def test_whatever_comes_and_leaves_every_job_ends_once_and_nothing_stays_in_use(
    steps: Any, chunk_tokens: int, dialect: Dialect
) -> None:
    """Prompts of 1 to 120 tokens in a cache of 160, three at a time, with aborts at any moment."""
    clock = VirtualClock()
    one = Bench(clock, chunk_tokens=chunk_tokens, dialect=dialect, cache_tokens=160, max_running=3)
    for prompt_tokens, output_tokens, first_id, wait_s, victim in steps:
        one.submit(prompt_tokens, output_tokens, first_id)
        clock.run(until_s=clock.now_s + wait_s)
        if victim is not None and victim < len(one.jobs):
            one.scheduler.abort(one.jobs[victim])
        assert one.cache.used_tokens <= 160
        assert one.scheduler.running <= 3
    clock.run()

    assert sorted(index for _, index, _ in one.sink.ends) == list(range(len(one.jobs)))
    assert (one.scheduler.running, one.scheduler.waiting, one.cache.used_tokens) == (0, 0, 0)
    for job in one.jobs:
        assert job.emitted_tokens <= job.output.tokens
        assert job.cached_tokens < job.prompt_tokens
