"""Mooncake traces as a workload (Qin et al., "Mooncake", FAST 2025; format: `loadtest.traces`).

An id stands for 512 tokens and becomes eight engine blocks; of a partial last block, the full ones. The
traces know no sessions and no generated tokens: every request is a session of its own, and its answer never
comes again. A follow-up turn repeats the full 512-token blocks of the prompt before it, as the publishers
count it.
"""

from math import inf
from pathlib import Path

import numpy as np

from loadtest.simulator.identity import FreshBlocks, Hashes, answer_blocks, hashes_of, scope_root
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.traces import TRACE_BLOCK_TOKENS, TraceRequest, cut_window, read_trace, spread_arrivals

_ENGINE_BLOCKS = TRACE_BLOCK_TOKENS // ENGINE_BLOCK_TOKENS


def read_mooncake(path: Path, *, start_s: float = 0.0, end_s: float = inf, seed: int = 1) -> Workload:
    """Read arrivals from ``start_s`` to ``end_s`` of a ``.jsonl`` (``.gz``, ``.zst``) file.

    A seed spreads them inside their 3 s steps (`spread_arrivals`). May raise `TraceError`.
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
