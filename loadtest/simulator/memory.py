"""Memory below the device: sizes and rules, and the settings of the tiers that follow from them.

Host memory belongs to each worker that takes requests, and copies the device's content; the pool is shared.
"""

from dataclasses import dataclass
from typing import Any

from loadtest.engine.build import cache_rules
from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.stack import has_lower_tiers
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.fleet import capacity_tokens
from loadtest.simulator.tier_rules import PLAIN, TierRules

POOL_NODES = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in tokens of full-attention KV.

    Attributes:
        host_tokens: Per worker; 0: none, or with a pool the default of `HiCacheSettings`.
        pool_tokens: The shared pool, in memory; 0: none.
        rules: Rules of both; ``disk_tokens`` are those of all nodes.
    """

    host_tokens: int = 0
    pool_tokens: int = 0
    rules: TierRules = PLAIN

    def host(self, engine: EngineProfile) -> HiCacheSettings | None:
        """The host tier of one rank of an engine."""
        rules: dict[str, Any] = dict(self.rules.host)
        if not self.host_tokens:
            return HiCacheSettings(**rules) if self.pool_tokens else None
        block_tokens = engine.rules.block_tokens
        rank_tokens = max(self.host_tokens // engine.dp_ranks // block_tokens, 1) * block_tokens
        ratio = rank_tokens / engine.rules.full_tokens
        return HiCacheSettings(host_tokens=rank_tokens, host_ratio=ratio, **rules)

    def pool(self) -> L3Settings | None:
        """The shared pool."""
        if not self.pool_tokens:
            return None
        rules: dict[str, Any] = {"nodes": POOL_NODES, **dict(self.rules.pool)}
        nodes = rules["nodes"]
        disk_tokens = rules.pop("disk_tokens", 0) // nodes
        return L3Settings(memory_tokens=max(self.pool_tokens // nodes, 1), disk_tokens=disk_tokens, **rules)

    def capacity_tokens(self, engine: EngineProfile, workers: int) -> int:
        """Most tokens that ``workers`` hold together."""
        return capacity_tokens(engine, workers, self.host(engine), self.pool())


def device_tokens(engine: EngineProfile) -> int:
    """Tokens on one worker's device."""
    return engine.rules.full_tokens * engine.dp_ranks


def can_hold_more(engine: EngineProfile) -> bool:
    """True if memory below the device is modelled for an engine."""
    return has_lower_tiers(cache_rules(engine))
