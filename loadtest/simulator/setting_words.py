"""The settings of a simulation in words, for the report."""

from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.parallelism import AS_PROFILE
from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.memory import device_tokens
from loadtest.simulator.queueing import QueueRules
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.words import bucket_shares, percent, seconds
from loadtest.simulator.workload import Workload

_INTERLEAVE = {
    "mixed": "decode goes on inside prefill steps",
    "prefill_first": "decode stands still during prefill steps",
    "apart": "decode and prefill do not disturb each other",
}

_ORDER = {
    "fcfs": "first come, first served",
    "lpm": "longest cached prefix first",
    "uncached": "least uncached prefill first",
}


def settings_in_words(config: SimulationConfig, workload: Workload) -> dict[str, str]:
    """Return everything that the figures depend on, but the policies, by a short name."""
    return {
        "workload": f"{workload.request_count:,} requests, {workload.prompt_tokens:,} prompt and "
        f"{workload.output_tokens:,} output tokens. {workload.notes}",
        "arrivals": _arrivals(config, workload),
        "engine": _engine(config),
        "GPUs": gpus_in_words(config.engine),
        "fleet": _fleet(config),
        "host memory": _host(config.host, config.engine.dp_ranks),
        "shared pool": _pool(config.l3),
        "gateway": _gateway(config),
        "queue": _queue(config.queue),
        "figures": f"requests that come after {seconds(config.warmup_s)}"
        if config.warmup_s
        else "all requests; caches begin empty",
        "seed": f"{config.seed}",
    }


def gpus_in_words(engine: EngineProfile) -> str:
    """Return the GPUs of a worker, and how the model is divided over them if that was chosen."""
    told = f"{engine.gpus} GPU{'s' * (engine.gpus != 1)} for each worker"
    return told if engine.parallelism == AS_PROFILE else f"{told}: {engine.parallelism}"


def _arrivals(config: SimulationConfig, workload: Workload) -> str:
    told = (
        f"closed loop: {workload.users} users, who wait for their answers"
        if workload.users
        else "open loop, at the recorded times"
    )
    if config.speed != 1.0:
        told += f", {config.speed:g} times as fast"
    if config.utilisation is not None:
        told += (
            "; prefill is slowed down or sped up until the least possible work keeps the workers busy for "
            f"{percent(config.utilisation)} of the time"
        )
    return told


def _engine(config: SimulationConfig) -> str:
    engine = config.engine
    chunks = f"chunks of {engine.chunk_tokens:,}" if engine.chunk_tokens else "whole prompts in one step"
    told = (
        f"{engine.name}: {device_tokens(engine):,} tokens of KV cache in blocks of "
        f"{engine.rules.block_tokens}, by {engine.rules.match_rule}'s rules; prefill "
        f"{1 / engine.prefill.b_s:,.0f} tokens/s at an empty context, {chunks}; at most "
        f"{engine.max_running} requests running, {_ORDER[engine.queue_order]}; "
        f"{_INTERLEAVE[engine.interleave]}"
    )
    if engine.dp_ranks > 1:
        chooser = "the gateway" if config.dp_aware else "the engine"
        told += f"; {engine.dp_ranks} data-parallel ranks, which {chooser} chooses"
    return told


def _fleet(config: SimulationConfig) -> str:
    if config.groups:
        return "; ".join(str(group) for group in config.groups)
    told = f"{config.workers} worker{'s' * (config.workers != 1)}"
    if config.decode_workers:
        told += f" for prefill, {config.decode_workers} for decode, chosen by {config.decode_policy}"
    if config.bucket_workers:
        told += f"; by length of requests: {bucket_shares(config.bucket_workers)}"
    else:
        told += "; all take any length"
    return told


def _host(host: HiCacheSettings | None, ranks: int) -> str:
    if host is None:
        return "none"
    size = (
        f"{host.host_tokens * ranks:,} tokens of a worker"
        if host.host_tokens
        else f"{host.host_ratio:g} times the device's"
    )
    return (
        f"{size}, written by {_plain(host.write_policy)}, fetched from the pool by "
        f"{_plain(host.prefetch_policy)}"
    )


def _pool(pool: L3Settings | None) -> str:
    if pool is None:
        return "none"
    told = f"{pool.nodes} nodes of {pool.memory_tokens:,} tokens in memory"
    if pool.disk_tokens:
        told += f" and {pool.disk_tokens:,} on disk"
    told += f", {pool.node_bytes_per_s / 1e9:g} GB/s each"
    if pool.ttl_s is not None:
        told += f"; blocks live for {seconds(pool.ttl_s)} after their last use"
    return told


def _gateway(config: SimulationConfig) -> str:
    told = f"{config.replicas} replica{'s' * (config.replicas != 1)}"
    if config.replicas > 1:
        told += (
            f", which hear of each other after {seconds(config.log_delay_s)} and speak every "
            f"{seconds(config.flush_interval_s)}"
        )
    return (
        f"{told}; blocks of {config.block_tokens} tokens; answers are expected to have "
        f"{config.expected_output_tokens} tokens"
    )


def _queue(queue: QueueRules | None) -> str:
    if queue is None:
        return "none in the gateway: requests go to their workers at once"
    told = (
        f"requests wait in the gateway, in the order of arrival plus {queue.k:g} times predicted prefill"
        if queue.k
        else "requests wait in the gateway, first come, first served"
    )
    if queue.level.promises:
        told += "; those predicted to wait too long for their first token are rejected"
    return told


def _plain(word: str) -> str:
    return word.replace("_", " ")
