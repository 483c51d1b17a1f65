"""Reports of an engine about itself: models, versions, sizes, load."""

from collections.abc import Mapping
from typing import Any

from loadtest.engine.handover import Handover
from loadtest.engine.kv_feed import KvFeed
from loadtest.engine.metrics import Counters
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.settings import EngineSettings

SGLANG_VERSION = "0.5.23"
VLLM_VERSION = "0.32.0"


def models(
    settings: EngineSettings, created_unix_s: int, adapters: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """``/v1/models``: every served name, then the adapters; ``adapters`` has the paths of loaded ones."""
    owner = settings.dialect

    def model(name: str, parent: str | None, path: str = "") -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created_unix_s,
            "owned_by": owner,
            "root": path or name,
            "parent": parent,
            "max_model_len": None if path else settings.max_model_len,
        }

    base = settings.models[0]
    data = [model(name, None) for name in settings.models]
    data += [model(name, base) for name in settings.loras]
    data += [model(name, base, path) for name, path in (adapters or {}).items()]
    return {"object": "list", "data": data}


def model_info(settings: EngineSettings) -> dict[str, Any]:
    """SGLang's ``/get_model_info``."""
    name = settings.models[0]
    return {
        "model_path": name,
        "tokenizer_path": name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
    }


def server_info(
    settings: EngineSettings, scheduler: Scheduler, handover: Handover | None, feed: KvFeed | None, role: str
) -> dict[str, Any]:
    """SGLang's ``/get_server_info`` and ``/server_info``: arguments and sizes.

    ``max_total_num_tokens`` is the cache of the first data-parallel rank, and each rank has an internal state
    (srt/entrypoints/http_server.py, engine.py). ``role`` is the present one, and only the internal states
    say it: the arguments are those of the start.
    """
    rank_tokens = settings.cache_tokens // settings.dp_ranks
    return {
        "model_path": settings.models[0],
        "served_model_name": settings.models[0],
        "host": settings.host,
        "context_length": settings.max_model_len,
        "page_size": settings.block_tokens,
        "chunked_prefill_size": settings.chunk_tokens or -1,
        "max_running_requests": settings.max_running,
        "max_total_num_tokens": rank_tokens,
        "disaggregation_mode": "null" if settings.handover is None else settings.handover.part,
        "disaggregation_bootstrap_port": 8998 if handover is None else handover.port,
        "dp_size": settings.dp_ranks,
        "tp_size": 1,
        "enable_cache_report": settings.cache_report,
        "internal_states": [
            {
                "disaggregation_mode": role,
                "effective_max_running_requests_per_dp": settings.max_running // settings.dp_ranks,
                "memory_usage": {"token_capacity": rank_tokens},
                "num_running_reqs": rank.running,
                "num_queue_reqs": len(rank.waiting),
                "num_used_tokens": rank.cache.used_tokens,
            }
            for rank in scheduler.ranks
        ],
        "version": SGLANG_VERSION,
        **_hicache(settings),
        "kv_events": None if feed is None else feed.sglang_source(settings.block_tokens),
    }


def _hicache(settings: EngineSettings) -> dict[str, Any]:
    """HiCache's arguments (srt/arg_groups/fields/memory.py); they are there without it, too."""
    ratio = settings.host_tokens / settings.cache_tokens
    return {
        "enable_hierarchical_cache": settings.host_tokens > 0,
        "hicache_host_memory_mode": "cache",
        "hicache_ratio": ratio or None,
        "hicache_size": 0,
        "hicache_write_policy": settings.write_policy,
        "hicache_storage_backend": "mooncake" if settings.pool_tokens else None,
        "hicache_storage_prefetch_policy": settings.prefetch_policy,
    }


def loads(scheduler: Scheduler) -> list[dict[str, int]]:
    """SGLang's ``/get_load``: one entry per data-parallel rank."""
    return [
        {
            "dp_rank": rank.number,
            "num_reqs": rank.running + len(rank.waiting),
            "num_waiting_reqs": len(rank.waiting),
            "num_tokens": rank.cache.used_tokens,
        }
        for rank in scheduler.ranks
    ]


def stats(
    settings: EngineSettings, counters: Counters, scheduler: Scheduler, handover: Handover | None
) -> Mapping[str, Any]:
    """``/_stats``: figures for tests and reports, over the engine's whole life."""
    return {
        "requests": counters.requests,
        "finished": counters.finished,
        "aborted": counters.finished.get("abort", 0),
        "aborted_ids": list(counters.aborted_ids),
        "prompt_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens,
        "generated_tokens": counters.generated_tokens,
        "running": scheduler.running,
        "waiting": scheduler.waiting,
        "held": scheduler.held,
        "handover": {} if handover is None else handover.state(),
        "running_max": scheduler.running_max,
        "prefill_busy_s": scheduler.busy_s,
        "cache": {
            "capacity_tokens": settings.cache_tokens,
            "block_tokens": settings.block_tokens,
            "held_tokens": scheduler.held_tokens,
            "held_blocks": scheduler.held_tokens // settings.block_tokens,
            "used_tokens": scheduler.used_tokens,
            "evicted_tokens": scheduler.evicted_tokens,
        },
    }
