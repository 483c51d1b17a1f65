"""The radix tree over KV blocks: existing runs, and the tiers of their KV.

    root --[system prompt, 40 blocks]--+--[session A, 12]--[3]       a node is a run of blocks;
                                       +--[session B, 3]             children differ in their first

    split at 10:  root --[s, 10]--[ystem prompt, 30]--...            the lower part stays the same object

* Blocks are chained hashes: runs that agree in their last block agree throughout, so a match compares one
  hash per node, and ends inside a run by bisection.
* One tree for all tiers. A node says where its full-attention KV is (`device`, `host`) and where its window
  KV is (`swa`, `host_swa`); without ``swa`` on the device it is a *tombstone* (SGLang
  ``swa_radix_cache.py``). A node leaves the tree when neither tier has its full KV.
* Tiers are closed under prefixes: a node is on the device, or the host, only if its parent is; host-only
  nodes hang below nodes that are on both (SGLang ``hiradix_cache.py``).
* Splits and merges change no account. Holders of nodes beyond an operation (leases, LRU entries) hold the
  lower part of a split, and a merge keeps the lower object.
"""

from collections.abc import Iterator
from typing import Protocol

HASH_BYTES = 8
"""Size of one block hash in a sequence (`radix.chain_bytes`)."""


class Node:
    """A run of blocks.

    Attributes:
        parent: None for the root and for nodes that have left the tree.
        start: Blocks before the run.
        end: Blocks up to and with the run.
        children: By the packed hash of their first block.
        locks: Leases that end here, plus children that are locked.
        swa_locks: Leases whose window covers this run; never more than leases at or below it.
        used: Last use of its full KV, in operations, unless something below was used later.
        swa_used: The same for its window KV.
        device: Its full KV is on the device, as ``swa`` its window KV.
        host: Its full KV is in host memory, as ``host_swa`` its window KV, or the state at its end.
        device_children: Children whose full KV is on the device.
        state: Slot of the state of linear layers at its end, if it is a checkpoint (`Checkpoints`).
        hits: Admissions that reused this run, as far as the tier policy counts (``write_through_selective``).
        host_used: Last use of its host copy, in operations, like ``host_swa_used``; kept by the tier policy.
        host_locks: Transfers that read or fill its host copy; kept by the tier policy.
        session: Session that computed it, if it is copied when the device evicts it (``write_back``).
    """

    __slots__ = (
        "children",
        "device",
        "device_children",
        "end",
        "hits",
        "host",
        "host_locks",
        "host_swa",
        "host_swa_used",
        "host_used",
        "key",
        "locks",
        "parent",
        "session",
        "start",
        "state",
        "swa",
        "swa_locks",
        "swa_used",
        "used",
    )

    def __init__(self, parent: "Node | None", key: bytes, start: int) -> None:
        """Make a node; see `RadixTree.attach`."""
        self.parent = parent
        self.key = key
        self.start = start
        self.end = start + len(key) // HASH_BYTES
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.swa_locks = 0
        self.used = 0
        self.swa_used = 0
        self.device = False
        self.swa = False
        self.host = False
        self.host_swa = False
        self.device_children = 0
        self.state: int | None = None
        self.hits = 0
        self.host_used = 0
        self.host_swa_used = 0
        self.host_locks = 0
        self.session = b""

    @property
    def blocks(self) -> int:
        """Length of the run."""
        return self.end - self.start

    def __repr__(self) -> str:
        flags = [name for name in ("device", "swa", "host", "host_swa") if getattr(self, name)]
        return f"Node({self.start}..{self.end} {'+'.join(flags)} locks={self.locks}/{self.swa_locks})"


def sequence_to(node: Node) -> bytes:
    """The packed hashes from the start of a sequence to the end of a node."""
    keys: list[bytes] = []
    walk = node
    while walk.parent is not None:
        keys.append(walk.key)
        walk = walk.parent
    return b"".join(reversed(keys))


class TreeObserver(Protocol):
    """Keeper of data per node that must follow when nodes are cut or joined."""

    def split(self, upper: Node, lower: Node) -> None:
        """``lower`` was cut; ``upper`` is new and has its flags, stamps and counts."""

    def merged(self, gone: Node, into: Node) -> None:
        """``gone`` became the head of ``into``, its only child, which had the same flags."""


class RadixTree:
    """Runs of blocks under one root; ``observers`` hear of splits and merges.

    With ``states`` what nodes hold beside full KV belongs to their ends, not to all of their blocks.
    """

    def __init__(self, *, states: bool = False) -> None:
        self.states = states
        self.root = Node(None, b"", 0)
        self.root.device = True
        self.observers: list[TreeObserver] = []

    def walk(self, node: Node, blocks: bytes, end: int) -> tuple[list[Node], Node | None, int]:
        """Follow a sequence down from the end of ``node``, whose run it contains, to ``end`` at most.

        Change nothing.

        Return the nodes that match in full, in order; the node that matches in part, if any; and the matched
        blocks.
        """
        path: list[Node] = []
        position, limit = node.end * HASH_BYTES, end * HASH_BYTES
        while position < limit:
            child = node.children.get(blocks[position : position + HASH_BYTES])
            if child is None:
                break
            after = position + len(child.key)
            if after > limit or child.key[-HASH_BYTES:] != blocks[after - HASH_BYTES : after]:
                position += self._common(child.key, blocks, position, limit)
                return path, child, position // HASH_BYTES
            path.append(child)
            node = child
            position = after
        return path, None, position // HASH_BYTES

    @staticmethod
    def _common(key: bytes, blocks: bytes, position: int, limit: int) -> int:
        """Bytes that a run and a sequence share; the first block is known to be common."""
        low, high = 1, min(len(key), limit - position) // HASH_BYTES
        while low < high:
            middle = (low + high + 1) // 2 * HASH_BYTES
            if (
                key[middle - HASH_BYTES : middle]
                == blocks[position + middle - HASH_BYTES : position + middle]
            ):
                low = middle // HASH_BYTES
            else:
                high = middle // HASH_BYTES - 1
        return low * HASH_BYTES

    def attach(self, parent: Node, key: bytes) -> Node:
        """Hang a new run, on no tier yet, below a node; no child may begin with the same block."""
        node = Node(parent, key, parent.end)
        parent.children[key[:HASH_BYTES]] = node
        return node

    def set_device(self, node: Node, *, device: bool) -> None:
        """Say whether the full KV of a node is on the device."""
        assert node.parent is not None
        if node.device != device:
            node.device = device
            node.parent.device_children += 1 if device else -1

    def split(self, node: Node, at: int) -> Node:
        """Cut a run in two before block ``at`` of the sequence.

        Return the new upper part, the lower stays ``node``.
        """
        parent = node.parent
        assert parent is not None
        assert node.start < at < node.end
        cut = (at - node.start) * HASH_BYTES
        upper = Node(parent, node.key[:cut], node.start)
        upper.locks = 1 if node.locks else 0
        upper.swa_locks = node.swa_locks
        upper.used, upper.swa_used, upper.host_used = node.used, node.swa_used, node.host_used
        upper.device, upper.swa, upper.host = node.device, node.swa, node.host
        upper.host_swa = node.host_swa and not self.states
        upper.hits, upper.host_locks = node.hits, node.host_locks
        upper.host_swa_used = node.host_swa_used
        upper.session = node.session
        upper.device_children = 1 if node.device else 0
        parent.children[upper.key[:HASH_BYTES]] = upper
        node.key = node.key[cut:]
        node.start = at
        node.parent = upper
        upper.children[node.key[:HASH_BYTES]] = node
        for observer in self.observers:
            observer.split(upper, node)
        return upper

    def merge(self, node: Node) -> None:
        """Join a node with its parents as long as they differ in nothing; the lower object stays.

        Nodes in use and parents with other children are left alone, so no lease ends at a node that goes. A
        parent that was not used later than its child was last used with it, so the order of eviction stays
        the same.
        """
        upper = node.parent
        parts = [node.key]
        while (
            upper is not None
            and upper.parent is not None
            and len(upper.children) == 1
            and not (upper.locks or node.locks or upper.swa_locks or node.swa_locks)
            and not (upper.host_locks or node.host_locks)
            and upper.used <= node.used
            and upper.device == node.device
            and upper.swa == node.swa
            and (not node.swa or upper.swa_used == node.swa_used)
            and upper.state is None
            and not (self.states and upper.host_swa)
            and upper.host == node.host
            and (self.states or upper.host_swa == node.host_swa)
            and upper.host_used == node.host_used
            and (self.states or not node.host_swa or upper.host_swa_used == node.host_swa_used)
            and upper.hits == node.hits
        ):
            parent = upper.parent
            parts.append(upper.key)
            node.start = upper.start
            node.parent = parent
            parent.children[upper.key[:HASH_BYTES]] = node
            upper.parent = None
            for observer in self.observers:
                observer.merged(upper, node)
            upper = parent
        if len(parts) > 1:
            node.key = b"".join(reversed(parts))

    def detach(self, node: Node) -> None:
        """Take a node without children out of the tree."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        assert not node.locks
        self.set_device(node, device=False)
        del parent.children[node.key[:HASH_BYTES]]
        node.parent = None

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents first; for tests and `clear`, never per request."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
