"""An engine from its profile: caches of all ranks, with or without lower tiers, behind one scheduler."""

from dataclasses import replace

from loadtest.engine.kv.l3 import BlockSizes, L3Pool
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.stack import block_sizes, build_stack
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.scheduler import Clock, Observer, Scheduler
from loadtest.engine.settings import Dialect


def cache_rules(profile: EngineProfile, dialect: Dialect) -> CacheRules:
    """The KV cache of one rank of an engine.

    Args:
        profile: The engine.
        dialect: Whose rules of matching and eviction apply.
    """
    return replace(
        profile.rules,
        chunk_tokens=profile.chunk_tokens // profile.dp_ranks,
        match_rule=dialect,
        insert_early=dialect == "vllm" and profile.chunk_tokens > 0,
    )


def kv_sizes(profile: EngineProfile) -> BlockSizes:
    """What the blocks of an engine weigh, for its host memory and for a pool that it shares."""
    shape = profile.shape
    return block_sizes(profile.rules, shape.token_bytes, shape.window_token_bytes)


def build_worker(
    profile: EngineProfile,
    clock: Clock,
    *,
    observer: Observer,
    listener: KvListener | None = None,
    dialect: Dialect = "sglang",
    emit_s: float = 0.0,
    host: HiCacheSettings | None = None,
    pool: L3Pool | None = None,
) -> Scheduler:
    """Build an engine.

    Args:
        profile: What it is.
        clock: The event loop, or a virtual clock.
        observer: Told about every job that leaves.
        listener: Hears the KV events of all ranks.
        dialect: Whose cache rules to follow.
        emit_s: Tokens of streams that come due within this time are told together.
        host: Host memory below the device of each rank; None for none.
        pool: A cache shared with other workers, of `kv_sizes`; needs host memory, where it is read into.

    Raises:
        ValueError: Lower tiers for an engine that has none (`loadtest.engine.kv.stack`).
    """
    rules, sizes = cache_rules(profile, dialect), kv_sizes(profile)
    caches = [
        build_stack(
            rules,
            sizes=sizes,
            settings=host,
            client=L3Client(pool, seed=rank) if pool is not None else None,
            listener=listener,
        ).cache
        for rank in range(profile.dp_ranks)
    ]
    return Scheduler(
        profile,
        caches,
        clock,
        observer,
        insert_early=rules.insert_early,
        release_tokens=rules.decode_release_tokens if rules.window_tokens else 0,
        emit_s=emit_s,
    )
