"""Traces of all known formats.

Their first lines tell them apart, never their names:

    mooncake   {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14, 15]}
    agentic    {"id": "trace_0001", "block_size": 64, ..., "requests": [...]}
    azure      TIMESTAMP,ContextTokens,GeneratedTokens
    log        {"arrived_unix_s": 1795267200.5, ..., "prompt_blocks": 12.25, "blocks": "..."}
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path

import msgspec

from loadtest.simulator.agentic import GAP_S_MAX, USERS, read_agentic
from loadtest.simulator.azure import AZURE_COLUMNS, read_azure
from loadtest.simulator.gateway_log import read_gateway_log
from loadtest.simulator.mooncake import read_mooncake
from loadtest.simulator.workload import Workload
from loadtest.traces import TraceError, opened_trace


class TraceFormat(StrEnum):
    """Format of a trace."""

    AUTO = "auto"
    MOONCAKE = "mooncake"
    AGENTIC = "agentic"
    AZURE = "azure"
    LOG = "log"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Part of a trace to read; a format ignores fields that it does not know.

    Attributes:
        start_s: Arrivals before it are left out, like those from ``end_s`` on (formats with arrivals).
        requests_max: First requests only; None for all.
        users: Sessions at work at the same time (agentic).
        sessions: Number of sessions, None for all; see `read_agentic` (agentic).
        gap_s_max: Longest pause inside a session (agentic).
        prompt_tokens_max: Longer requests are left out (agentic).
        shared_tokens: Common start of every prompt (Azure).
    """

    start_s: float = 0.0
    end_s: float = inf
    requests_max: int | None = None
    users: int = USERS
    sessions: int | None = None
    gap_s_max: float = GAP_S_MAX
    prompt_tokens_max: int | None = None
    shared_tokens: int = 0
    seed: int = 1


ALL = ReadOptions()
"""The whole trace, in the usual way."""


def read_auto(
    path: Path, options: ReadOptions = ALL, trace_format: TraceFormat = TraceFormat.AUTO
) -> Workload:
    """Read a trace of a given or recognised format; `TraceError` if that fails or nothing is left of it."""
    if trace_format is TraceFormat.AUTO:
        trace_format = detect_format(path)
    workload = _READERS[trace_format](path, options)
    if options.requests_max is not None:
        workload = workload.cut(options.requests_max)
    if not workload.sessions:
        raise TraceError(f"{path} has no request between {options.start_s:g} and {options.end_s:g} s")
    return workload


def detect_format(path: Path) -> TraceFormat:
    """Recognise the format of a trace by its first line; `TraceError` if that fails."""
    with opened_trace(path) as lines:
        line = next((line.strip() for line in lines if line.strip()), b"")
    if line == AZURE_COLUMNS:
        return TraceFormat.AZURE
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError:
        row = None
    if isinstance(row, dict):
        for trace_format, keys in _KEYS.items():
            if keys <= row.keys():
                return trace_format
    raise TraceError(
        f"{path}: the first line is of no known format ({', '.join(_READERS)}); "
        f"it begins {line[:60].decode(errors='replace')!r}"
    )


_KEYS = {
    TraceFormat.MOONCAKE: {"timestamp", "input_length", "hash_ids"},
    TraceFormat.AGENTIC: {"block_size", "requests"},
    TraceFormat.LOG: {"arrived_unix_s", "prompt_blocks"},
}

_READERS: dict[TraceFormat, Callable[[Path, ReadOptions], Workload]] = {
    TraceFormat.MOONCAKE: lambda path, take: read_mooncake(
        path, start_s=take.start_s, end_s=take.end_s, seed=take.seed
    ),
    TraceFormat.AGENTIC: lambda path, take: read_agentic(
        path,
        users=take.users,
        sessions=take.sessions,
        gap_s_max=take.gap_s_max,
        prompt_tokens_max=take.prompt_tokens_max,
        seed=take.seed,
    ),
    TraceFormat.AZURE: lambda path, take: read_azure(
        path, start_s=take.start_s, end_s=take.end_s, shared_tokens=take.shared_tokens
    ),
    TraceFormat.LOG: lambda path, take: read_gateway_log(path, start_s=take.start_s, end_s=take.end_s),
}
