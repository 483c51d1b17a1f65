"""The same trace, cache capacity and load in Dynamo's offline replay: reuse by its router.

Dynamo (``ai-dynamo`` 1.6.1) drives its production router with a simulator of engines: the one cross-check of
our simulator that others wrote. Its dependencies contradict ours, so it has an environment of its own:

    python3.11 -m venv DIR
    DIR/bin/pip install --no-deps ai-dynamo==1.6.1
    DIR/bin/pip install ai-dynamo-runtime==1.6.1 aiohttp msgspec prometheus-client pyzmq zstandard
    DIR/bin/pip install tqdm transformers "kubernetes<33" redis
    python -m loadtest.study --dynamo-python DIR/bin/python

Its engine (defaults as ``_normalize_mocker_config`` prints them; timing from
``lib/mocker/src/common/perf_model.rs``, ``PerfModel::Polynomial``), which `ENGINE` is in our terms:

* full attention and vLLM's scheduler: 8,192 batched tokens a step, 256 sequences, prefill mixed with decode;
* 16,384 blocks of 64 tokens for running and cached sequences together, least recently used first;
* a step of n new tokens takes ``16.5 + 0.01518·n + 4.21e-7·n²`` ms, for any context before them;
* a decode step takes ``5.74 + 54.01·f - 25.74·f²`` ms at a share f of the KV blocks in use.

Dynamo's router sees at once every block that is stored or removed; ours only learns with the answer how much
of a prompt was cached.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.engine.timing import DecodeTiming, PrefillTiming

WORKERS = 8
WORKER_BLOCKS = 16_384
BLOCK_TOKENS = 64
TRACE_BLOCK_TOKENS = 512
SPEED = 3.0
_CHUNK_TOKENS = 8_192
_WORKER_TOKENS = WORKER_BLOCKS * BLOCK_TOKENS
_KV_SHARE = 0.25
"""Share of KV blocks in use with Dynamo's decode step.

`ENGINE` is off by less than a millisecond below it.
"""

ENGINE = EngineProfile(
    name="dynamo-mocker",
    shape=PROFILES["dense-70b"].shape,
    prefill=PrefillTiming(a_s=1e-6, b_s=0.01518e-3 + 4.21e-10 * _CHUNK_TOKENS, c0_tokens=1e9, step_s=0.0165),
    decode=DecodeTiming(base_s=0.00574, kv_token_s=(54.01e-3 - 25.74e-3 * _KV_SHARE) / _WORKER_TOKENS),
    rules=CacheRules(full_tokens=_WORKER_TOKENS, block_tokens=BLOCK_TOKENS),
    chunk_tokens=_CHUNK_TOKENS,
    max_running=256,
    host=PROFILES["dense-70b"].host,
    handover=PROFILES["dense-70b"].handover,
)
"""Dynamo's mock engine. A full step takes as long as there, 169 ms, shorter ones up to 7 ms more.

The square is taken as linear. The prices per prompt and of context, which it lacks, are tiny.
"""

REPLAY_S_MAX = 300.0
"""Longest replay of all rows; seen: 20 s."""

SCRIPT = Path(__file__).with_name("dynamo_replay.py")


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one of its routers, mean of the repetitions; times in its engine's seconds.

    Attributes:
        router: Its name and options.
        reuse_ratio: Prompt tokens not computed because they were cached, 0 to 1.
        reuse_least_ratio: In the worst repetition.
        reuse_most_ratio: In the best one.
    """

    router: str
    reuse_ratio: float
    reuse_least_ratio: float
    reuse_most_ratio: float
    ttft_mean_s: float
    ttft_p90_s: float


class DynamoFailed(Exception):
    """Its Python is there but the replay did not work; the message has its last line."""


def replay(python: Path, trace: Path, *, repetitions: int = 3) -> list[Row]:
    """Replay an uncompressed Mooncake trace with each of Dynamo's routers; one row per router.

    ``python`` is the interpreter of an environment that holds ``ai-dynamo``. Routers that break ties at
    random run ``repetitions`` >= 1 times. Raises `DynamoFailed`.
    """
    asked = {
        "trace": str(trace),
        "workers": WORKERS,
        "worker_blocks": WORKER_BLOCKS,
        "block_tokens": BLOCK_TOKENS,
        "trace_block_tokens": TRACE_BLOCK_TOKENS,
        "speed": SPEED,
        "repetitions": repetitions,
    }
    try:
        done = subprocess.run(  # noqa: S603  # the interpreter is the caller's own choice
            [str(python), str(SCRIPT)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=REPLAY_S_MAX,
            check=True,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return _means(rows)
    except OSError as exc:
        raise DynamoFailed(f"{python} cannot be run: {exc}") from exc
    except subprocess.TimeoutExpired as exc:
        raise DynamoFailed(f"no result after {REPLAY_S_MAX:.0f} s") from exc
    except subprocess.CalledProcessError as exc:
        last = (exc.stderr or "no message").strip().splitlines()[-1]
        raise DynamoFailed(f"exit status {exc.returncode}: {last}") from exc
    except (ValueError, KeyError) as exc:
        raise DynamoFailed(f"it printed something else than rows: {exc}") from exc


def _means(rows: list[Mapping[str, Any]]) -> list[Row]:
    by_router: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_router.setdefault(row["router"], []).append(row)
    return [
        Row(
            router=router,
            reuse_ratio=mean(row["reuse_ratio"] for row in group),
            reuse_least_ratio=min(row["reuse_ratio"] for row in group),
            reuse_most_ratio=max(row["reuse_ratio"] for row in group),
            ttft_mean_s=mean(row["ttft_mean_s"] for row in group),
            ttft_p90_s=mean(row["ttft_p90_s"] for row in group),
        )
        for router, group in by_router.items()
    ]
