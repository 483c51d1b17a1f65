"""Azure's LLM inference traces as a workload: real arrivals and lengths, no prefixes.

CSV with the columns ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens`` (Patel et al., "Splitwise", ISCA
2024; github.com/Azure/AzurePublicDataset). Prompts share nothing but the leading ``shared_tokens`` that the
reader adds: affinity cannot win, only queueing counts.
"""

from datetime import UTC, datetime
from math import inf
from pathlib import Path

import numpy as np

from loadtest.simulator.identity import HASH_BYTES, FreshBlocks, answer_blocks, hashes_of, scope_root
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload
from loadtest.traces import TraceError, opened_trace

AZURE_COLUMNS = b"TIMESTAMP,ContextTokens,GeneratedTokens"


def read_azure(path: Path, *, start_s: float = 0.0, end_s: float = inf, shared_tokens: int = 0) -> Workload:
    """Read arrivals from ``start_s`` to ``end_s``, from the first row of a ``.csv`` (``.gz``, ``.zst``).

    Every prompt begins with the same ``shared_tokens``, or is all of them if it is shorter. May raise
    `TraceError`.
    """
    shared_ids = np.arange(shared_tokens // ENGINE_BLOCK_TOKENS, dtype=np.uint64)
    shared = hashes_of(scope_root("azure", "shared"), shared_ids).tobytes()
    fresh = FreshBlocks("azure")
    rows = [row for row in _rows(path) if start_s <= row[0] < end_s]
    rows.sort(key=lambda row: row[0])
    sessions: list[Session] = []
    for at_s, tokens, output_tokens in rows:
        blocks = tokens // ENGINE_BLOCK_TOKENS
        head = shared[: blocks * HASH_BYTES]
        request = SimRequest(
            blocks=head + fresh.take(blocks - len(head) // HASH_BYTES),
            tokens=tokens,
            output_tokens=output_tokens,
            answer=fresh.take(answer_blocks(tokens, output_tokens, ENGINE_BLOCK_TOKENS)),
        )
        sessions.append(Session(at_s - start_s, (request,)))
    notes = f"lengths and arrivals only; {shared_tokens} leading tokens shared by all prompts"
    return Workload(path.name, tuple(sessions), notes=notes)


def _rows(path: Path) -> list[tuple[float, int, int]]:
    """Arrival in seconds since the first row, prompt tokens, output tokens."""
    rows: list[tuple[float, int, int]] = []
    first: datetime | None = None
    with opened_trace(path) as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                if line.strip() != AZURE_COLUMNS:
                    raise TraceError(f"{path}, line 1: expected the header {AZURE_COLUMNS.decode()}")
                continue
            if not line.strip():
                continue
            try:
                timestamp, prompt, output = line.decode().strip().split(",")
                at, tokens, output_tokens = datetime.fromisoformat(timestamp), int(prompt), int(output)
            except ValueError as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; expected a timestamp and two whole numbers"
                ) from error
            if tokens < 1 or output_tokens < 0:
                raise TraceError(
                    f"{path}, line {number}: {tokens} prompt and {output_tokens} generated tokens"
                )
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            first = first or at
            rows.append(((at - first).total_seconds(), tokens, max(output_tokens, 1)))
    return rows
