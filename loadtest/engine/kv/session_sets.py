"""Session sets: which storage node holds the blocks of which session.

    session ──first use──> the first node of the ring that has not more than its share    home
            ──its node is away──> the next one, until the node is back                    node

GCache keeps all blocks of a session on one node, and spreads related sessions over the nodes (MiMo-V2.5,
arXiv:2607.13095, section 3.2). Consistent hashing alone would leave a node of eight with half as many again
as the mean, so a node takes no more sets than `SHARE` times the mean (Mirrokni et al., "Consistent Hashing
with Bounded Loads", 2018). The table remembers the newest prompts of each set: that is what moves with it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import ceil

from loadtest.engine.kv.ring import HashRing

SHARE = 1.05
"""Most sets of a node over the mean. [guess] the paper names none."""

SETS_MAX = 1 << 16
"""Sets remembered; beyond it the least recently used is placed again when it returns."""

CHAINS_MAX = 4
"""Prompts of a set that move with it: a session and the newest of its subagents."""


@dataclass(slots=True, eq=False)
class SessionSet:
    """One set: the node that it belongs to, the one that has it, and its newest prompts with their spaces."""

    home: int
    node: int
    chains: list[tuple[bytes, bytes]] = field(default_factory=list)

    def wrote(self, space: bytes, blocks: bytes) -> None:
        """A prompt was written: it replaces one that it continues."""
        for index, (other, before) in enumerate(self.chains):
            if other == space and (blocks.startswith(before) or before.startswith(blocks)):
                self.chains[index] = space, max(before, blocks, key=len)
                return
        self.chains.append((space, blocks))
        del self.chains[:-CHAINS_MAX]


class SessionSets:
    """The sets of nodes 0 to ``nodes - 1``."""

    def __init__(self, nodes: int, ring: HashRing) -> None:
        self._ring = ring
        self._nodes = nodes
        self._sets: dict[bytes, SessionSet] = {}
        self._counts = [0] * nodes

    def of(self, session: bytes, absent: Collection[int]) -> SessionSet | None:
        """The set of a session, on a node that is there; None if all are absent."""
        found = self._sets.get(session)
        if found is None or found.node in absent:
            node = self._place(session, absent)
            if node is None:
                return None
            if found is None:
                found = SessionSet(node, node)
                self._counts[node] += 1
            else:
                self.put(found, node)
        self._sets.pop(session, None)
        self._sets[session] = found
        if len(self._sets) > SETS_MAX:
            self._counts[self._sets.pop(next(iter(self._sets))).node] -= 1
        return found

    def put(self, moved: SessionSet, node: int) -> None:
        """A set is on another node now."""
        self._counts[moved.node] -= 1
        self._counts[node] += 1
        moved.node = node

    def leaving(self, node: int, absent: Collection[int]) -> Iterator[tuple[SessionSet, int]]:
        """The sets on a node that leaves, each with the node that takes it."""
        for session, moved in self._sets.items():
            if moved.node == node and (taker := self._place(session, absent)) is not None:
                yield moved, taker

    def returning(self, node: int) -> Iterator[SessionSet]:
        """The sets that belong to a node and are elsewhere."""
        return (moved for moved in self._sets.values() if moved.home == node != moved.node)

    def _place(self, session: bytes, absent: Collection[int]) -> int | None:
        most = ceil(SHARE * (len(self._sets) + 1) / max(self._nodes - len(absent), 1))
        full = {node for node, count in enumerate(self._counts) if count >= most}
        node = self._ring.owner(session, full.union(absent))
        return self._ring.owner(session, absent) if node is None else node
