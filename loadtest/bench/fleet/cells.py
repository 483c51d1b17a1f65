"""The cells: which load meets which fleet, and which routers take part in it."""

from dataclasses import dataclass
from enum import StrEnum

AMPLE_TOKENS, TIGHT_TOKENS, TIGHTEST_TOKENS = 1_500_000, 600_000, 300_000
"""Sizes of a worker's cache. Eight ample ones hold the working set of 48 agents, tight ones do not."""

USERS = (24, 48, 96)
REPLICA_USERS = 48
REPLICAS = 4
PREFILL_TOKENS_PER_S = 6000.0
"""Speed of a worker, in every cell."""


class Part(StrEnum):
    """Part that can be run on its own."""

    AGENTS = "agents"
    REPLICAS = "replicas"
    CONVERSATION = "conversation"


class Router(StrEnum):
    """Routers of the comparison."""

    CACHEWAY = "cacheway"
    NO_QUEUE = "cacheway-no-queue"
    SMG = "smg"
    SGLANG = "sglang-router"


PEERS = (Router.SMG, Router.SGLANG)


@dataclass(frozen=True, slots=True)
class Cell:
    """One load on one fleet.

    Attributes:
        users: Agents at work; 0 for conversations.
        cache_tokens: Cache per worker, tokens.
        replicas: Copies of the router.
    """

    part: Part
    users: int
    cache_tokens: int
    replicas: int

    @property
    def key(self) -> str:
        """Name in options and results."""
        load = f"agents-{self.users}" if self.users else "conversation"
        return f"{load}-{self.cache_tokens // 1000}k-{self.replicas}r"

    @property
    def ample(self) -> bool:
        """True if what the load works on fits the caches."""
        return self.cache_tokens >= AMPLE_TOKENS

    @property
    def routers(self) -> tuple[Router, ...]:
        """Routers in this cell; the queue is judged where one replica serves 48 agents."""
        judged = self.part is Part.AGENTS and self.users == REPLICA_USERS
        ours = (Router.CACHEWAY, Router.NO_QUEUE) if judged else (Router.CACHEWAY,)
        return (*ours, *PEERS)


CELLS = (
    *(
        Cell(Part.AGENTS, users, cache_tokens, 1)
        for cache_tokens in (AMPLE_TOKENS, TIGHT_TOKENS, TIGHTEST_TOKENS)
        for users in USERS
    ),
    *(
        Cell(Part.REPLICAS, REPLICA_USERS, cache_tokens, REPLICAS)
        for cache_tokens in (AMPLE_TOKENS, TIGHT_TOKENS, TIGHTEST_TOKENS)
    ),
    *(Cell(Part.CONVERSATION, 0, AMPLE_TOKENS, replicas) for replicas in (1, REPLICAS)),
)
