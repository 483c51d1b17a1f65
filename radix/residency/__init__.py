"""Blocks that engines say they hold, and the operations on the tree that follow from them."""

from radix.residency.engine_events import BlocksRemoved, BlocksStored, CacheCleared, EngineEvent
from radix.residency.residency import Residency

__all__ = ["BlocksRemoved", "BlocksStored", "CacheCleared", "EngineEvent", "Residency"]
