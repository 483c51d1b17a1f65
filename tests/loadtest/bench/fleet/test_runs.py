"""One small run with everything real but the recording."""

import json
from pathlib import Path

from loadtest.bench.fleet.cells import CELLS, Router
from loadtest.bench.fleet.runs import Pace, run
from loadtest.bench.fleet.script import Traces
from loadtest.unchanged.revision import present


async def test_a_run_of_cacheway_from_start_to_outcome(tmp_path: Path) -> None:
    """24 agents, 60 sessions of 5 growing prompts: all are answered, and most of a prompt is reused."""
    path = tmp_path / "sessions.jsonl"
    with path.open("w") as file:
        for number in range(60):
            entries = [
                {"t": float(at), "in": 640 * (at + 1), "out": 8, "hash_ids": list(range(10 * (at + 1)))}
                for at in range(5)
            ]
            file.write(json.dumps({"id": f"s{number}", "requests": entries}) + "\n")

    outcome = await run(CELLS[0], Router.CACHEWAY, 0, Pace(seconds=20.0, speed=10.0), Traces(path, path))

    assert outcome.failed == 0
    assert outcome.requests > 50
    assert 0.3 < outcome.hit_ratio <= outcome.ideal_hit_ratio
    assert outcome.ttft_p50_s <= outcome.ttft_p90_s <= outcome.ttft_p99_s
    assert outcome.router_cpu_s > 0
    assert outcome.revision == present().decisions
