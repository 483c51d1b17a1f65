"""The gateway's own request trace as a workload (`router.request_trace`).

*Blocks.* A line has the chained hashes of the gateway's blocks, 256 tokens by estimate, and the length of the
prompt by the engine's count. The mean tokens per block of the model's lines relates both:

    gateway   [     h0     ][     h1     ][     h2     ] rest       the rest is in no hash
    engine    [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ][ 6 ][ 7 ][ 8 ]         2 needs h0 and h1: it is named after h1

An engine block is named after the last gateway block that it needs, so prompts that share gateway blocks
share the engine blocks in them. The rest is shared with no other prompt.

*Sessions.* A request continues another one with the same ``prompt_cache_key`` if it came after the other had
ended and its prompt extends the other's. Then it keeps its pause, a slower fleet delays it, and it reveals
the rest and the answer of the one before. All other requests come when they came.

Requests with 4xx are left out, but for those rejected for lack of room. Incomplete lines are skipped.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from loadtest.simulator.identity import HASH_BYTES, FreshBlocks, Hashes, answer_blocks, hashes_of
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.traces import TraceError, opened_trace

EMBEDDINGS = "/v1/embeddings"
"""Path whose answers have no tokens."""

_DEMAND = (429, 499)
"""Client errors without a fault of the request: too many at a time, and the client left."""

_OUTPUT_TOKENS = 256
"""Length of an answer when no answer of a known length is in the file."""

_CLOSE_S = 0.01
"""Tolerance for a successor that comes too early: clocks of replicas differ a little."""

_CONSIDERED = 64
"""Requests of a session among which the one that is continued is looked for, the latest first."""


class LoggedRequest(msgspec.Struct, frozen=True, gc=False):
    """Read fields of a line; `router.request_trace.TraceLine` writes it."""

    arrived_unix_s: float
    duration_s: float
    status: int
    endpoint: str
    model: str
    session: str
    prompt_tokens: int
    estimated: bool
    output_tokens: int | None
    block_tokens: int
    prompt_blocks: float
    blocks: bytes


def read_gateway_log(path: Path, *, start_s: float = 0.0, end_s: float = inf) -> Workload:
    """Read arrivals from ``start_s`` to ``end_s`` after the first one from a file of ``--request-trace``.

    Files of several replicas may be joined in any order, and compressed (``.gz``, ``.zst``).

    Raises:
        TraceError: The file cannot be read, or was not written by a gateway.
    """
    lines, torn = _lines(path)
    lines = [line for line in lines if not 400 <= line.status < 500 or line.status in _DEMAND]
    lines.sort(key=lambda line: line.arrived_unix_s)
    begin_unix_s = start_s + (lines[0].arrived_unix_s if lines else 0.0)
    lines = [line for line in lines if 0.0 <= line.arrived_unix_s - begin_unix_s < end_s - start_s]
    continued = _continued(lines)
    requests = _requests(lines, continued)
    rows: dict[int, list[int]] = {}  # Rows of each session, by its first row.
    first_of: list[int] = []
    for row, other in enumerate(continued):
        first_of.append(row if other is None else first_of[other])
        rows.setdefault(first_of[row], []).append(row)
    sessions = (
        Session(lines[first].arrived_unix_s - begin_unix_s, _session(members, lines, continued, requests))
        for first, members in rows.items()
    )
    notes = f"{len(lines) - len(rows)} requests continue another one"
    if torn:
        notes += f"; {torn} lines that were cut off are skipped"
    return Workload(path.name, tuple(sessions), notes=notes, named_sessions=True)


def _lines(path: Path) -> tuple[list[LoggedRequest], int]:
    decoder = msgspec.json.Decoder(LoggedRequest)
    lines: list[LoggedRequest] = []
    torn = 0
    with opened_trace(path) as texts:
        for number, text in enumerate(texts, start=1):
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except msgspec.ValidationError as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; expected a line of a request trace"
                ) from error
            except msgspec.DecodeError:
                torn += 1
                continue
            if line.prompt_tokens < 1 or line.prompt_blocks < 0 or len(line.blocks) % HASH_BYTES:
                raise TraceError(f"{path}, line {number}: no prompt has such a length or such blocks")
            lines.append(line)
    return lines, torn


def _continued(lines: Sequence[LoggedRequest]) -> list[int | None]:
    continued: list[int | None] = []
    by_session: dict[str, list[int]] = defaultdict(list)
    for row, line in enumerate(lines):
        before = by_session[line.session] if line.session else []
        continued.append(
            next((o for o in islice(reversed(before), _CONSIDERED) if _continues(line, lines[o])), None)
        )
        before.append(row)
    return continued


def _continues(line: LoggedRequest, other: LoggedRequest) -> bool:
    return (
        other.blocks != b""
        and line.prompt_tokens >= other.prompt_tokens
        and line.arrived_unix_s + _CLOSE_S >= other.arrived_unix_s + other.duration_s
        and line.blocks.startswith(other.blocks)
    )


def _requests(lines: Sequence[LoggedRequest], continued: Sequence[int | None]) -> list[SimRequest]:
    tokens_per_block = _tokens_per_block(lines)
    usual_tokens = round(median([n for line in lines if (n := line.output_tokens)] or [_OUTPUT_TOKENS]))
    successor = {other: row for row, other in reversed(list(enumerate(continued))) if other is not None}
    fresh = FreshBlocks("gateway log")
    requests: dict[int, SimRequest] = {}
    for row in reversed(
        range(len(lines))
    ):  # A request's continuation is made before it, and lends it blocks.
        line = lines[row]
        output_tokens = line.output_tokens or (1 if line.endpoint == EMBEDDINGS else usual_tokens)
        blocks = line.prompt_tokens // ENGINE_BLOCK_TOKENS
        more = answer_blocks(line.prompt_tokens, output_tokens, ENGINE_BLOCK_TOKENS)
        if row in successor:
            later = requests[successor[row]]
            kept = later.tokens >= line.prompt_tokens + output_tokens
            lent = later.blocks[: (blocks + more if kept else blocks) * HASH_BYTES]
        else:
            lent = _engine_blocks(line, blocks, tokens_per_block[line.model])
        whole = lent + fresh.take(blocks + more - len(lent) // HASH_BYTES)
        requests[row] = SimRequest(
            blocks=whole[: blocks * HASH_BYTES],
            tokens=line.prompt_tokens,
            output_tokens=output_tokens,
            answer=whole[blocks * HASH_BYTES :],
        )
    return [requests[row] for row in range(len(lines))]


def _tokens_per_block(lines: Sequence[LoggedRequest]) -> dict[str, float]:
    """Mean tokens per gateway block of each model, as engines counted them; else the nominal number."""
    tokens: dict[str, float] = defaultdict(float)
    blocks: dict[str, float] = defaultdict(float)
    nominal: dict[str, float] = {}
    for line in lines:
        nominal[line.model] = float(line.block_tokens)
        if not line.estimated:
            tokens[line.model] += line.prompt_tokens
            blocks[line.model] += line.prompt_blocks
    return {model: tokens[model] / blocks[model] if blocks[model] else nominal[model] for model in nominal}


def _engine_blocks(line: LoggedRequest, blocks: int, tokens_per_block: float) -> bytes:
    """Packed hashes of a prompt's leading engine blocks, as far as gateway blocks cover them."""
    paths = np.frombuffer(line.blocks, dtype=np.uint64)
    numbers = np.arange(blocks, dtype=np.uint64)
    last_tokens = (numbers + np.uint64(1)) * np.uint64(ENGINE_BLOCK_TOKENS) - np.uint64(1)
    needs = (last_tokens / tokens_per_block).astype(np.intp)
    covered = int(np.searchsorted(needs, len(paths)))
    roots: Hashes = paths[needs[:covered]]
    return hashes_of(roots, numbers[:covered]).tobytes()


def _session(
    rows: Sequence[int],
    lines: Sequence[LoggedRequest],
    continued: Sequence[int | None],
    requests: Sequence[SimRequest],
) -> tuple[SimRequest, ...]:
    """The requests of a session, each with its pause behind the one that it continues."""
    index = {row: number for number, row in enumerate(rows)}
    made: list[SimRequest] = []
    for row in rows:
        other = continued[row]
        if other is None:
            made.append(requests[row])
            continue
        ended_unix_s = lines[other].arrived_unix_s + lines[other].duration_s
        delay_s = max(lines[row].arrived_unix_s - ended_unix_s, 0.0)
        made.append(replace(requests[row], delay_s=delay_s, after=(index[other],)))
    return tuple(made)
