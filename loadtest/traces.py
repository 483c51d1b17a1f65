"""Request traces in the Mooncake format, and prompts that repeat what the trace repeats.

One JSON object a line (Qin et al., "Mooncake", FAST 2025): ``timestamp`` in milliseconds, ``input_length``
and ``output_length`` in tokens, and ``hash_ids``, one id per 512-token block. An id stands for the whole
prefix up to and including its block, so an infinite cache reuses exactly the leading run of ids it has seen.
`PromptText` gives every id a fixed pseudo-random run of text, so prompts share precisely the recorded
prefixes.

    file -> read_trace -> rows -> cut_window -> spread_arrivals -> rows ready to replay
"""

import gzip
import hashlib
import itertools
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Annotated

import msgspec

from loadtest.engine.tokens import TOKEN_BYTES

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one hash id: fixed by the format (Mooncake's ``FAST25-release/traces``)."""

ARRIVAL_STEP_S_MAX = 3.0
"""Published arrivals are rounded down to 3 s; a longer pause than this was a real one."""


class TraceError(Exception):
    """A trace cannot be read; the message names the file, the line and the remedy."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One row of a trace.

    Attributes:
        arrival_s: Since the start of the trace, or of its window.
        input_tokens: Prompt length, > 0.
        output_tokens: Generated length, > 0.
        block_ids: One id per 512 prompt tokens, the last block may be partial.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


_BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[_BlockId, ...]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Read a trace row by row from ``.jsonl`` (``.gz``, or ``.zst`` with the ``zstd`` command).

    Raises:
        TraceError: The file is missing, cannot be decompressed, or a row is not of the format.
    """
    decoder = msgspec.json.Decoder(_Row)
    with opened_trace(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; expected the Mooncake fields "
                    "timestamp, input_length, output_length and hash_ids"
                ) from error
            if row.input_length < 1 or len(row.hash_ids) != -(-row.input_length // TRACE_BLOCK_TOKENS):
                raise TraceError(
                    f"{path}, line {number}: {row.input_length} input tokens need one hash id "
                    f"per {TRACE_BLOCK_TOKENS} tokens, but there are {len(row.hash_ids)}"
                )
            yield TraceRequest(
                row.timestamp / 1000.0, row.input_length, max(row.output_length, 1), row.hash_ids
            )


@contextmanager
def opened_trace(path: Path) -> Iterator[Iterable[bytes]]:
    """Open a trace of any format: its lines, decompressed as its name ends.

    Raises:
        TraceError: It is missing or cannot be decompressed, also while its lines are read.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as lines:
                yield lines
        elif path.suffix == ".zst":
            with _zstd(path) as lines:
                yield lines
        else:
            with path.open("rb") as lines:
                yield lines
    except (OSError, EOFError) as error:
        raise TraceError(f"Cannot read the trace {path}: {error}") from error


@contextmanager
def _zstd(path: Path) -> Iterator[IO[bytes]]:
    """Decompress in a child process: the standard library has no zstd before Python 3.14."""
    command = shutil.which("zstd")
    if command is None:
        raise TraceError(f"{path} needs the zstd command: install it, or decompress the file first")
    arguments = [command, "-dcq", "--", str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:  # noqa: S603 - no shell
        assert child.stdout is not None
        try:
            yield child.stdout
            # A reader that stops early leaves the child writing: only at the end there is a status.
            if not child.stdout.read(1) and child.wait() != 0:
                raise TraceError(f"Cannot decompress {path}: zstd ended with status {child.returncode}")
        finally:
            child.kill()


def cut_window(rows: Iterable[TraceRequest], start_s: float, end_s: float) -> list[TraceRequest]:
    """Keep the arrivals in ``[start_s, end_s)`` and count their time from ``start_s``.

    Rows must come in order of arrival: reading stops at the end of the window.
    """
    until_end = itertools.takewhile(lambda row: row.arrival_s < end_s, rows)
    return [replace(row, arrival_s=row.arrival_s - start_s) for row in until_end if row.arrival_s >= start_s]


def spread_arrivals(rows: Sequence[TraceRequest], seed: int) -> list[TraceRequest]:
    """Spread rows that share one rounded timestamp over the time to the next one, in their order.

    Within a step arrivals are uniform: the rest of a Poisson process of which only counts are known.
    """
    chance = random.Random(f"{seed}/arrivals")
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.arrival_s)]
    spread: list[TraceRequest] = []
    for group, following in itertools.zip_longest(groups, groups[1:]):
        start_s = group[0].arrival_s
        step_s = ARRIVAL_STEP_S_MAX
        if following is not None:
            step_s = min(step_s, following[0].arrival_s - start_s)
        offsets = sorted(chance.uniform(0.0, step_s) for _ in group)
        spread += [
            replace(row, arrival_s=start_s + offset) for row, offset in zip(group, offsets, strict=True)
        ]
    return spread


def ideal_hit_ratio(rows: Iterable[TraceRequest]) -> float:
    """Share of all prompt tokens that one infinite cache would reuse, from a cold start.

    As the traces' publishers count: blocks are there when their request arrives, and only prompts are cached.
    """
    seen: set[int] = set()
    prompt_tokens = reused_tokens = 0
    for row in rows:
        run = sum(1 for _ in itertools.takewhile(seen.__contains__, row.block_ids))
        reused_tokens += min(run * TRACE_BLOCK_TOKENS, row.input_tokens)
        prompt_tokens += row.input_tokens
        seen.update(row.block_ids)
    return reused_tokens / prompt_tokens if prompt_tokens else 0.0


class PromptText:
    """The text of a trace's prompts: four ASCII characters per token, as the emulated engine cuts it.

    SHAKE-128 derives an id's run from the seed (about 6 µs for 2 KiB), so only 32 MiB of recent runs are
    kept.
    """

    def __init__(self, seed: int) -> None:
        run_bytes = TRACE_BLOCK_TOKENS * TOKEN_BYTES

        @lru_cache(maxsize=32 * 2**20 // run_bytes)
        def run(block_id: int) -> str:
            return hashlib.shake_128(f"{seed}/{block_id}".encode()).hexdigest(run_bytes // 2)

        self._run = run

    def render(self, row: TraceRequest) -> str:
        """Return the prompt of a row, exactly ``input_tokens`` long."""
        return "".join(map(self._run, row.block_ids))[: row.input_tokens * TOKEN_BYTES]
