"""Made-up results of a study, and small traces in the formats of the recorded ones."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

from loadtest.study.design import Cell
from loadtest.study.results import Row
from loadtest.study.traffic import AGENTIC_FILE, AZURE_FILE, CONVERSATION_FILE
from loadtest.unchanged.revision import Revision

CODE = Revision("decisions", "model")


def cell(label: str = "expected_cost", **changes: object) -> Cell:
    values: dict[str, object] = {"part": "main", "traffic": "conversation", "label": label, "policy": label}
    return Cell(**(values | changes))  # type: ignore[arg-type]


def row(label: str = "expected_cost", *, mean_s: float = 1.0, p90_s: float = 2.0, **changes: object) -> Row:
    """A result with all figures that tables show."""
    figures = {
        "ttft_mean_s": mean_s,
        "ttft_p50_s": mean_s / 2,
        "ttft_p90_s": p90_s,
        "ttft_p99_s": 2 * p90_s,
        "ttft_long_p90_s": 3 * p90_s,
        "ttft_short_p90_s": p90_s,
        "hit_ratio": 0.5,
        "hit_device_ratio": 0.4,
        "hit_host_ratio": 0.1,
        "hit_pool_ratio": 0.0,
        "ideal_hit_ratio": 0.8,
        "pooled_hit_ratio": 0.6,
        "share_of_pooled": 0.5 / 0.6,
        "floor_ttft_mean_s": 0.25,
        "utilisation_mean": 0.8,
        "imbalance": 1.1,
        "completed_share": 1.0,
        "input_tokens": 1_000_000,
        "makespan_s": 100.0 * mean_s,
        "ttft_first_bucket_p90_s": p90_s,
        "ttft_other_buckets_p90_s": 4 * p90_s,
        "ttft_longest_bucket_p90_s": 5 * p90_s,
        "decisions_digest": f"{label}/{mean_s}",
    }
    return Row(CODE, cell(label, **changes), figures)


def write_traces(folder: Path) -> Path:
    """A few requests of each recorded kind, under the names of the recorded files.

    Sessions of agents only where there is a ``zstd`` command.
    """
    conversation = [
        {
            "timestamp": 3000 * (number // 4),
            "input_length": 1024 * (1 + number % 3),
            "output_length": 20,
            "hash_ids": [0, 10 + number % 3, *([20] if number % 3 == 2 else [])][: 1 + number % 3]
            + list(range(100 * number + 50, 100 * number + 50 + 1 + number % 3)),
        }
        for number in range(24)
    ]
    lines = "".join(json.dumps(line) + "\n" for line in conversation)
    (folder / CONVERSATION_FILE).write_bytes(gzip.compress(lines.encode()))
    session = {
        "id": "s",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 640,
        "system_tokens": 640,
        "requests": [
            {
                "t": 20.0 * turn,
                "type": "s",
                "model": "m",
                "in": 2560 + 640 * turn,
                "out": 64,
                "hash_ids": list(range(40 + 10 * turn)),
                "api_time": 1.0,
            }
            for turn in range(4)
        ],
    }
    sessions = "".join(json.dumps(session | {"id": f"s{number}"}) + "\n" for number in range(3))
    if shutil.which("zstd"):
        packed = subprocess.run(["zstd", "-qc"], input=sessions.encode(), capture_output=True, check=True)
        (folder / AGENTIC_FILE).write_bytes(packed.stdout)
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:{second:02d}.0000000,{500 + 10 * second},20\n" for second in range(30)
    )
    (folder / AZURE_FILE).write_bytes(gzip.compress(azure.encode()))
    return folder
