"""aiperf, NVIDIA's load client, with a trace in Mooncake's format.

Its TTFT goes from before the connection to the first event with content; neither the role alone nor a token
without text counts (``aiperf/metrics/types/ttft_metric.py``). Its totals of ``usage`` are the server's. Its
workers load a tokenizer only by a name in the cache of a model hub
(``aiperf/dataset/generator/parallel_decode.py``), so the folder is shown to it as such a cache.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.clients.client import OFFLINE, Install, Load, Report
from loadtest.bench.clients.documents import Document

FOLDER = "aiperf"
REPORT = "profile_export_aiperf.json"
TRACE = "mooncake.jsonl"

VERSION = "0.13.0"

CACHED_AS = "local/tokenizer"
VERSION_CACHED = "0" * 40

BLOCK_TOKENS = 512

SESSIONS = 3
"""Conversations that take turns: each request repeats the blocks of the one before, and adds one."""

SESSION_BLOCKS = 4
"""Then a conversation restarts."""


class Aiperf:
    """The client."""

    name = "aiperf"
    install = Install(FOLDER, "aiperf", steps=((f"aiperf=={VERSION}",),))
    variables: Mapping[str, str] = OFFLINE

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """The trace at its own times."""
        trace = folder / TRACE
        trace.write_text("".join(f"{json.dumps(row)}\n" for row in trace_rows(load)))
        hub = folder / "hub"
        _cache(load.tokenizer, hub)
        return [
            *("/usr/bin/env", f"HF_HUB_CACHE={hub}"),
            *(str(program), "profile", "--url", load.url, "--endpoint-type", "chat", "--streaming"),
            *("--model", load.model, "--tokenizer", CACHED_AS),
            *("--input-file", str(trace), "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"),
            *("--extra-inputs", "ignore_eos:true", "--random-seed", str(load.seed)),
            *("--workers-max", "1", "--ui", "none", "--artifact-dir", str(folder / FOLDER)),
        ]

    def read(self, folder: Path) -> Report:
        """Read the exported profile."""
        document = Document(folder / FOLDER / REPORT)
        completed = document.count("completed_request_count", "avg")
        ttft = "time_to_first_token"
        failed = round(document.count("request_count", "avg")) - completed
        return Report(
            completed=completed,
            failed=max(failed, 0),
            ttft_s=document.seconds(ttft, "avg", unit_s=1e-3),
            ttft_p50_s=document.seconds(ttft, "p50", unit_s=1e-3),
            ttft_p90_s=document.seconds(ttft, "p90", unit_s=1e-3),
            prompt_tokens=document.count("total_usage_prompt_tokens", "avg"),
            cached_tokens=document.count("total_usage_prompt_cache_read_tokens", "avg"),
            output_tokens=document.count("total_usage_completion_tokens", "avg"),
        )


def _cache(tokenizer: Path, hub: Path) -> None:
    """Lay a tokenizer out as in the cache of a model hub: names, versions, and the files of each."""
    cached = hub / f"models--{CACHED_AS.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True, exist_ok=True)
    (cached / "refs" / "main").write_text(VERSION_CACHED)
    files = cached / "snapshots" / VERSION_CACHED
    files.parent.mkdir(exist_ok=True)
    if not files.is_symlink():
        files.symlink_to(tokenizer.absolute(), target_is_directory=True)


def trace_rows(load: Load) -> list[dict[str, object]]:
    """Return a trace of conversations that grow by a block each turn.

    A hash id always has the same length, so the tail of each prompt, shorter than a block, has an id of its
    own.
    """
    rows: list[dict[str, object]] = []
    for number in range(load.requests):
        session, turn = number % SESSIONS, number // SESSIONS
        conversation = session + SESSIONS * (turn // SESSION_BLOCKS)
        blocks = 1 + turn % SESSION_BLOCKS
        tail_tokens = max(load.prompt_tokens % BLOCK_TOKENS, 1)
        rows.append(
            {
                "timestamp": round(1000 * number / load.rate_per_s),
                "input_length": blocks * BLOCK_TOKENS + tail_tokens,
                "output_length": load.output_tokens,
                "hash_ids": [
                    *(1000 * conversation + block for block in range(1, blocks + 1)),
                    1_000_000 + number,
                ],
            }
        )
    return rows
