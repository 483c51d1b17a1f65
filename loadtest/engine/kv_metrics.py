"""``/metrics`` of the KV cache below and beside the device: pools, tiers and hand-over.

Names are those of SGLang's srt/observability/metrics_collector.py, of vLLM's v1/metrics/loggers.py and of its
NIXL connector (docs/features/nixl_connector_usage.md). Engines without a feature have no such lines.
"""

from collections.abc import Iterable

from loadtest.engine.handover import Counters as HandoverCounters
from loadtest.engine.histogram import by_label, sample
from loadtest.engine.scheduler import Scheduler

_STORAGE = "storage_MooncakeStore"


def sglang_lines(
    labels: str, scheduler: Scheduler, handover: HandoverCounters | None, *, cached: int, host: int, pool: int
) -> Iterable[str]:
    """SGLang's lines.

    Of the ``cached`` prompt tokens ``host`` came from host memory, ``pool`` of these from L3.
    """
    sources: dict[str, float] = {"device": cached - host, "host": host - pool, _STORAGE: pool}
    yield from by_label("sglang:cached_tokens_total", labels, "cache_source", sources)
    caches = [rank.cache for rank in scheduler.ranks]
    full = scheduler.used_tokens / sum(cache.capacity_tokens for cache in caches)
    yield from sample("sglang:full_token_usage", "gauge", labels, full)
    window_tokens = sum(cache.swa_capacity_tokens for cache in caches)
    window = sum(cache.swa_used_tokens for cache in caches) / window_tokens if window_tokens else 0.0
    if window_tokens:
        yield from sample("sglang:swa_token_usage", "gauge", labels, window)
    yield from sample("sglang:token_usage", "gauge", labels, max(full, window))
    yield from sample("sglang:evicted_tokens_total", "counter", labels, scheduler.evicted_tokens)
    yield from _hicache(labels, scheduler)
    if handover is not None:
        yield from sample("sglang:num_bootstrap_failed_reqs_total", "counter", labels, handover.unmet)
        yield from sample("sglang:num_transfer_failed_reqs_total", "counter", labels, handover.failed)


def _hicache(labels: str, scheduler: Scheduler) -> Iterable[str]:
    tiers = [rank.tiers for rank in scheduler.ranks if rank.tiers is not None]
    if not tiers:
        return
    used = sum(tier.host.full.held for tier in tiers)
    yield from sample("sglang:hicache_host_used_tokens", "gauge", labels, used)
    total = sum(tier.host.full.capacity for tier in tiers)
    yield from sample("sglang:hicache_host_total_tokens", "gauge", labels, total)
    loaded = sum(tier.counters.loaded_tokens for tier in tiers)
    yield from sample("sglang:load_back_tokens_total", "counter", labels, loaded)
    clients = [tier.client for tier in tiers if tier.client is not None]
    if not clients:
        return
    size = scheduler.ranks[0].cache.rules.block_tokens
    stored = f'{labels},storage_backend="mooncake"'
    prefetched = sum(tier.counters.prefetched_tokens for tier in tiers)
    yield from sample("sglang:prefetched_tokens_total", "counter", stored, prefetched)
    backed_up = sum(client.written_blocks for client in clients) * size
    yield from sample("sglang:backuped_tokens_total", "counter", stored, backed_up)
    for rank, tier in enumerate(tiers):
        ranked = f'{stored},dp_rank="{rank}"'
        yield from tier.counters.prefetch_gb_per_s.lines("sglang:prefetch_bandwidth", ranked)
        yield from tier.counters.prefetch_blocks.lines("sglang:prefetch_pgs", ranked)


def vllm_lines(
    labels: str,
    scheduler: Scheduler,
    handover: HandoverCounters | None,
    *,
    prompt: int,
    cached: int,
    host: int,
    pool: int,
) -> Iterable[str]:
    """Lines of vLLM, where tokens that came through a connector are external.

    ``cached`` excludes tokens received from another engine; of it ``host`` came from host memory, and
    ``pool`` of these from the shared pool.
    """
    local = cached - host
    received = 0 if handover is None else handover.received_tokens
    external = received + host
    yield from sample("vllm:prefix_cache_queries_total", "counter", labels, prompt)
    yield from sample("vllm:prefix_cache_hits_total", "counter", labels, local)
    connected = handover is not None or any(rank.tiers is not None for rank in scheduler.ranks)
    yield from sample(
        "vllm:external_prefix_cache_queries_total", "counter", labels, prompt - local if connected else 0
    )
    yield from sample("vllm:external_prefix_cache_hits_total", "counter", labels, external)
    sources: dict[str, float] = {
        "local_compute": prompt - local - external,
        "local_cache_hit": local,
        "external_kv_transfer": external,
    }
    yield from by_label("vllm:prompt_tokens_by_source_total", labels, "source", sources)
    tiers: dict[str, float] = {
        "device": local,
        "host": host - pool,
        "p2p": received,
        "disk": pool,
        "external_unspecified": 0,
    }
    yield from by_label("vllm:prompt_tokens_cached_by_source_total", labels, "source", tiers)
    if handover is not None:
        yield from handover.transfer_s.lines("vllm:nixl_xfer_time_seconds", labels)
        yield from handover.transfer_bytes.lines("vllm:nixl_bytes_transferred", labels)
        yield from sample("vllm:nixl_num_failed_transfers_total", "counter", labels, handover.failed)
        yield from sample("vllm:nixl_num_kv_expired_reqs_total", "counter", labels, handover.expired)
