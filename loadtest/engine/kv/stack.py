"""Builds the KV stack of one rank.

KvCache ── Device (L1) ──┬─ HiCache ── HostMemory (L2) ──┬─ L3Client ── L3Pool, shared by many
                         └─ DecodeOffload, writes only ──┘
"""

from dataclasses import dataclass

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.l3 import BlockSizes
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.offload import DecodeOffload
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tiers import HiCache, HiCacheSettings
from loadtest.engine.kv.tree import RadixTree


@dataclass(frozen=True, slots=True)
class KvStack:
    """One rank's cache, and its lower tiers if it has any."""

    cache: KvCache
    tiers: HiCache | None


def block_sizes(
    rules: CacheRules, token_bytes: int, window_token_bytes: int = 0, state_bytes: int = 0
) -> BlockSizes:
    """Bytes of the blocks of a model, over all layers of a kind: per token, and of one state."""
    window_bytes = window_token_bytes * rules.block_tokens if rules.window_tokens else 0
    if rules.state_slots:
        window_bytes = state_bytes
    return BlockSizes(rules.block_tokens, token_bytes * rules.block_tokens, window_bytes, rules.window_blocks)


def has_lower_tiers(rules: CacheRules) -> bool:
    """True if `HiCache` can hold such a cache: all but vLLM's single pool for windows."""
    return not (rules.match_rule == "vllm" and rules.window_tokens)


def build_stack(
    rules: CacheRules,
    *,
    sizes: BlockSizes,
    settings: HiCacheSettings | None = None,
    client: L3Client | None = None,
    listener: KvListener | None = None,
    decodes: bool = False,
) -> KvStack:
    """Build the KV stack of one rank; without ``settings`` of a host tier the device only.

    One that only ``decodes`` writes to the pool from the device, and has no host tier.

    Raises:
        ValueError: Lower tiers for rules that have none, or a shared pool without a host tier.
    """
    if settings is None and client is None:
        return KvStack(KvCache(rules, listener), None)
    if not has_lower_tiers(rules):
        raise ValueError(f"no host tier is modelled for {rules.attention} by the rule of {rules.match_rule}")
    if decodes and client is not None:
        return KvStack(KvCache(rules, listener, tiers=DecodeOffload(rules, client)), None)
    if settings is None:
        raise ValueError("a shared pool is read into host memory: it needs a host tier")
    tree = RadixTree(states=rules.state_slots > 0)
    tiers = HiCache(rules, settings, tree, sizes, client=client, listener=listener)
    return KvStack(KvCache(rules, listener, tree=tree, tiers=tiers), tiers)
