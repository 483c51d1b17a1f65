"""Mooncake traces as a workload (Qin et al., "Mooncake", FAST 2025; format: `loadtest.traces`).

An id stands for 512 tokens and becomes eight engine blocks; of a partial last block, those that are full.
The traces know no sessions and no ids of generated tokens, so every request is a session of its own, and
its answer is blocks that never come again. A follow-up turn repeats the full 512-token blocks of the prompt
before it and nothing behind them, as the publishers count it.
"""

from math import inf
from pathlib import Path

import numpy as np

from loadtest.simulator.identity import FreshBlocks, Hashes, answer_blocks, hashes_of, scope_root
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.traces import TRACE_BLOCK_TOKENS, TraceRequest, cut_window, read_trace, spread_arrivals

_ENGINE_BLOCKS = TRACE_BLOCK_TOKENS // ENGINE_BLOCK_TOKENS


def read_mooncake(path: Path, *, start_s: float = 0.0, end_s: float = inf, seed: int = 1) -> Workload:
    """Read a Mooncake trace; arrivals are spread inside their 3 s steps (`spread_arrivals`).

    Args:
        path: ``.jsonl``, also compressed as ``.gz`` or ``.zst``.
        start_s: Arrivals before it are left out.
        end_s: So are arrivals from it on.
        seed: Of the spreading.

    Raises:
        TraceError: The file cannot be read.
    """
    rows = spread_arrivals(cut_window(read_trace(path), start_s, end_s), seed)
    root, fresh = scope_root("mooncake"), FreshBlocks("mooncake")
    sessions = tuple(Session(row.arrival_s, (_request(row, root, fresh),)) for row in rows)
    return Workload(path.name, sessions, notes="arrivals spread inside 3 s steps")


def _request(row: TraceRequest, root: int, fresh: FreshBlocks) -> SimRequest:
    ids: Hashes = np.repeat(np.array(row.block_ids, dtype=np.uint64), _ENGINE_BLOCKS)
    parts = ids * np.uint64(_ENGINE_BLOCKS) + np.arange(len(ids), dtype=np.uint64) % np.uint64(_ENGINE_BLOCKS)
    return SimRequest(
        blocks=hashes_of(root, parts[: row.input_tokens // ENGINE_BLOCK_TOKENS]).tobytes(),
        tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        answer=fresh.take(answer_blocks(row.input_tokens, row.output_tokens, ENGINE_BLOCK_TOKENS)),
    )
