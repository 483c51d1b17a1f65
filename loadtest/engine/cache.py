"""The KV cache of an engine: which prefixes it can reuse, and how much room is left.

    root --[system prompt, 40 blocks]--+--[session A, 12 blocks]          a lease locks the
                                       +--[session B, 3 blocks]--[...]    path to its node

A radix tree over packed tokens. A node is a run of whole blocks; children differ in their
first block. Runs are compared with memory compares, so a match costs the number of nodes
on the path, whatever the length of the prompt.

* A match is at most prompt - 1 tokens: an engine always recomputes the last one.
* A running request holds a *lease*: it locks the path that it matched and reserves room for
  the rest of its prompt and its whole answer, so a running request is never preempted.
* Room is made by evicting unlocked leaves, least recently used first, from their tails. A
  prefix is never used later than what continues it, so what is held stays prefix-closed and
  the order is that of a block-wise LRU.
* ``held + reserved <= capacity`` at all times.
* Namespaces (model, adapter, salt) share the room, never the blocks.
"""

import heapq
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.engine.tokens import TOKEN_BYTES


class Lease(Protocol):
    """The room of one running request."""

    @property
    def matched_tokens(self) -> int:
        """Tokens that need no prefill: a multiple of the block size, below the prompt's length."""


class BlockCache(Protocol):
    """What the scheduler needs from a KV cache."""

    @property
    def held_tokens(self) -> int:
        """Tokens that can be matched, locked or not."""

    @property
    def used_tokens(self) -> int:
        """Tokens that running requests lock or reserve: what engines report as usage."""

    @property
    def evicted_tokens(self) -> int:
        """Tokens evicted since the start."""

    def acquire(self, namespace: bytes, tokens: bytes, output_tokens: int) -> Lease | None:
        """Match a prompt and make room for the rest of it and its answer; None if there is none now."""

    def insert(self, lease: Lease, tokens: bytes) -> None:
        """Hold the full blocks of ``tokens``, which begin with what the lease holds so far."""

    def release(self, lease: Lease) -> None:
        """Give back what is reserved and unlock the path; its blocks stay until evicted. Once."""

    def clear(self) -> bool:
        """Evict everything that is not in use; True if nothing is left."""


@dataclass(slots=True, eq=False)
class _Node:
    parent: "_Node | None"
    key: bytes = b""
    children: dict[bytes, "_Node"] = field(default_factory=dict)
    locks: int = 0
    used: int = 0
    namespace: bytes | None = None


@dataclass(slots=True, eq=False)
class PrefixLease:
    """A lease of `PrefixCache`."""

    node: _Node
    held_bytes: int
    reserved_bytes: int
    matched_tokens: int


class PrefixCache:
    """A prefix-closed LRU cache of KV blocks, for a model with full attention.

    Args:
        capacity_tokens: Room in tokens.
        block_tokens: Tokens of a block.
    """

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._capacity_bytes = capacity_tokens * TOKEN_BYTES
        self._roots: dict[bytes, _Node] = {}
        self._held_bytes = 0
        self._locked_bytes = 0
        self._reserved_bytes = 0
        self._evicted_bytes = 0
        self._uses = 0
        self._leaves: list[tuple[int, int, _Node]] = []
        self._leaves_limit = 64

    @property
    def held_tokens(self) -> int:
        """See `BlockCache`."""
        return self._held_bytes // TOKEN_BYTES

    @property
    def used_tokens(self) -> int:
        """See `BlockCache`."""
        return (self._locked_bytes + self._reserved_bytes) // TOKEN_BYTES

    @property
    def evicted_tokens(self) -> int:
        """See `BlockCache`."""
        return self._evicted_bytes // TOKEN_BYTES

    def acquire(self, namespace: bytes, tokens: bytes, output_tokens: int) -> PrefixLease | None:
        """See `BlockCache`."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Node(None, namespace=namespace)
        node, matched = self._walk(root, tokens, self._whole_blocks(len(tokens) - TOKEN_BYTES))
        self._lock(node)
        needed = len(tokens) - matched + output_tokens * TOKEN_BYTES
        if not self._make_room(needed):
            self._unlock(node)
            return None
        self._reserved_bytes += needed
        return PrefixLease(node, matched, needed, matched // TOKEN_BYTES)

    def insert(self, lease: Lease, tokens: bytes) -> None:
        """See `BlockCache`."""
        assert isinstance(lease, PrefixLease)
        end = self._whole_blocks(len(tokens))
        added = end - lease.held_bytes
        if added <= 0:
            return
        assert added <= lease.reserved_bytes
        node, position = self._walk(lease.node, tokens, end, lease.held_bytes)
        if position < end:
            child = _Node(node, tokens[position:end])
            node.children[tokens[position : position + self._block_bytes]] = child
            self._held_bytes += end - position
            node = child
        # What another request has inserted meanwhile is shared, and the copy of it is freed.
        lease.reserved_bytes -= added
        self._reserved_bytes -= added
        lease.held_bytes = end
        self._lock(node)
        self._unlock(lease.node)
        lease.node = node

    def release(self, lease: Lease) -> None:
        """See `BlockCache`."""
        assert isinstance(lease, PrefixLease)
        self._reserved_bytes -= lease.reserved_bytes
        lease.reserved_bytes = 0
        self._unlock(lease.node)

    def clear(self) -> bool:
        """See `BlockCache`."""
        self._evict(self._held_bytes - self._locked_bytes)
        return self._held_bytes == 0 and self._reserved_bytes == 0

    def _whole_blocks(self, length: int) -> int:
        return length - length % self._block_bytes

    def _walk(self, node: _Node, tokens: bytes, end: int, position: int = 0) -> tuple[_Node, int]:
        """Follow ``tokens[position:end]`` down from a node, splitting the last run if it differs inside."""
        size = self._block_bytes
        while position < end:
            child = node.children.get(tokens[position : position + size])
            if child is None:
                break
            length = len(child.key)
            if position + length <= end and tokens.startswith(child.key, position):
                position += length
                node = child
                continue
            same = self._common(child.key, tokens, position, min(length, end - position))
            return self._split(child, same), position + same
        return node, position

    def _common(self, key: bytes, tokens: bytes, position: int, limit: int) -> int:
        """Bytes of the longest common prefix in whole blocks; at least one block is known to be common."""
        size = self._block_bytes
        low, high = 1, limit // size
        while low < high:
            middle = (low + high + 1) // 2
            if key[low * size : middle * size] == tokens[position + low * size : position + middle * size]:
                low = middle
            else:
                high = middle - 1
        return low * size

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut a run in two; leases stay on the lower part, whose parent is the new upper one."""
        size = self._block_bytes
        parent = node.parent
        assert parent is not None
        assert 0 < length < len(node.key)
        upper = _Node(parent, node.key[:length], locks=node.locks, used=node.used)
        parent.children[upper.key[:size]] = upper
        node.key = node.key[length:]
        node.parent = upper
        upper.children[node.key[:size]] = node
        return upper

    def _lock(self, node: _Node) -> None:
        walk: _Node | None = node
        while walk is not None:
            if walk.locks == 0:
                self._locked_bytes += len(walk.key)
            walk.locks += 1
            walk = walk.parent

    def _unlock(self, node: _Node) -> None:
        self._uses += 1
        walk: _Node | None = node
        while walk is not None:
            walk.used = self._uses
            walk.locks -= 1
            if walk.locks == 0:
                self._locked_bytes -= len(walk.key)
                if not walk.children:
                    self._leaf(walk)
            walk = walk.parent

    def _leaf(self, node: _Node) -> None:
        """A node has become evictable; an empty root goes at once."""
        if node.namespace is not None:
            del self._roots[node.namespace]
            return
        heapq.heappush(self._leaves, (node.used, id(node), node))
        if len(self._leaves) > self._leaves_limit:
            # Entries of nodes that were used again or grew are dropped here, so the heap stays
            # within twice the number of leaves.
            self._leaves = [entry for entry in self._leaves if self._current(entry)]
            heapq.heapify(self._leaves)
            self._leaves_limit = 2 * len(self._leaves) + 64

    def _current(self, entry: tuple[int, int, _Node]) -> bool:
        used, _, node = entry
        return node.used == used and node.locks == 0 and not node.children and node.parent is not None

    def _make_room(self, needed: int) -> bool:
        """Evict until ``needed`` bytes are free; evict nothing if that cannot be done."""
        missing = needed - (self._capacity_bytes - self._held_bytes - self._reserved_bytes)
        if missing > self._held_bytes - self._locked_bytes:
            return False
        self._evict(missing)
        return True

    def _evict(self, needed: int) -> None:
        size = self._block_bytes
        while needed > 0:
            entry = heapq.heappop(self._leaves)
            if not self._current(entry):
                continue
            node = entry[2]
            parent = node.parent
            assert parent is not None
            gone = min(len(node.key), -(-needed // size) * size)
            needed -= gone
            self._held_bytes -= gone
            self._evicted_bytes += gone
            if gone < len(node.key):
                node.key = node.key[:-gone]
                heapq.heappush(self._leaves, entry)
                continue
            del parent.children[node.key[:size]]
            node.parent = None
            if not parent.children and parent.locks == 0:
                self._leaf(parent)
