"""Mooncake traces as workloads."""

import json
import struct
from pathlib import Path

import pytest

from loadtest.simulator.mooncake import read_mooncake
from loadtest.traces import TraceError

ROWS = [
    {"timestamp": 0, "input_length": 1030, "output_length": 100, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [0, 3]},
    {"timestamp": 3000, "input_length": 1100, "output_length": 0, "hash_ids": [0, 1, 4]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_an_id_becomes_eight_engine_blocks_and_a_partial_one_those_that_are_full(trace: Path) -> None:
    """1030 tokens are two ids and six tokens; 700 are one id and two full blocks; 1100 end in one."""
    workload = read_mooncake(trace)

    first, second, third = (session.requests[0] for session in workload.sessions)
    assert [len(one.blocks) // 8 for one in (first, second, third)] == [16, 10, 17]
    assert len(set(struct.iter_unpack("Q", first.blocks))) == 16
    assert first.blocks[: 8 * 8] == second.blocks[: 8 * 8]
    assert first.blocks[8 * 8 : 9 * 8] != second.blocks[8 * 8 : 9 * 8]
    assert third.blocks[: 16 * 8] == first.blocks
    workload.check()


def test_answers_are_blocks_of_their_own_and_never_empty(trace: Path) -> None:
    workload = read_mooncake(trace)

    first, _, third = (session.requests[0] for session in workload.sessions)
    assert len(first.answer) == 8
    assert first.answer not in third.held
    assert third.output_tokens == 1


def test_arrivals_are_spread_inside_their_step_and_the_seed_decides_where(trace: Path) -> None:
    starts = [session.start_s for session in read_mooncake(trace, seed=1).sessions]

    assert starts[0] is not None
    assert starts[1] is not None
    assert 0.0 < starts[0] < starts[1] < 3.0
    assert starts == [session.start_s for session in read_mooncake(trace, seed=1).sessions]
    assert starts != [session.start_s for session in read_mooncake(trace, seed=2).sessions]


def test_a_window_counts_time_from_its_start(trace: Path) -> None:
    (session,) = read_mooncake(trace, start_s=2.0).sessions

    assert session.start_s is not None
    assert 1.0 <= session.start_s < 4.0
    assert len(read_mooncake(trace, end_s=3.0).sessions) == 2


@pytest.mark.parametrize("block_id", [-1, 2**60])
def test_ids_that_no_hash_can_stand_for_are_refused(tmp_path: Path, block_id: int) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({**ROWS[1], "hash_ids": [0, block_id]}))

    with pytest.raises(TraceError, match="line 1"):
        read_mooncake(path)
