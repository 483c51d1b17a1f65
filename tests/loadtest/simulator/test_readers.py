"""Traces of any format, recognised by their content."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from loadtest.simulator.readers import ReadOptions, TraceFormat, detect_format, read_auto
from loadtest.traces import TraceError

MOONCAKE = b"".join(
    json.dumps({"timestamp": 3000 * n, "input_length": 600, "output_length": 5, "hash_ids": [0, n]}).encode()
    + b"\n"
    for n in range(1, 5)
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,300,7\n2023-11-16 18:17:04.9,300,7\n"
AGENTIC = (
    json.dumps(
        {
            "id": "a",
            "block_size": 64,
            "models": ["m"],
            "tool_tokens": 0,
            "system_tokens": 0,
            "requests": [{"t": n, "type": "s", "in": 70, "out": 3, "hash_ids": [1]} for n in range(3)],
        }
    ).encode()
    + b"\n"
)


@pytest.mark.parametrize(
    ("content", "trace_format", "requests"),
    [
        (MOONCAKE, TraceFormat.MOONCAKE, 4),
        (b"\n" + MOONCAKE, TraceFormat.MOONCAKE, 4),
        (AZURE, TraceFormat.AZURE, 2),
        (AGENTIC, TraceFormat.AGENTIC, 3),
    ],
)
def test_the_content_tells_the_format(
    tmp_path: Path, content: bytes, trace_format: TraceFormat, requests: int
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)

    assert detect_format(path) is trace_format
    assert read_auto(path).request_count == requests
    assert read_auto(path, ReadOptions(requests_max=1), trace_format).request_count == 1


def test_a_compressed_trace_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(AZURE))

    assert read_auto(path).name == "trace.gz"


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
def test_a_large_zstd_trace_is_recognised_by_its_first_line_alone(tmp_path: Path) -> None:
    """More lines than a pipe holds: a reader that stops must not wait for the rest."""
    path = tmp_path / "trace.zst"
    content = MOONCAKE * 5000
    path.write_bytes(subprocess.run(["zstd", "-qc"], input=content, capture_output=True, check=True).stdout)

    assert detect_format(path) is TraceFormat.MOONCAKE


@pytest.mark.parametrize("content", [b"", b"what?\n", b"[1]\n", b'{"a": 1}\n'])
def test_what_is_no_trace_is_shown_with_the_formats_there_are(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=r"no known format .*mooncake"):
        read_auto(path)


def test_a_window_without_requests_is_an_error_and_no_empty_workload(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(AZURE)

    with pytest.raises(TraceError, match="between 100 and 200 s"):
        read_auto(path, ReadOptions(start_s=100.0, end_s=200.0))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="absent"):
        read_auto(tmp_path / "absent")
