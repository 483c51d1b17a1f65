"""The gateway's own request trace as a workload."""

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadtest.simulator.bounds import infinite_hit_tokens
from loadtest.simulator.gateway_log import read_gateway_log
from loadtest.simulator.readers import TraceFormat, detect_format
from loadtest.simulator.workload import SimRequest, Workload
from loadtest.traces import TraceError
from router.request_trace import TraceLine


def path_of(*hashes: int) -> bytes:
    return np.array(hashes, dtype=np.uint64).tobytes()


def line(arrived_s: float, tokens: int, *hashes: int, **more: Any) -> TraceLine:
    given: dict[str, Any] = {
        "duration_s": 1.0,
        "ttft_s": 0.5,
        "status": 200,
        "outcome": "completed",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "stream": True,
        "session": "",
        "estimated": False,
        "output_tokens": 10,
        "cached_tokens": None,
        "predicted_tokens": 0,
        "worker_id": "w:1",
        "attempts": 1,
        "block_tokens": 256,
        "prompt_blocks": tokens / 256,
        **more,
    }
    return TraceLine(arrived_unix_s=1.7e9 + arrived_s, prompt_tokens=tokens, blocks=path_of(*hashes), **given)


def read(tmp_path: Path, *lines: TraceLine, **options: float) -> Workload:
    path = tmp_path / "trace"
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    workload = read_gateway_log(path, **options)
    workload.check()
    return workload


def requests_of(tmp_path: Path, *lines: TraceLine) -> list[SimRequest]:
    return [one for session in read(tmp_path, *lines).sessions for one in session.requests]


def test_arrivals_count_from_the_first_in_whatever_order_the_lines_are(tmp_path: Path) -> None:
    workload = read(tmp_path, line(7.5, 300, 1), line(2.0, 100))

    assert [session.start_s for session in workload.sessions] == pytest.approx([0.0, 5.5])
    assert [one.tokens for one in workload.requests()] == [100, 300]


def test_a_gateway_block_is_four_engine_blocks_and_the_rest_is_shared_with_nobody(tmp_path: Path) -> None:
    """700 tokens: two blocks of 256 are eight engine blocks, two more are of the rest."""
    one, same, longer = requests_of(
        tmp_path,
        line(0, 700, 1, 2),
        line(1, 700, 1, 2),
        line(2, 800, 1, 2, 3),
    )

    assert len(one.blocks) == 10 * 8
    assert one.blocks[:64] == same.blocks[:64] == longer.blocks[:64]
    assert len({r.blocks[64:72] for r in (one, same, longer)}) == 3
    assert infinite_hit_tokens([one, same, longer]).tolist() == [0, 512, 512]


def test_tokens_per_block_are_those_that_the_engine_counted(tmp_path: Path) -> None:
    """Dense text: 320 tokens to a block, so that two blocks are ten engine blocks."""
    lines = [line(n, 800, 1, 2, prompt_blocks=2.5) for n in range(2)]

    one, other = requests_of(tmp_path, *lines)

    assert len(one.blocks) == 12 * 8
    assert one.blocks[: 10 * 8] == other.blocks[: 10 * 8]
    assert one.blocks[10 * 8 :] != other.blocks[10 * 8 :]


def test_an_engine_block_needs_every_gateway_block_that_it_touches(tmp_path: Path) -> None:
    """With 100 tokens to a block the second engine block ends at 128: it needs the second hash."""
    one, other = requests_of(
        tmp_path, line(0, 200, 1, 2, prompt_blocks=2.0), line(1, 200, 1, 3, prompt_blocks=2.0)
    )

    assert one.blocks[:8] == other.blocks[:8]
    assert one.blocks[8:16] != other.blocks[8:16]


def test_a_prompt_denser_than_the_mean_has_no_more_blocks_than_tokens(tmp_path: Path) -> None:
    short, _ = requests_of(tmp_path, line(0, 128, 1, 2, prompt_blocks=2.0), line(1, 5000, prompt_blocks=10.0))

    assert len(short.blocks) == 16


def test_lengths_that_were_estimated_do_not_count_for_the_mean(tmp_path: Path) -> None:
    """A block is 320 tokens by the engine's count, and two of them cover all of a prompt of 640."""
    one, other, estimated = requests_of(
        tmp_path,
        line(0, 640, 1, 2, prompt_blocks=2.0),
        line(1, 640, 1, 2, prompt_blocks=2.0),
        line(2, 512, 1, 2, prompt_blocks=2.0, estimated=True),
    )

    assert one.blocks == other.blocks
    assert estimated.blocks == one.blocks[: 8 * 8]
    assert len(set(struct.iter_unpack("Q", one.blocks))) == 10


def test_a_request_of_a_session_continues_the_one_that_it_extends(tmp_path: Path) -> None:
    """Ended at 1 s, continued at 4 s: a pause of 3 s. The rest and the answer are the continuation's."""
    (session,) = read(
        tmp_path,
        line(0, 300, 1, session="s", output_tokens=150),
        line(4, 520, 1, 2, session="s"),
        line(9, 600, 1, 2, session="s"),
    ).sessions

    first, second, third = session.requests
    assert [one.after for one in session.requests] == [(), (0,), (1,)]
    assert [one.delay_s for one in session.requests] == pytest.approx([0.0, 3.0, 4.0])
    assert first.held == third.blocks[:56]
    assert second.held == third.blocks[: 8 * 8]
    assert first.blocks == second.blocks[:32]


def test_an_answer_that_the_client_left_out_is_shared_with_nobody(tmp_path: Path) -> None:
    first, second = requests_of(
        tmp_path, line(0, 256, 1, session="s", output_tokens=500), line(4, 600, 1, 2, session="s")
    )

    assert second.blocks.startswith(first.blocks)
    assert second.blocks[32:40] != first.answer[:8]


@pytest.mark.parametrize(
    "other",
    [
        line(4, 520, 1, 2, session="another"),
        line(4, 520, 1, 2),
        line(4, 520, 7, 2, session="s"),
        line(0.5, 520, 1, 2, session="s"),
        line(4, 270, 1, session="s"),
    ],
    ids=["another session", "no session", "another start", "not ended yet", "shorter"],
)
def test_other_requests_come_when_they_came(tmp_path: Path, other: TraceLine) -> None:
    sessions = read(tmp_path, line(0, 300, 1, session="s"), other).sessions

    assert [len(session.requests) for session in sessions] == [1, 1]


def test_branches_of_a_conversation_wait_for_the_same_request(tmp_path: Path) -> None:
    (session,) = read(
        tmp_path,
        line(0, 256, 1, session="s", output_tokens=150),
        line(4, 600, 1, 2, session="s"),
        line(5, 600, 1, 3, session="s"),
    ).sessions

    first, second, third = session.requests
    assert [one.after for one in session.requests] == [(), (0,), (0,)]
    assert second.blocks.startswith(first.held)
    assert not third.blocks.startswith(first.held)


def test_what_was_wrong_is_left_out_and_what_found_no_room_is_demand(tmp_path: Path) -> None:
    statuses = [200, 400, 404, 429, 499, 500, 503]

    workload = read(tmp_path, *(line(n, 100 + status, status=status) for n, status in enumerate(statuses)))

    assert [one.tokens - 100 for one in workload.requests()] == [200, 429, 499, 500, 503]


def test_an_unknown_length_of_an_answer_is_the_median_and_an_embedding_has_none(tmp_path: Path) -> None:
    made = requests_of(
        tmp_path,
        *(line(n, 100, output_tokens=tokens) for n, tokens in enumerate([4, 50, 6, None, 0])),
        line(9, 100, output_tokens=None, endpoint="/v1/embeddings"),
    )

    assert [one.output_tokens for one in made] == [4, 50, 6, 6, 6, 1]
    assert [one.output_tokens for one in requests_of(tmp_path, line(0, 9, output_tokens=None))] == [256]


def test_a_window_is_cut_out(tmp_path: Path) -> None:
    workload = read(tmp_path, *(line(10 + n, 100 + n) for n in range(5)), start_s=1.0, end_s=3.0)

    assert [one.tokens for one in workload.requests()] == [101, 102]
    assert [session.start_s for session in workload.sessions] == pytest.approx([0.0, 1.0])


def test_lines_that_were_cut_off_are_skipped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    whole = msgspec.json.encode(line(0, 100)) + b"\n"
    path.write_bytes(whole + whole[:50] + b"\n\n" + whole + whole[:50])

    workload = read_gateway_log(path)

    assert workload.request_count == 2
    assert "2 lines that were cut off are skipped" in workload.notes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"arrived_unix_s": 1.0}', "line 2: .*expected a line of a request trace"),
        (msgspec.json.encode(line(0, 0)), "line 2: no prompt"),
        (msgspec.json.encode(msgspec.structs.replace(line(0, 9), blocks=b"123")), "line 2: no prompt"),
    ],
)
def test_what_no_gateway_wrote_is_said_with_the_line(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(msgspec.json.encode(line(0, 100)) + b"\n" + text)

    with pytest.raises(TraceError, match=problem):
        read_gateway_log(path)


def test_the_format_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(msgspec.json.encode(line(0, 100)))

    assert detect_format(path) is TraceFormat.LOG
