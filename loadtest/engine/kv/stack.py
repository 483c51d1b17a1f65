"""Builds the KV stack of one rank.

KvCache ── Device (L1) ── HiCache ── HostMemory (L2) ── L3Client ── L3Pool, shared by many
"""

from dataclasses import dataclass

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.l3 import BlockSizes
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tiers import HiCache, HiCacheSettings
from loadtest.engine.kv.tree import RadixTree


@dataclass(frozen=True, slots=True)
class KvStack:
    """One rank's cache, and its lower tiers if it has any."""

    cache: KvCache
    tiers: HiCache | None


def block_sizes(rules: CacheRules, token_bytes: int, window_token_bytes: int = 0) -> BlockSizes:
    """Bytes of the blocks of a model; token bytes are of all layers of a kind."""
    window_bytes = window_token_bytes * rules.block_tokens if rules.window_blocks else 0
    return BlockSizes(rules.block_tokens, token_bytes * rules.block_tokens, window_bytes, rules.window_blocks)


def has_lower_tiers(rules: CacheRules) -> bool:
    """True if `HiCache` can hold such a cache: SGLang's pools, and no linear states."""
    return not rules.state_slots and not (rules.match_rule == "vllm" and rules.window_tokens)


def build_stack(
    rules: CacheRules,
    *,
    sizes: BlockSizes,
    settings: HiCacheSettings | None = None,
    client: L3Client | None = None,
    listener: KvListener | None = None,
) -> KvStack:
    """Build the KV stack of one rank; without ``settings`` of a host tier the device only.

    Raises:
        ValueError: Lower tiers for rules that have none, or a shared pool without a host tier.
    """
    if settings is None:
        if client is not None:
            raise ValueError("a shared pool is read into host memory: it needs a host tier")
        return KvStack(KvCache(rules, listener), None)
    if not has_lower_tiers(rules):
        raise ValueError(f"no host tier is modelled for {rules.attention} by the rule of {rules.match_rule}")
    tree = RadixTree()
    tiers = HiCache(rules, settings, tree, sizes, client=client, listener=listener)
    return KvStack(KvCache(rules, listener, tree=tree, tiers=tiers), tiers)
