"""A workload from a histogram of lengths, without a trace.

Assumed are:

    arrivals    a Poisson process
    lengths     independent draws from the histogram
    prefixes    a prompt is either new, or all but its end is that of one that came an exponential time before
                it; as many are of the second kind as give an infinite cache the hit ratio

    earlier   |=====================|~~~~~~|
    prompt    |=====================|--|           not new: shared as far as both reach, the last token never
    prompt    |------------------------|           new

Were every prompt shared by the same part instead, the smallest cache would hold all beginnings.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log1p
from pathlib import Path

import numpy as np

from loadtest.simulator.identity import FreshBlocks, answer_blocks
from loadtest.simulator.records import Floats, Whole
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.traces import TraceError
from radix import HASH_BYTES

DRAWN_REQUESTS = 5_000
DRAWN_OUTPUT_TOKENS = 256
REUSE_S = 120.0
"""[guess] A person reads an answer and asks on within minutes."""

COLUMNS = ("prompt_tokens", "count")
OUTPUT_COLUMN = "output_tokens"


@dataclass(frozen=True, slots=True)
class LengthCount:
    """Requests of one size.

    Attributes:
        prompt_tokens: > 0.
        output_tokens: > 0; None if the histogram does not say.
        count: Their number, or anything proportional to it.
    """

    prompt_tokens: int
    output_tokens: int | None
    count: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """Parameters beside the histogram.

    Attributes:
        hit_ratio: Share of prompt tokens that an infinite cache would reuse, 0 to below 1.
        requests: Number to draw.
        output_tokens: Length of answers that the histogram lacks.
        reuse_s: Mean age of the prompt that a new one shares with, seconds.
    """

    hit_ratio: float
    rate_per_s: float
    requests: int = DRAWN_REQUESTS
    output_tokens: int = DRAWN_OUTPUT_TOKENS
    reuse_s: float = REUSE_S
    seed: int = 1


def read_lengths(path: Path) -> list[LengthCount]:
    """Read a histogram: CSV with a header, ``prompt_tokens,count`` and optionally ``output_tokens``.

    Raises:
        TraceError: It cannot be read; the message names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise TraceError(
                    f"{path}: the first line must name the columns {', '.join(COLUMNS)} and may name "
                    f"{OUTPUT_COLUMN}; it has no {missing[0]}"
                )
            read = [_row(path, number, row) for number, row in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    if not sum(row.count for row in read):
        raise TraceError(f"{path} counts no request")
    return read


def draw_workload(name: str, lengths: Sequence[LengthCount], drawing: Drawing) -> Workload:
    """Draw an open-loop workload; at least one length has a count above 0."""
    chance = random.Random(f"{drawing.seed}/lengths")
    drawn = chance.choices(lengths, weights=[row.count for row in lengths], k=drawing.requests)
    fresh = FreshBlocks("lengths", drawing.seed)
    arrivals_s = np.cumsum([chance.expovariate(drawing.rate_per_s) for _ in drawn])
    held_blocks = np.zeros(len(drawn), dtype=np.int64)
    requests: list[SimRequest] = []
    owed_tokens = 0.0
    shared_tokens = 0
    for index, row in enumerate(drawn):
        tokens, output_tokens = row.prompt_tokens, row.output_tokens or drawing.output_tokens
        owed_tokens += drawing.hit_ratio * tokens
        most = (tokens - 1) // ENGINE_BLOCK_TOKENS
        wanted = most if owed_tokens >= most * ENGINE_BLOCK_TOKENS else 0
        age_s = _age_s(chance.random(), drawing.reuse_s, float(arrivals_s[index]))
        shared = b""
        if index and wanted:
            like = _alike(held_blocks[:index], arrivals_s[:index], wanted, arrivals_s[index] - age_s)
            shared = requests[like].held[: wanted * HASH_BYTES]
        owed_tokens -= len(shared) // HASH_BYTES * ENGINE_BLOCK_TOKENS
        shared_tokens += len(shared) // HASH_BYTES * ENGINE_BLOCK_TOKENS
        own = tokens // ENGINE_BLOCK_TOKENS - len(shared) // HASH_BYTES
        request = SimRequest(
            blocks=shared + fresh.take(own),
            tokens=tokens,
            output_tokens=output_tokens,
            answer=fresh.take(answer_blocks(tokens, output_tokens, ENGINE_BLOCK_TOKENS)),
        )
        held_blocks[index] = len(request.held) // HASH_BYTES
        requests.append(request)
    reached = shared_tokens / sum(request.tokens for request in requests)
    notes = (
        f"drawn from a histogram of lengths, seed {drawing.seed}: {drawing.rate_per_s:g} requests per "
        f"second, {100 * reached:.1f} % of the prompt tokens shared with a prompt that came "
        f"{drawing.reuse_s:g} s before"
    )
    sessions = tuple(
        Session(float(at_s), (request,)) for at_s, request in zip(arrivals_s, requests, strict=True)
    )
    return Workload(name, sessions, notes=notes)


def _alike(held_blocks: Whole, arrivals_s: Floats, wanted: int, at_s: float) -> int:
    """The prompt to share with: long enough and nearest to a time, else the longest."""
    enough = np.flatnonzero(held_blocks >= wanted)
    if not len(enough):
        return int(held_blocks.argmax())
    return int(enough[np.abs(arrivals_s[enough] - at_s).argmin()])


def _age_s(drawn: float, mean_s: float, most_s: float) -> float:
    """An exponential age that is less than the most, from a uniform number."""
    return -mean_s * log1p(drawn * expm1(-most_s / mean_s))


def _row(path: Path, number: int, row: dict[str, str | None]) -> LengthCount:
    try:
        output = row.get(OUTPUT_COLUMN)
        read = LengthCount(
            int(row["prompt_tokens"] or ""), int(output) if output else None, float(row["count"] or "")
        )
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
    if read.prompt_tokens < 1 or (read.output_tokens or 1) < 1 or not 0 <= read.count < float("inf"):
        raise TraceError(f"{path}, line {number}: lengths must be at least 1, counts at least 0")
    return read
