"""A histogram becomes a workload that has its lengths and the hit ratio that was asked for."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.plan.lengths import Drawing, LengthCount, draw_workload, read_lengths
from loadtest.simulator.bounds import hit_ratio, infinite_hit_tokens, pooled_lru_hit_tokens
from loadtest.simulator.workload import Workload
from loadtest.traces import TraceError

CHATS = [LengthCount(1_000, 100, 60.0), LengthCount(8_000, None, 30.0), LengthCount(60_000, 500, 10.0)]


def reached(workload: Workload) -> float:
    requests = workload.in_order()
    return hit_ratio(requests, infinite_hit_tokens(requests))


@settings(max_examples=20)
@given(ratio=st.floats(0.05, 0.9), seed=st.integers(0, 100))
def test_an_infinite_cache_reuses_what_was_asked_for(ratio: float, seed: int) -> None:
    drawing = Drawing(hit_ratio=ratio, rate_per_s=5.0, requests=800, seed=seed)

    assert reached(draw_workload("chats", CHATS, drawing)) == pytest.approx(ratio, abs=0.02)


def test_lengths_come_as_often_as_they_were_counted() -> None:
    drawing = Drawing(hit_ratio=0.5, rate_per_s=5.0, requests=4_000, output_tokens=70)
    workload = draw_workload("chats", CHATS, drawing)

    counted = Counter((request.tokens, request.output_tokens) for request in workload.requests())
    assert counted.keys() == {(1_000, 100), (8_000, 70), (60_000, 500)}
    assert counted[1_000, 100] == pytest.approx(2_400, rel=0.1)
    assert counted[60_000, 500] == pytest.approx(400, rel=0.2)


def test_requests_come_at_the_rate() -> None:
    workload = draw_workload("chats", CHATS, Drawing(hit_ratio=0.5, rate_per_s=5.0, requests=4_000))

    assert workload.sessions[-1].start_s == pytest.approx(800.0, rel=0.1)


def test_what_is_drawn_is_a_workload_and_depends_on_the_seed_alone() -> None:
    drawn = [
        draw_workload("chats", CHATS, Drawing(hit_ratio=0.7, rate_per_s=5.0, requests=300, seed=seed))
        for seed in (1, 1, 2)
    ]

    drawn[0].check()
    assert drawn[0] == drawn[1]
    assert drawn[0].sessions != drawn[2].sessions


def test_a_longer_time_between_reuses_makes_memory_matter_more() -> None:
    """The same hit ratio of an infinite cache, but not of a small one."""
    small = []
    for reuse_s in (10.0, 1_000.0):
        drawing = Drawing(hit_ratio=0.6, rate_per_s=5.0, requests=2_000, reuse_s=reuse_s)
        requests = draw_workload("chats", CHATS, drawing).in_order()
        small.append(hit_ratio(requests, pooled_lru_hit_tokens(requests, 1_000_000)))
    assert small[1] < 0.7 * small[0]


def test_a_hit_ratio_that_the_lengths_do_not_allow_is_told() -> None:
    """A prompt of 100 tokens has one full block of 64 to share."""
    workload = draw_workload(
        "tiny", [LengthCount(100, None, 1.0)], Drawing(hit_ratio=0.9, rate_per_s=1.0, requests=500)
    )

    assert reached(workload) == pytest.approx(0.64, abs=0.01)
    assert f"{100 * reached(workload):.1f} % of the prompt tokens" in workload.notes


def test_a_histogram_is_read_in_any_order_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("count,prompt_tokens,output_tokens\n3,1000,20\n1.5,8000,\n")

    assert read_lengths(path) == [LengthCount(1000, 20, 3.0), LengthCount(8000, None, 1.5)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no prompt_tokens"),
        ("tokens,count\n1,2\n", "it has no prompt_tokens"),
        ("prompt_tokens,count\nmany,2\n", "line 2"),
        ("prompt_tokens,count\n1,2\n5\n", "line 3"),
        ("prompt_tokens,count\n0,2\n", "line 2: lengths must be at least 1"),
        ("prompt_tokens,count\n10,-2\n", "line 2"),
        ("prompt_tokens,count\n10,nan\n", "line 2"),
        ("prompt_tokens,count\n10,0\n", "counts no request"),
    ],
)
def test_what_is_wrong_in_a_histogram_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)

    with pytest.raises(TraceError, match=says):
        read_lengths(path)


def test_a_histogram_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such"):
        read_lengths(tmp_path / "no such")
