"""An engine from its profile: the KV stacks of all ranks behind one scheduler."""

from collections.abc import Sequence
from dataclasses import replace

from loadtest.engine.kv.l3 import BlockSizes, L3Pool, L3Settings, build_pool
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.stack import block_sizes, build_stack
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.scheduler import Clock, Observer, Scheduler
from loadtest.engine.settings import Dialect


def build_worker(
    profile: EngineProfile,
    clock: Clock,
    *,
    observer: Observer,
    listeners: Sequence[KvListener] = (),
    pool: L3Pool | None = None,
    dialect: Dialect | None = None,
    emit_s: float = 0.0,
    decodes: bool = False,
) -> Scheduler:
    """Build an engine, on the event loop's clock or a virtual one.

    ``listeners`` hear the KV events, one for each rank or none. A ``pool`` that engines share is read into
    the profile's host tier, or one of the usual size; an engine that only ``decodes`` writes to it and reads
    nothing. Without a ``dialect`` the profile's rules say it. Stream tokens due within ``emit_s`` are sent
    together.

    Raises:
        ValueError: The model or the dialect has no lower tiers, and the profile or the pool asks for them.
    """
    rules = cache_rules(profile, dialect)
    sizes = _sizes(profile, rules)
    host_tier = profile.host_tier or (HiCacheSettings() if pool is not None else None)
    heard_by: Sequence[KvListener | None] = listeners or [None] * profile.dp_ranks
    stacks = [
        build_stack(
            rules,
            sizes=sizes,
            settings=host_tier,
            client=_client(profile, pool, seed) if pool is not None else None,
            listener=listener,
            decodes=decodes,
        )
        for seed, listener in enumerate(heard_by)
    ]
    return Scheduler(
        profile,
        stacks,
        clock,
        observer,
        insert_early=rules.insert_early,
        release_tokens=rules.decode_release_tokens if rules.window_tokens else 0,
        emit_s=emit_s,
    )


def cache_rules(profile: EngineProfile, dialect: Dialect | None = None) -> CacheRules:
    """Return the rules of one rank's device cache in a dialect; None for that of the profile's rules."""
    dialect = dialect or profile.rules.match_rule
    return replace(
        profile.rules,
        chunk_tokens=profile.chunk_tokens // profile.dp_ranks,
        match_rule=dialect,
        insert_early=dialect == "vllm" and profile.chunk_tokens > 0,
    )


def build_shared_pool(profile: EngineProfile, settings: L3Settings) -> L3Pool:
    """A pool for engines of one profile."""
    return build_pool(settings, _sizes(profile, cache_rules(profile)))


def _sizes(profile: EngineProfile, rules: CacheRules) -> BlockSizes:
    shape = profile.shape
    return block_sizes(rules, shape.token_bytes, shape.window_token_bytes, shape.state_bytes)


def _client(profile: EngineProfile, pool: L3Pool, seed: int) -> L3Client:
    """One rank's access; ranks share the network of the engine."""
    return L3Client(
        pool,
        tensor_parallel=profile.tensor_parallel,
        replicated=profile.replicated_kv,
        read_bytes_per_s=profile.pool_bytes_per_s / profile.dp_ranks,
        seed=seed,
    )
