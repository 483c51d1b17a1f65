"""Replay a Mooncake trace in Dynamo's offline simulator and print the reuse.

`loadtest.study.cross_check` starts it with the Python of an environment that holds ``ai-dynamo``, so it
imports nothing of ours. A JSON object with the options comes in on standard input; a JSON line goes out for
each repetition of each router. Repetitions differ, since Dynamo chooses between equally priced workers at
random (docstring of ``dynamo.replay.run_synthetic_trace_replay``, 1.6.1).
"""

import importlib
import json
import os
import sys
from typing import Any

ROUTERS: dict[str, dict[str, float] | None] = {
    "round_robin": None,
    "kv_router": {},
    "kv_router, prefill_load_scale=4": {"prefill_load_scale": 4.0},
}
"""Options of ``KvRouterConfig`` by name of the row; None is Dynamo's round robin."""

LOG_LEVEL = "DYN_LOG"
"""Dynamo's name for the log level of its Rust side, which otherwise writes a line for each decision."""


def main() -> None:
    """Replay what standard input asks for."""
    asked: dict[str, Any] = json.load(sys.stdin)
    os.environ.setdefault(LOG_LEVEL, "error")
    replay = importlib.import_module("dynamo.replay")
    config = importlib.import_module("dynamo.llm").KvRouterConfig
    for name, options in ROUTERS.items():
        for _ in range(1 if options is None else asked["repetitions"]):
            summary = replay.run_trace_replay(
                asked["trace"],
                num_workers=asked["workers"],
                router_mode="round_robin" if options is None else "kv_router",
                router_config=None if options is None else config(**options),
                arrival_speedup_ratio=asked["speed"],
                trace_block_size=asked["trace_block_tokens"],
                extra_engine_args={
                    "engine": {"num_gpu_blocks": asked["worker_blocks"], "block_size": asked["block_tokens"]}
                },
            ).summary
            figures = {
                "router": name,
                "reuse_ratio": summary["prefix_cache_reused_ratio"],
                "ttft_mean_s": summary["mean_ttft_ms"] / 1e3,
                "ttft_p90_s": summary["p90_ttft_ms"] / 1e3,
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
