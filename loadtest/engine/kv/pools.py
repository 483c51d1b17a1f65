"""Accounts of one pool of KV memory.

    |<------------------ capacity ------------------->|
    | locked | held, not locked | reserved |   free   |
    |<--------- held ---------->|

*Held* tokens can be matched; those of running requests are *locked*, the others can be evicted. *Reserved*
room belongs to running requests that have not filled it yet, or not in the tree. Between operations ``held +
reserved <= capacity``, and always ``locked <= held``. Eviction is decided elsewhere.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Pool:
    """Accounts of one pool, in tokens.

    Attributes:
        committed: Most that running requests may come to lock and reserve together, each counted alone.
        evicted: Since the start.
    """

    capacity: int
    held: int = 0
    locked: int = 0
    reserved: int = 0
    committed: int = 0
    evicted: int = 0

    @property
    def free(self) -> int:
        """Free room; negative in the middle of an operation that must evict."""
        return self.capacity - self.held - self.reserved

    @property
    def obtainable(self) -> int:
        """Room that can be had by evicting everything that is not locked."""
        return self.capacity - self.locked - self.reserved

    @property
    def used(self) -> int:
        """Tokens that running requests lock or reserve."""
        return self.locked + self.reserved
