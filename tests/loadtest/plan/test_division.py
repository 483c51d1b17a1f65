"""Workers are divided where there are requests, and after the work that is there."""

import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.plan.division import Division, divisions
from loadtest.simulator.identity import FreshBlocks
from loadtest.simulator.workload import Session, SimRequest, Workload

ENGINE = PROFILES["dense-70b"]

K, M = 1 << 10, 1 << 20


def workload(*tokens: int) -> Workload:
    """Prompts that share nothing."""
    fresh = FreshBlocks("division")
    return Workload(
        "made up",
        tuple(
            Session(50.0 * at, (SimRequest(fresh.take(one // 64), one, 1),)) for at, one in enumerate(tokens)
        ),
    )


@pytest.mark.parametrize(
    ("tokens", "bounds"),
    [
        ((10 * K, 100 * K, 300 * K), [(64 * K, 256 * K, M), (64 * K, M), (256 * K, M)]),
        ((10 * K, 300 * K), [(64 * K, M)]),
        ((100 * K, 300 * K), [(256 * K, M)]),
        ((10 * K, 100 * K), [(64 * K, 256 * K)]),
        ((64 * K - 256, 64 * K - 255), [(64 * K, 256 * K)]),
        ((10 * K, 20 * K), []),
        ((10 * K, M), [(64 * K, 2 * M)]),
    ],
)
def test_bounds_are_those_of_ranges_with_requests(
    tokens: tuple[int, ...], bounds: list[tuple[int, ...]]
) -> None:
    """Prompts and 256 expected tokens, up to a bound and including it; the last bound covers them all."""
    assert [one.tokens_max for one in divisions([workload(*tokens)], ENGINE, 256)] == bounds


def test_a_range_that_another_seed_alone_uses_has_a_bucket() -> None:
    (made,) = divisions([workload(10 * K, 10 * K), workload(300 * K, 300 * K)], ENGINE, 256)

    assert made.tokens_max == (64 * K, M)
    assert all(work_s > 0 for work_s in made.works_s)


def test_what_a_conversation_had_in_another_bucket_is_computed_again() -> None:
    """60K tokens, then 100K that begin with them: a new prompt of 100K for the second bucket."""
    blocks = FreshBlocks("grows").take(100 * K // 64)
    short, long = SimRequest(blocks[: 60 * K // 64 * 8], 60 * K, 1), SimRequest(blocks, 100 * K, 1)
    again = SimRequest(blocks, 100 * K, 1)
    sessions = tuple(Session(float(at_s), (one,)) for at_s, one in enumerate((short, long, again)))

    (made,) = divisions([Workload("grows", sessions)], ENGINE, 256)

    prompt_s = ENGINE.prefill.prompt_s
    assert made.works_s == pytest.approx(
        (prompt_s(60 * K, 0), prompt_s(100 * K, 0) + prompt_s(64, 100 * K - 64)), rel=1e-6
    )


def test_every_worker_is_in_a_bucket_and_every_bucket_has_one() -> None:
    division = Division((64 * K, 256 * K, M), (80.0, 15.0, 5.0), 100.0)

    assert division.bucket_workers(3) == ((64 * K, 1), (256 * K, 1), (M, 1))
    assert division.bucket_workers(20) == ((64 * K, 16), (256 * K, 3), (M, 1))
    assert division.label == "0-64K, 64K-256K, 256K-1M"


def test_no_bucket_has_more_work_than_time_for_it() -> None:
    """In 10 s, 80 s of work take 9 workers, since 8 would never be idle; the others take 2 and 1."""
    division = Division((64 * K, 256 * K, M), (80.0, 15.0, 5.0), 10.0)

    assert division.workers_min == 12
    for workers, enough in ((12, True), (11, False)):
        shares = [count for _, count in division.bucket_workers(workers)]
        busy = [work_s / count / 10.0 for work_s, count in zip(division.works_s, shares, strict=True)]
        assert (max(busy) < 1.0) == enough


def test_requests_come_in_the_time_that_the_speed_leaves() -> None:
    """Starts 50 s apart, for two seeds."""
    seeds = [workload(10 * K, 100 * K, 10 * K)] * 2

    for speed in (1.0, 4.0):
        (made,) = divisions(seeds, ENGINE, 256, speed=speed)
        assert made.span_s == pytest.approx(200.0 / speed)
