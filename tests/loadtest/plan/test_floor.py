"""Arithmetic says where a search may begin."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.engine.timing import PrefillTiming
from loadtest.plan.floor import decode_workers_guess, prefill_workers_min, ttft_p90_min_s
from loadtest.plan.objective import Slo
from loadtest.simulator.generated import generate_agentic
from loadtest.simulator.identity import FreshBlocks
from loadtest.simulator.memory import Memory
from loadtest.simulator.workload import Session, SimRequest, Workload

ENGINE = replace(
    PROFILES["dense-70b"], prefill=PrefillTiming(a_s=0.0, b_s=1e-4, c0_tokens=float("inf")), max_running=32
)
"""10,000 prefill tokens per second, for prompts of any length."""


def workload(requests: Iterable[tuple[float, int, int]], *, same: bool = False) -> Workload:
    """Requests of (start, prompt tokens, output tokens) that share nothing, or everything."""
    fresh = FreshBlocks("floor")
    sessions = []
    blocks = fresh.take(10_000)
    for start_s, tokens, output_tokens in requests:
        own = blocks[: tokens // 64 * 8] if same else fresh.take(tokens // 64)
        sessions.append(Session(start_s, (SimRequest(own, tokens, output_tokens),)))
    return Workload("made up", tuple(sessions))


def test_work_of_three_and_a_bit_workers_needs_four() -> None:
    """100 s of 3.3 prompts of 10,000 tokens a second."""
    comes = workload((number * 100.0 / 329, 10_000, 1) for number in range(330))

    assert prefill_workers_min(comes, ENGINE, 64) == 4
    assert prefill_workers_min(comes, ENGINE, 4) == 4
    assert prefill_workers_min(comes, ENGINE, 3) is None
    assert prefill_workers_min(comes, ENGINE, 64, speed=2.0) == 7


def test_prompts_that_share_everything_need_hardly_anybody() -> None:
    comes = workload(((number * 100.0 / 329, 10_000, 1) for number in range(330)), same=True)

    assert prefill_workers_min(comes, ENGINE, 64) == 1


def test_memory_that_holds_what_comes_again_needs_fewer_workers() -> None:
    """Two prompts of a million tokens in turn: the device holds one, host memory both."""
    fresh = FreshBlocks("two")
    prompts = [fresh.take(15_000), fresh.take(15_000)]
    sessions = tuple(
        Session(number * 10.0, (SimRequest(prompts[number % 2], 960_000, 1),)) for number in range(30)
    )
    comes = Workload("two in turn", sessions)

    assert prefill_workers_min(comes, ENGINE, 64) == 2
    assert prefill_workers_min(comes, ENGINE, 64, memory=Memory(host_tokens=2_000_000)) == 1


def test_the_floor_of_the_ttft_is_the_prefill_of_what_is_new() -> None:
    assert ttft_p90_min_s(workload([(0.0, 5_000, 1)] * 10), ENGINE) == pytest.approx(0.5)
    # Only the first one is new; the others leave the tokens behind the last full block.
    floor_s = ttft_p90_min_s(workload([(0.0, 6_400, 1)] * 100, same=True), ENGINE)
    assert floor_s == pytest.approx(0.0064)


def test_decode_workers_follow_from_the_tokens_and_their_pace() -> None:
    """A batch of 32 gives 32 tokens a step: 100,000 tokens in 100 s need a worker if a step takes 32 ms."""
    comes = workload((number * 100.0 / 99, 1_000, 1_000) for number in range(100))
    engine = replace(ENGINE, decode=replace(ENGINE.decode, base_s=0.030, request_s=0.0, kv_token_s=0.0))

    assert decode_workers_guess(comes, engine, Slo(1.0)) == 1
    assert decode_workers_guess(comes, engine, Slo(1.0), speed=3.0) == 3


def test_a_pace_that_leaves_small_batches_needs_more_decode_workers() -> None:
    comes = workload((number * 100.0 / 99, 1_000, 1_000) for number in range(100))
    engine = replace(ENGINE, decode=replace(ENGINE.decode, base_s=0.010, request_s=0.001, kv_token_s=0.0))

    guesses = [decode_workers_guess(comes, engine, Slo(1.0, limit_s)) for limit_s in (0.050, 0.020, 0.012)]
    assert guesses == sorted(guesses)
    assert guesses[0] < guesses[-1]


def test_a_closed_loop_has_a_guess_too() -> None:
    few, many = (
        decode_workers_guess(generate_agentic(users=users, sessions=users), ENGINE, Slo(1.0, 0.05))
        for users in (2, 400)
    )
    assert 1 <= few < many
