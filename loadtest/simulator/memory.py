"""Memory below the device: sizes, and the settings of the tiers that follow from them.

Host memory belongs to each worker that takes requests, and copies the device's content; the pool is shared.
"""

from dataclasses import dataclass

from loadtest.engine.build import cache_rules
from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.stack import has_lower_tiers
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.fleet import capacity_tokens

POOL_NODES = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in tokens of full-attention KV.

    Attributes:
        host_tokens: Of one worker; 0: none, or with a pool the default of `HiCacheSettings`.
        pool_tokens: The shared pool; 0: none.
    """

    host_tokens: int = 0
    pool_tokens: int = 0

    def host(self, engine: EngineProfile) -> HiCacheSettings | None:
        """The host tier of one rank of an engine."""
        if not self.host_tokens:
            return HiCacheSettings() if self.pool_tokens else None
        block_tokens = engine.rules.block_tokens
        rank_tokens = max(self.host_tokens // engine.dp_ranks // block_tokens, 1) * block_tokens
        return HiCacheSettings(host_tokens=rank_tokens, host_ratio=rank_tokens / engine.rules.full_tokens)

    def pool(self) -> L3Settings | None:
        """The shared pool."""
        if not self.pool_tokens:
            return None
        return L3Settings(nodes=POOL_NODES, memory_tokens=max(self.pool_tokens // POOL_NODES, 1))

    def capacity_tokens(self, engine: EngineProfile, workers: int) -> int:
        """Most tokens that so many workers hold together."""
        return capacity_tokens(engine, workers, self.host(engine), self.pool())


def device_tokens(engine: EngineProfile) -> int:
    """Tokens on one worker's device."""
    return engine.rules.full_tokens * engine.dp_ranks


def can_hold_more(engine: EngineProfile) -> bool:
    """True if memory below the device is modelled for an engine."""
    return has_lower_tiers(cache_rules(engine))
