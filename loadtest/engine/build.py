"""An engine from its profile: caches of all ranks, with or without lower tiers, behind one scheduler."""

from dataclasses import replace

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
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


def build_worker(
    profile: EngineProfile,
    clock: Clock,
    *,
    observer: Observer,
    listener: KvListener | None = None,
    dialect: Dialect = "sglang",
    emit_s: float = 0.0,
) -> Scheduler:
    """Build an engine.

    Args:
        profile: What it is.
        clock: The event loop, or a virtual clock.
        observer: Told about every job that leaves.
        listener: Hears the KV events of all ranks.
        dialect: Whose cache rules to follow.
        emit_s: Tokens of streams that come due within this time are told together.
    """
    rules = cache_rules(profile, dialect)
    caches = [KvCache(rules, listener) for _ in range(profile.dp_ranks)]
    return Scheduler(
        profile,
        caches,
        clock,
        observer,
        insert_early=rules.insert_early,
        release_tokens=rules.decode_release_tokens if rules.window_tokens else 0,
        emit_s=emit_s,
    )
