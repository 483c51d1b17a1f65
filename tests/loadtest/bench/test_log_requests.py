"""Tests of `loadtest.bench.log_requests`, and of the requests of `loadtest.bench.log_crowd`."""

import itertools
from typing import Any

import pytest

from loadtest.bench.log_crowd import (
    CONVERSATIONS,
    GROWTH_BLOCKS,
    HASH_BYTES,
    SHARED_BLOCKS,
    TURN_BLOCKS,
    Conversations,
    Spoken,
)
from loadtest.bench.log_replica import ReplicaReport
from loadtest.bench.log_requests import HEADS, Case, figures, text_of

CASE = Case(blocks=50, replicas=8, requests_per_s=1000.0)


def report(at_s: float, **changes: Any) -> ReplicaReport:
    fields: dict[str, Any] = {
        "at_s": at_s,
        "cpu_s": 0.0,
        "loop_s": 0.0,
        "published_ops": 0,
        "applied_ops": 0,
        "applied_requests": 0,
        "gaps": 0,
        "lost_ops": 0,
        "late_s": 0.0,
        "offset_us": 0,
        "rss_bytes": 0,
        "degraded": None,
        "sizes": {},
        "lags": {},
    }
    return ReplicaReport(**{**fields, **changes})


def test_a_request_costs_the_reader_its_cpu_less_that_of_an_idle_replica() -> None:
    """2 s apply 2,000 requests with 0.2 s of CPU, of which 0.1 s are spent by a replica that has none."""
    reader = [report(1.0), report(3.0, applied_requests=2000, loop_s=0.2, lags={9: 50, 99: 50})]
    idle = [report(1.0), report(3.0, loop_s=0.1)]
    spoken = [Spoken(1.0, 0, 0, 0), Spoken(3.0, 2000, 4000, 1_400_000)]

    row = figures(CASE, reader, idle, spoken, valkey_s=0.06)

    assert row.applied_per_s == pytest.approx(1000.0)
    assert row.reader_us == pytest.approx(50.0)
    assert row.valkey_us == pytest.approx(60.0)
    assert row.request_bytes == 700.0
    assert row.entries == 2.0
    assert (row.lag_p50_ms, row.lag_p99_ms) == (1.0, 10.0)
    assert row.reached


def test_a_case_that_falls_behind_says_so() -> None:
    reader = [report(1.0), report(3.0, applied_requests=1000)]
    row = figures(CASE, reader, [report(1.0), report(3.0)], [Spoken(1.0, 0, 0, 0)], valkey_s=0.0)

    assert not row.reached
    assert "500 behind" in text_of([row])


def test_every_row_has_a_cell_for_every_head() -> None:
    reader = [report(1.0), report(3.0, applied_requests=2000)]
    row = figures(CASE, reader, reader, [Spoken(1.0, 0, 0, 0)], valkey_s=0.0)

    assert len(row.row()) == len(HEADS)


def test_conversations_grow_and_begin_anew_with_shared_blocks() -> None:
    """They begin with 50 blocks, add 3 a turn, and start over when 30 have been added."""
    conversations = Conversations(50)
    turns = GROWTH_BLOCKS // TURN_BLOCKS + 1
    paths = [conversations.placed(turn * CONVERSATIONS, "r", 1).paths[0] for turn in range(turns)]
    shared = HASH_BYTES * SHARED_BLOCKS

    assert [len(path) // HASH_BYTES for path in paths] == [*range(53, 81, 3), 50]
    assert all(later.startswith(path) for path, later in itertools.pairwise(paths[:-1]))
    firsts = {conversations.placed(number, "r", 1).paths[0][:shared] for number in range(CONVERSATIONS)}
    assert len(firsts) == 16


def test_short_prompts_are_repeated_at_workers_that_are_known() -> None:
    conversations = Conversations(1, workers=("a:1", "b:1"), prefill_s=0.002)
    first, again = (conversations.placed(number, "r", 1) for number in (3, 3 + CONVERSATIONS))
    assert first.paths == again.paths
    assert len(first.paths[0]) == HASH_BYTES
    assert first.worker == again.worker
    assert first.worker in ("a:1", "b:1")
    assert (first.uncached_tokens, first.service_us) == (0, 2000)
