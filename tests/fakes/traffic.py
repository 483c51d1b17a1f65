"""A small trace in the Mooncake format: conversations that grow, so that caches have something to hold."""

import json
import random
from pathlib import Path


def write_trace(path: Path, *, requests: int = 120, seed: int = 1) -> Path:
    """Write a trace of two minutes and a few conversations at a time."""
    rng = random.Random(seed)
    conversations: list[list[int]] = []
    rows, fresh = [], 1
    for number in range(requests):
        if not conversations or rng.random() < 0.2:
            conversations.append([0])
        blocks = rng.choice(conversations[-8:])
        more = rng.randint(1, 20)
        blocks.extend(range(fresh, fresh + more))
        fresh += more
        rows.append(
            {
                "timestamp": number * 120_000 // requests,
                "input_length": 512 * len(blocks) - rng.randint(0, 400),
                "output_length": rng.randint(5, 100),
                "hash_ids": list(blocks),
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
