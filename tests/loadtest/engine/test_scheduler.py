"""The scheduler on a virtual clock, with numbers worked out by hand."""

from typing import Any

import pytest
from fakes.kv_stack import FakeCache
from fakes.virtual_clock import VirtualClock
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.job import Job, Role
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.stack import KvStack
from loadtest.engine.parallelism import Parallelism
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.shape import ModelShape
from loadtest.engine.timing import DecodeTiming, LinkTiming, PrefillTiming
from radix import chain_bytes

BLOCK_TOKENS = 4

EXACT: dict[str, Any] = {
    "name": "exact",
    "shape": ModelShape(full_layers=10, full_layer_bytes=1),
    "prefill": PrefillTiming(a_s=0.0, b_s=0.001, c0_tokens=1e12, step_s=0.1),
    "decode": DecodeTiming(base_s=0.010),
    "rules": CacheRules(full_tokens=500_000, block_tokens=BLOCK_TOKENS),
    "chunk_tokens": 0,
    "max_running": 64,
    "interleave": "apart",
    "host": LinkTiming(1e9),
    "handover": LinkTiming(1e9),
}
"""Steps take 0.1 s and 1 ms per token; decode goes on beside them at 10 ms a token."""


class Recorder:
    """A sink that notes its calls, and their times; also the observer."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.tokens: list[Any] = []
        self.ends: list[Any] = []
        self.seen: list[int] = []

    def emitted(self, job: Job) -> None:
        self.tokens.append((round(self.clock.now_s, 6), job.index, job.emitted_tokens))

    def finished(self, job: Job, reason: str) -> None:
        self.ends.append((round(self.clock.now_s, 6), job.index, reason))

    def left(self, job: Job, reason: str, now_s: float) -> None:
        assert job.done
        self.seen.append(job.index)


class Bench:
    def __init__(
        self, clock: VirtualClock, *, cache_tokens: int = 500_000, emit_s: float = 0.0, **more: Any
    ) -> None:
        options = {key: more.pop(key) for key in ("insert_early", "release_tokens") if key in more}
        self.profile = EngineProfile(**EXACT | more)
        self.clock = clock
        self.caches = [FakeCache(cache_tokens, BLOCK_TOKENS) for _ in range(self.profile.dp_ranks)]
        self.cache = self.caches[0]
        self.stacks: Any = [KvStack(cache, None) for cache in self.caches]
        self.sink = Recorder(clock)
        self.scheduler = Scheduler(self.profile, self.stacks, clock, self.sink, emit_s=emit_s, **options)
        self.jobs: list[Job] = []

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int = 1,
        first_id: int = 0,
        role: Role = "plain",
        stream: bool = True,
        **more: Any,
    ) -> Job:
        total = prompt_tokens + output_tokens
        tokens = b"".join(token.to_bytes(4, "little") for token in [first_id, *range(1, total)])
        blocks = chain_bytes(tokens, 7, BLOCK_TOKENS * 4)
        kept = max(total - 1, prompt_tokens)
        job = Job(
            blocks[: prompt_tokens // BLOCK_TOKENS * 8],
            prompt_tokens,
            output_tokens,
            blocks[: kept // BLOCK_TOKENS * 8],
            kept,
            self.sink,
            role=role,
            stream=stream,
            index=len(self.jobs),
            id=f"r{len(self.jobs)}",
            **more,
        )
        self.jobs.append(job)
        self.scheduler.submit(job)
        return job


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def bench(clock: VirtualClock) -> Any:
    return lambda **more: Bench(clock, **more)


def test_a_prefill_takes_the_time_of_the_formula(bench: Any, clock: Any) -> None:
    """It is a + b u (1 + (c + u/2) / c0): cold 0.1 + 1 * (1 + 500/2000) = 1.35 s; then c = 996, u = 4."""
    one = bench(prefill=PrefillTiming(0.1, 0.001, 2000.0))
    one.submit(1000)
    clock.run()
    one.submit(1000)
    clock.run()

    assert one.sink.ends[0] == (1.35, 0, "stop")
    assert one.jobs[1].cached_tokens == 996
    warm_s = 0.1 + 0.004 * (1 + (996 + 2) / 2000)
    assert one.sink.ends[1] == (round(1.35 + warm_s, 6), 1, "stop")
    assert one.scheduler.busy_s == pytest.approx(1.35 + warm_s)


def test_only_the_first_step_of_an_idle_engine_waits_for_all_pipeline_stages(bench: Any, clock: Any) -> None:
    """Chunks of 100 tokens take 0.2 s each; the first passes three stages, the others follow it closely."""
    engine = bench(chunk_tokens=100, parallelism=Parallelism(pipeline_parallel=3))
    engine.submit(200)
    clock.run()
    assert engine.sink.ends == [(0.8, 0, "stop")]

    clock.run(until_s=2.0)
    engine.submit(100, first_id=1)
    engine.submit(100, first_id=2)
    clock.run()
    assert engine.sink.ends[1:] == [(2.6, 1, "stop"), (2.8, 2, "stop")]


def test_prefills_go_one_after_the_other_in_order_of_arrival(bench: Any, clock: Any) -> None:
    one = bench()
    for first_id in (1, 2, 3):
        one.submit(900, first_id=first_id)
    assert (one.scheduler.running, one.scheduler.waiting) == (1, 2)
    clock.run()

    assert one.sink.ends == [(1.0, 0, "stop"), (2.0, 1, "stop"), (3.0, 2, "stop")]
    assert [job.started_s for job in one.jobs] == pytest.approx([0.0, 1.0, 2.0])
    assert [job.finished_s for job in one.jobs] == pytest.approx([1.0, 2.0, 3.0])
    assert one.sink.seen == [0, 1, 2]


def test_answers_of_waiting_sharers_hit_what_the_first_one_computed(bench: Any, clock: Any) -> None:
    one = bench()
    for _ in range(3):
        one.submit(101)
    clock.run()

    assert [job.cached_tokens for job in one.jobs] == [0, 100, 100]


@pytest.mark.parametrize(("early", "cached"), [(False, [0, 0]), (True, [0, 100])])
def test_only_early_insertion_shares_blocks_that_are_still_being_computed(
    bench: Any, clock: Any, early: bool, cached: Any
) -> None:
    """A step of 400 tokens takes up both of 101 tokens at once."""
    one = bench(chunk_tokens=400, insert_early=early)
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
    assert one.jobs[0].lease.computed == [500, 900]


def test_a_prompt_pays_its_constant_once_however_many_chunks_it_has(bench: Any, clock: Any) -> None:
    """0.5 s with the first chunk, 0.1 s with each of three, 1 s of tokens."""
    one = bench(chunk_tokens=400, prefill=PrefillTiming(0.5, 0.001, 1e12, 0.1))
    one.submit(1000)
    clock.run()

    assert one.sink.ends == [(1.8, 0, "stop")]


def test_decode_steps_are_shared_by_all_that_run(bench: Any, clock: Any) -> None:
    one = bench()
    one.submit(900, output_tokens=3)
    clock.run()

    assert one.sink.tokens == [(1.0, 0, 1), (1.01, 0, 2)]
    assert one.sink.ends == [(1.02, 0, "stop")]


def test_tokens_due_within_the_emission_interval_come_as_one(bench: Any, clock: Any) -> None:
    one = bench(emit_s=0.035)
    one.submit(900, output_tokens=10)
    clock.run()

    assert one.sink.tokens == [(1.0, 0, 1), (1.04, 0, 5), (1.08, 0, 9)]
    assert one.sink.ends == [(1.09, 0, "stop")]


def test_a_sink_that_does_not_stream_costs_no_event_per_token(bench: Any, clock: Any) -> None:
    """Two prefills and two ends, for answers of any length."""
    one = bench()
    for first_id in (1, 2):
        one.submit(900, output_tokens=10_000, first_id=first_id, stream=False)
    clock.run()

    assert [(index, got) for _, index, got in one.sink.tokens] == [(0, 1), (1, 1)]
    assert one.sink.ends == [(100.99, 0, "stop"), (101.99, 1, "stop")]
    assert clock.calls <= 6


def test_joining_a_running_stream_does_not_put_its_tokens_off(bench: Any, clock: Any) -> None:
    """Prompts of 1 token come every 5 ms while tokens are due every 10 ms."""
    one = bench(prefill=PrefillTiming(0.0, 1e-6, 1e12))
    one.submit(1, output_tokens=4)
    for number in range(1, 8):
        clock.run(until_s=number * 0.005)
        one.submit(1, output_tokens=9, first_id=number)
    clock.run()

    assert [(at_s, got) for at_s, index, got in one.sink.tokens if index == 0] == [
        (1e-06, 1),
        (0.010001, 2),
        (0.020001, 3),
    ]


def test_without_a_decode_time_the_answer_comes_with_its_first_token(bench: Any, clock: Any) -> None:
    one = bench(decode=DecodeTiming(0.0))
    one.submit(900, output_tokens=500)
    clock.run()

    assert one.sink.ends == [(1.0, 0, "stop")]
    assert one.jobs[0].emitted_tokens == 500


def test_a_batch_slows_decoding_down(bench: Any, clock: Any) -> None:
    """One running request at 10 ms each doubles the step."""
    one = bench(decode=DecodeTiming(0.010, request_s=0.010))
    one.submit(900, output_tokens=2)
    clock.run()

    assert one.sink.ends == [(1.02, 0, "stop")]


def test_multi_token_prediction_divides_the_time_of_an_answer(bench: Any, clock: Any) -> None:
    one = bench(decode=DecodeTiming(0.010, mtp_speedup=2.5))
    one.submit(900, output_tokens=26, stream=False)
    clock.run()

    assert one.sink.ends == [(1.1, 0, "stop")]


def test_decode_steps_share_prefill_steps_and_lengthen_them(bench: Any, clock: Any) -> None:
    """The second prompt takes two chunks of 0.1 + 0.45 s plus 10 ms for the request that decodes beside it.

    That one gets a token with each of them and the remaining two at 20 ms a step.
    """
    one = bench(
        interleave="mixed", chunk_tokens=450, decode=DecodeTiming(0.010, request_s=0.010), release_tokens=2
    )
    one.submit(450, output_tokens=5, first_id=1, stream=False)
    clock.run(until_s=0.55)
    one.submit(900, output_tokens=1, first_id=2)
    clock.run()

    assert one.sink.ends == [(1.67, 1, "stop"), (1.71, 0, "stop")]
    assert one.jobs[0].lease.decoded == [3]


def test_prefill_first_stops_decode_for_as_long_as_there_are_prompts(bench: Any, clock: Any) -> None:
    """Three tokens are left at 0.5 s; the second prompt takes from then to 1.5 s."""
    one = bench(interleave="prefill_first")
    one.submit(380, output_tokens=5, first_id=1, stream=False)
    clock.run(until_s=0.5)
    one.submit(900, output_tokens=1, first_id=2)
    clock.run()

    assert one.sink.ends == [(1.5, 1, "stop"), (1.52, 0, "stop")]


def test_windows_are_released_as_an_answer_grows(bench: Any, clock: Any) -> None:
    one = bench(release_tokens=4)
    one.submit(100, output_tokens=14, stream=True)
    clock.run()

    assert one.jobs[0].lease.decoded == [5, 9, 13]


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


def test_a_request_that_can_never_fit_is_refused_and_those_behind_it_go_on(bench: Any, clock: Any) -> None:
    """It waits for the first one, and is refused when no other job holds room."""
    one = bench(cache_tokens=1500)
    one.submit(900, first_id=1)
    one.submit(1600, first_id=2)
    one.submit(900, first_id=3)
    clock.run()

    assert one.sink.ends == [(1.0, 0, "stop"), (1.0, 1, "refused"), (2.0, 2, "stop")]


def test_a_prefetch_holds_up_nobody_else(bench: Any, clock: Any) -> None:
    one = bench()
    one.cache.prefetch_s = 5.0
    one.submit(900, first_id=1)
    one.cache.prefetch_s = 0.0
    one.submit(900, first_id=2)
    clock.run()

    assert one.sink.ends == [(1.0, 1, "stop"), (6.0, 0, "stop")]


def test_loading_from_the_host_hides_behind_the_step_that_needs_it(bench: Any, clock: Any) -> None:
    """3 s of loading beside 1 s of computing over ten layers: 3 s and a tenth of the computing."""
    one = bench()
    one.cache.load_bytes = 3_000_000_000
    one.submit(900)
    clock.run()

    assert one.sink.ends == [(3.1, 0, "stop")]


def test_the_next_turn_finds_the_answer_in_the_cache(bench: Any, clock: Any) -> None:
    """The last of 40 + 9 tokens was never computed: 48 are 12 blocks."""
    one = bench()
    one.submit(40, output_tokens=9)
    clock.run()
    turn = one.submit(51, output_tokens=0)
    clock.run()

    assert turn.cached_tokens == 48


def test_an_embedding_is_done_with_its_prefill(bench: Any, clock: Any) -> None:
    one = bench()
    one.submit(900, output_tokens=0, reason="length")
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


@pytest.mark.parametrize(
    ("order", "ends"),
    [("fcfs", [1, 2, 3]), ("lpm", [3, 1, 2]), ("uncached", [2, 3, 1])],
)
def test_the_queue_goes_by_arrival_by_match_or_by_uncached_work(
    bench: Any, clock: Any, order: str, ends: list[int]
) -> None:
    """Waiting: 800 new tokens; 200 new ones; 1300 of which 899 are cached when its turn comes."""
    one = bench(queue_order=order)
    one.submit(900, first_id=1)
    one.submit(800, first_id=2)
    one.submit(200, first_id=3)
    one.submit(1300, first_id=1)
    clock.run()

    assert [index for _, index, _ in one.sink.ends] == [0, *ends]


def test_nobody_is_overtaken_by_who_came_later_than_its_work_takes(bench: Any, clock: Any) -> None:
    """At k = 1: 1.0 s of work since 0 s goes before 0.3 s of work that came at 0.8 s, not before 0.6 s."""
    for at_s, ends in ((0.6, [0, 2, 1]), (0.8, [0, 1, 2])):
        one = bench(queue_order="uncached")
        clock.run(until_s=clock.now_s + 1)
        begin_s = clock.now_s
        one.submit(900, first_id=1)
        one.submit(900, first_id=2)
        clock.run(until_s=begin_s + at_s)
        one.submit(200, first_id=3)
        clock.run()

        assert [index for _, index, _ in one.sink.ends] == ends


def test_beyond_128_waiting_the_longest_match_does_not_count(bench: Any, clock: Any) -> None:
    """130 wait when the first step is over: two go by arrival, then the last one that came by its match."""
    one = bench(queue_order="lpm")
    one.submit(900, first_id=1)
    for number in range(129):
        one.submit(8, first_id=10 + number)
    one.submit(1300, first_id=1)
    clock.run()

    assert [index for _, index, _ in one.sink.ends[:4]] == [0, 1, 2, 130]


def test_a_job_that_names_no_rank_goes_in_turn_to_one_with_the_fewest_whatever_they_hold(
    bench: Any, clock: Any
) -> None:
    """Engines look at no cache: a next turn may come to the rank that does not hold it."""
    one = bench(dp_ranks=2, chunk_tokens=4000)
    assert [one.submit(900, first_id=first_id).rank for first_id in (1, 2)] == [0, 1]
    clock.run()
    assert [one.submit(1000, first_id=first_id).rank for first_id in (2, 1, 2)] == [0, 1, 0]
    assert one.submit(1000, first_id=1).rank == 1
    clock.run()
    assert [len(cache.leases) for cache in one.caches] == [0, 0]


def test_a_job_goes_to_the_rank_that_it_names(bench: Any, clock: Any) -> None:
    one = bench(dp_ranks=2, chunk_tokens=4000)
    jobs = [one.submit(900, first_id=1, rank=1) for _ in range(3)]
    assert [job.rank for job in jobs] == [1, 1, 1]
    clock.run()
    again = one.submit(1000, first_id=1, rank=1)
    clock.run()
    assert again.cached_tokens > 800
    elsewhere = one.submit(1000, first_id=1, rank=0)
    clock.run()
    assert elsewhere.cached_tokens == 0


def test_all_ranks_wait_for_the_longest(bench: Any, clock: Any) -> None:
    """Linear parts of 1.0 and 0.1 s; 1000 tokens attend for 0.5 s at c0 = 1000, twice that on half an engine.

    Both wait for a step of 1 ms of one token that is there before them.
    """
    one = bench(dp_ranks=2, chunk_tokens=4000, prefill=PrefillTiming(0.0, 0.001, 1000.0))
    one.submit(1, first_id=3)
    one.submit(1000, first_id=1)
    one.submit(100, first_id=2)
    clock.run()

    assert [job.rank for job in one.jobs] == [0, 1, 0]
    assert [at_s for at_s, _, _ in one.sink.ends] == pytest.approx([0.001, 2.101, 2.101], abs=2e-6)


def test_a_prefill_job_keeps_its_blocks_until_it_is_released(bench: Any, clock: Any) -> None:
    one = bench(cache_tokens=1500)
    first = one.submit(900, first_id=1, role="prefill")
    one.submit(900, first_id=2)
    clock.run(until_s=5.0)
    assert one.sink.ends == [(1.0, 0, "stop")]
    assert (first.done, first.emitted_tokens, one.cache.used_tokens) == (True, 1, 901)

    one.scheduler.release(first)
    one.scheduler.release(first)
    assert one.cache.match_tokens(first.blocks, 901) == 900
    clock.run()

    assert one.sink.ends[1:] == [(6.0, 1, "stop")]
    assert one.cache.used_tokens == 0


def test_a_decode_job_reserves_its_room_and_runs_once_its_kv_is_there(bench: Any, clock: Any) -> None:
    """Room for one at a time. Nothing is computed: 0 s of prefill, 4 tokens of 10 ms after the first."""
    one = bench(cache_tokens=1500)
    told: list[int] = []
    first = one.submit(900, 5, first_id=1, role="decode", admitted=lambda job: told.append(job.index))
    late = one.submit(900, 5, first_id=2, role="decode", admitted=lambda job: told.append(job.index))
    one.scheduler.deliver(late)
    clock.run(until_s=2.0)
    assert (told, one.scheduler.running, one.scheduler.waiting) == ([0], 1, 1)

    one.scheduler.deliver(first)
    clock.run()

    assert told == [0, 1]
    assert one.sink.ends == [(2.04, 0, "stop"), (2.08, 1, "stop")]
    assert one.scheduler.busy_s == 0
    assert first.lease.computed == [900]


def test_room_beyond_the_batch_is_held_until_somebody_leaves_it(bench: Any, clock: Any) -> None:
    """One decodes at a time, 4 tokens of 10 ms after the first, and one more may have its KV sent."""
    one = bench(max_running=1, preallocated=1)
    told: list[int] = []
    jobs = [
        one.submit(100, 5, first_id=id_, role="decode", admitted=lambda job: told.append(job.index))
        for id_ in (1, 2, 3)
    ]
    assert told == [0, 1]
    for job in (jobs[1], jobs[0], jobs[2]):
        one.scheduler.deliver(job)
    clock.run()
    assert one.sink.ends == [(0.04, 1, "stop"), (0.08, 0, "stop"), (0.12, 2, "stop")]
    assert told == [0, 1, 2]
    assert one.cache.used_tokens == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_abort_gives_back_what_a_hand_over_holds(bench: Any, clock: Any, role: Any) -> None:
    one = bench()
    job = one.submit(900, 5, role=role)
    clock.run(until_s=2.0)
    one.scheduler.abort(job)
    one.scheduler.abort(job)
    clock.run()

    assert one.cache.used_tokens == 0
    assert one.sink.ends == ([(1.0, 0, "stop")] if role == "prefill" else [(2.0, 0, "abort")])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 120),
            st.integers(0, 30),
            st.integers(0, 3),
            st.floats(0, 0.3),
            st.one_of(st.none(), st.integers(0, 30)),
            st.sampled_from(["plain", "plain", "plain", "prefill", "decode"]),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.sampled_from([0, 50]),
    st.sampled_from([1, 2]),
    st.sampled_from(["apart", "mixed", "prefill_first"]),
    st.sampled_from(["fcfs", "lpm", "uncached"]),
    st.booleans(),
)
def test_whatever_comes_and_leaves_every_job_ends_once_and_nothing_stays_in_use(
    steps: Any, chunk_tokens: int, ranks: int, interleave: str, order: str, early: bool
) -> None:
    """Prompts of 1 to 120 tokens in caches of 160, three at a time, with aborts at any moment."""
    clock = VirtualClock()
    one = Bench(
        clock,
        chunk_tokens=chunk_tokens,
        cache_tokens=160,
        max_running=3 * ranks,
        dp_ranks=ranks,
        interleave=interleave,
        queue_order=order,
        insert_early=early,
        release_tokens=3,
        decode=DecodeTiming(0.01, 0.003, 1e-5, 1.7),
    )
    for prompt_tokens, output_tokens, first_id, wait_s, victim, role, stream in steps:
        job = one.submit(prompt_tokens, output_tokens, first_id, role, stream)
        clock.run(until_s=clock.now_s + wait_s)
        if role == "prefill":
            one.scheduler.release(job)
        if role == "decode":
            one.scheduler.deliver(job)
        if victim is not None and victim < len(one.jobs):
            one.scheduler.abort(one.jobs[victim])
        assert all(cache.used_tokens <= 160 for cache in one.caches)
        assert one.scheduler.running <= 3 * ranks
    clock.run()
    while any(rank.held for rank in one.scheduler.ranks):
        for job in one.jobs:
            one.scheduler.release(job)
        clock.run()

    assert sorted(index for _, index, _ in one.sink.ends) == list(range(len(one.jobs)))
    assert sorted(one.sink.seen) == list(range(len(one.jobs)))
    assert (one.scheduler.running, one.scheduler.waiting) == (0, 0)
    assert all(cache.used_tokens == 0 for cache in one.caches)
    assert all(rank.backlog_tokens == 0 for rank in one.scheduler.ranks)
    for job in one.jobs:
        assert job.emitted_tokens <= job.output_tokens
        assert job.cached_tokens < job.prompt_tokens
