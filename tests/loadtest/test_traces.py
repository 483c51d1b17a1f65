"""Reading, cutting and spreading traces, and the prompts made from them."""

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from loadtest.traces import (
    PromptText,
    TraceError,
    TraceRequest,
    cut_window,
    ideal_hit_ratio,
    read_trace,
    spread_arrivals,
)

ROWS = [
    {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 3]},
    {"timestamp": 9000, "input_length": 1536, "output_length": 5, "hash_ids": [0, 4, 5]},
]

# The public trace lies beside the repository of a developer, never inside it.
SHARED_TRACE = Path(
    os.environ.get(
        "CACHEWAY_TEST_TRACE",
        Path(__file__).parents[3] / "shared/traces/mooncake_conversation_first60.jsonl.gz",
    )
)


def lines() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def row(arrival_s: float, *ids: int, tokens: int | None = None) -> TraceRequest:
    return TraceRequest(arrival_s, tokens or 512 * len(ids), 8, ids)


def test_a_trace_reads_the_same_plain_and_compressed(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"
    plain.write_bytes(lines())
    zipped.write_bytes(gzip.compress(lines()))

    rows = list(read_trace(plain))

    assert rows == list(read_trace(zipped))
    assert rows[2] == TraceRequest(3.0, 700, 5, (0, 3))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
def test_a_zstd_trace_is_read_through_the_zstd_command(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.zst"
    path.write_bytes(subprocess.run(["zstd", "-qc"], input=lines(), capture_output=True, check=True).stdout)

    assert len(list(read_trace(path))) == 4
    assert len(cut_window(read_trace(path), 0.0, 1.0)) == 2, "reading may stop before the end"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{}\n", "line 1: .*timestamp"),
        (lines() + b"nonsense\n", "line 5"),
        (b'{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[0]}\n', "one hash id"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=complaint):
        list(read_trace(path))


def test_a_missing_or_truncated_file_is_a_trace_error(tmp_path: Path) -> None:
    cut = tmp_path / "t.jsonl.gz"
    cut.write_bytes(gzip.compress(lines())[:-12])

    for path in (cut, tmp_path / "absent.jsonl"):
        with pytest.raises(TraceError, match="Cannot read"):
            list(read_trace(path))


def test_a_window_keeps_its_start_drops_its_end_and_counts_from_its_start() -> None:
    rows = [row(0.0, 1), row(3.0, 2), row(6.0, 3)]

    assert cut_window(rows, 3.0, 6.0) == [row(0.0, 2)]


def test_arrivals_spread_within_their_step_and_keep_their_order() -> None:
    """Three rows at 0 spread over 2 s because the next came then; the last pause counts as 3 s at most."""
    rows = [row(0.0, 1), row(0.0, 2), row(0.0, 3), row(2.0, 4), row(100.0, 5)]

    spread = spread_arrivals(rows, seed=1)

    arrivals = [one.arrival_s for one in spread]
    assert [one.block_ids for one in spread] == [one.block_ids for one in rows]
    assert arrivals == sorted(arrivals)
    assert len(set(arrivals)) == 5
    assert 0 <= arrivals[0] < arrivals[2] < 2.0 <= arrivals[3] < 5.0
    assert 100.0 <= arrivals[4] < 103.0
    assert spread == spread_arrivals(rows, seed=1) != spread_arrivals(rows, seed=2)


def test_the_ideal_of_a_trace_counts_the_leading_run_of_ids_seen_before() -> None:
    """1024 of the second row's 1100 tokens, 512 of the third's 700, 512 of the fourth's 1536."""
    rows = [TraceRequest(0.0, r["input_length"], 5, tuple(r["hash_ids"])) for r in ROWS]  # type: ignore[arg-type]

    assert ideal_hit_ratio(rows) == (1024 + 512 + 512) / (1024 + 1100 + 700 + 1536)
    assert ideal_hit_ratio([]) == 0.0


def test_a_partial_last_block_that_was_seen_counts_its_real_tokens() -> None:
    again = row(1.0, 0, 1, tokens=600)

    assert ideal_hit_ratio([row(0.0, 0, 1, tokens=600), again]) == 600 / 1200


def test_prompts_share_exactly_the_blocks_whose_ids_they_share() -> None:
    text = PromptText(seed=7)

    first, second = text.render(row(0, 1, 2)), text.render(row(0, 1, 3, tokens=700))

    assert len(first) == 4 * 1024
    assert len(second) == 4 * 700
    assert first[:2048] == second[:2048]
    assert first[2048:2056] != second[2048:2056]
    assert PromptText(seed=7).render(row(0, 1, 2)) == first
    assert PromptText(seed=8).render(row(0, 1, 2)) != first


@pytest.mark.skipif(not SHARED_TRACE.exists(), reason=f"no trace at {SHARED_TRACE} (CACHEWAY_TEST_TRACE)")
def test_the_public_conversation_trace_has_its_published_statistics() -> None:
    """7,220 rows, 90.4 M prompt tokens, an ideal hit rate of 35.5 %: as published beside it."""
    rows = list(read_trace(SHARED_TRACE))

    assert len(rows) == 7220
    assert sum(one.input_tokens for one in rows) == 90_432_596
    assert round(ideal_hit_ratio(rows), 3) == 0.355
