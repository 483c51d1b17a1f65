"""The prefix tree: which worker holds which blocks, and since when.

Logically a map ``(worker, block) -> log time of last use``, where inserting raises times and never lowers
them. Workers are *slots*: small integers that the caller gives out densely and may use again after
`PrefixTree.drop`. Times are log time in microseconds (`radix.ops`).

The map is a path-compressed tree. A node is a run of blocks with the same holders; a run is divided where
paths part, or where a worker holds only its first part:

    [a b c d e]  {1, 2}              worker 3 inserts  a b x

    [a b]  {1, 2, 3}                 the lower part stays the same object, so references
     ├─ [c d e]  {1, 2}              to the end of a run (queues, snapshots) stay valid
     └─ [x]  {3}

Laws, checked by `radix.invariants` and by the tests beside a plain dictionary:

1. A child's holders hold the parent too, and used it no earlier.
2. Inserts, trims, forgets and ends that are gone commute and repeat harmlessly, since removals are remembered
   (`radix.holdings`).
3. Inserts commute with a bound on a worker's blocks, and with the bound on the whole tree. (Removals beside a
   bound do not: room made by a trim before an eviction is room, after it a gap. Neither do both bounds at
   once. Replicas can then differ by blocks that are about to be evicted.)
4. A session that grows on one worker is one node, with any number of turns, and a division that divides
   nothing any more is undone when the run is used.
5. Owners of blocks commute with inserts, too. (A removal between two owners' inserts makes a difference: the
   block is then the later one's here, and has no owner on a replica that read the removal last.)

Where requests ended is kept with the nodes, for models that need it (`radix.windows`). An end older than the
worker's newest eviction does not count: its window went with everything else of that age.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from radix.bitmask import bits
from radix.blocks import BLOCK_TOKENS, HASH_BYTES, check_path, unpack_hash, words_of
from radix.eviction import LOWEST, EvictionQueue, Key, evict
from radix.holdings import END_SALT, Holdings
from radix.match import Match
from radix.merge import merge
from radix.node import EndColumns, Node, common_blocks, joint_owner
from radix.reaches import Reaches
from radix.snapshot import Rows, TreeMarks, TreePage, TreeSnapshot, check_steps, finished, gathered
from radix.walk import walk
from radix.windows import FULL_ATTENTION, AttentionProfile

BLOCKS_MAX = 8_000_000
"""Default bound on distinct blocks: 2 G tokens at 256 tokens a block, some 200 MB."""


LATEST_US = 1 << 62
"""Greatest log time."""

WIDE_ENDS_MIN = 32
"""Workers with ends in a node from which on they are looked at as columns: 20 µs, one by one 0.6 µs each."""

JOINED_HOLDERS_MAX = 16
"""Holders up to which times are always compared; with more, only when one comes back: it costs O(holders), as
dividing did."""


SAMPLED_MAX = 1024
"""Runs of a worker that `PrefixTree.newest_from_us` looks at: 0.3 ms."""


class Room(NamedTuple):
    """Room left of a worker's bound, and the last use of the block that goes next."""

    free_blocks: int
    oldest_us: int


class PrefixTree:
    """Blocks cached by all workers.

    Methods that take a path raise ValueError if it is not whole hashes, methods that take a time if it is not
    within 0 to 2**62: both may come from another replica.

    Args:
        blocks_max: Most distinct blocks; the least recently used go first.
        block_tokens: Tokens per block, for window-safe lengths.
    """

    def __init__(self, blocks_max: int = BLOCKS_MAX, block_tokens: int = BLOCK_TOKENS) -> None:
        assert blocks_max > 0
        assert block_tokens > 0
        self.blocks = 0
        """Distinct blocks held by any worker."""
        self.nodes = 0
        self.newest_us = 0
        """Latest log time seen."""
        self.root = Node(None, b"", 0, 0)
        self.holdings: list[Holdings] = []
        self.ends_from_us = np.zeros(8, dtype=np.int64)
        """Column of `Holdings.ends_from_us`, with a view of the same memory (`policies.state.loads`)."""
        self._ends_from_at = self.ends_from_us.data
        self.reaches = Reaches()
        self.pairs = 0
        self.walks = 0
        """Snapshots being written or restored. They find their way by runs seen before, so none are joined.
        """
        self.blocks_max = blocks_max
        self.block_tokens = block_tokens
        self.queue: EvictionQueue | None = None
        self.floor: Key = LOWEST

    def __del__(self) -> None:
        """Cut parents off children: the garbage collector does not see nodes (`radix.node`)."""
        for holdings in self.holdings:
            for node in holdings.used:
                node.parent = None

    @property
    def slots(self) -> int:
        """Slots met so far: the length of a match's arrays."""
        return len(self.holdings)

    def owned_blocks(self, slot: int) -> Mapping[int, int]:
        """Blocks that a worker holds, by their only owner; blocks without one are left out."""
        return self.holdings[slot].owned if slot < len(self.holdings) else {}

    def held_blocks(self, slot: int) -> int:
        """Blocks that a worker holds; 0 for an unknown one."""
        return self.holdings[slot].blocks if slot < len(self.holdings) else 0

    def room(self, slot: int) -> Room | None:
        """Room of a worker; None if it has no bound or holds nothing."""
        holdings = self.holdings_of(slot)
        if holdings.capacity is None or holdings.queue is None:
            return None
        lowest = holdings.queue.lowest()
        return None if lowest is None else Room(max(holdings.capacity - holdings.blocks, 0), lowest[0][0])

    def used_us(self, slot: int, path: bytes, blocks: int) -> int:
        """Log time at which a worker last used a path's block, counted from 1; 0 if it does not hold it."""
        for node, depth in self.held_along(slot, path):
            if depth >= blocks > 0:
                return self.holdings[slot].used[node]
        return 0

    def blocks_since(self, slot: int, from_us: int) -> int:
        """Blocks that a worker holds and last used at a log time or later; one step for each run it holds."""
        used = self.holdings_of(slot).used
        return sum([node.size for node, at_us in used.items() if at_us >= from_us])

    def newest_from_us(self, slot: int, blocks: int) -> int:
        """Log time from which on a worker last used about so many of its blocks; 0 if it holds no more.

        Estimated from at most `SAMPLED_MAX` of its runs.
        """
        holdings = self.holdings_of(slot)
        if holdings.blocks <= blocks:
            return 0
        step = len(holdings.used) // SAMPLED_MAX + 1
        sample = sorted([(at_us, node.size) for node, at_us in islice(holdings.used.items(), 0, None, step)])
        left = blocks / holdings.blocks * sum([size for _, size in sample])
        for at_us, size in reversed(sample):
            left -= size
            if left < 0.0:
                return at_us + 1
        return 0

    def newest_blocks(self, slot: int, path: bytes, from_us: int) -> int:
        """Leading blocks of a path that a worker last used at a log time or later; a step for each run."""
        used, blocks = self.holdings_of(slot).used, 0
        for node, depth in self.held_along(slot, path):
            if used[node] < from_us:
                break
            blocks = depth
        return blocks

    def match(self, path: bytes, profile: AttentionProfile = FULL_ATTENTION) -> Match:
        """Measure every worker's match of a path; matching is not using.

        Costs one step per segment on the path, not per block or worker. Models that need ends cost one more
        for each worker with ends in a segment, unless there are many.
        """
        size = len(path)
        if size % HASH_BYTES:
            check_path(path)
        children, blocks = self.root.children, size // HASH_BYTES
        node = children.get(unpack_hash(path)[0]) if children and path else None
        if node is None:
            return Match(blocks, len(self.holdings), [])
        if node.run == path and not profile.needs_ends:
            return Match(blocks, len(self.holdings), [(node.holders, blocks)])
        ends = np.zeros(len(self.holdings), dtype=np.int32) if profile.needs_ends else None
        parts: list[tuple[int, int]] = []
        at, holders = 0, node.holders
        while node is not None:
            if node.holders != holders:
                parts.append((holders ^ node.holders, at // HASH_BYTES))
                holders = node.holders
            run = node.run
            if path.startswith(run, at):
                at += len(run)
                children = node.children
            else:
                at += HASH_BYTES * common_blocks(run, path, at // HASH_BYTES)
                children = None
            if ends is not None and node.ends is not None:
                self._collect_ends(node, node.ends, at // HASH_BYTES, ends)
            node = children.get(unpack_hash(path, at)[0]) if children and at < size else None
        parts.append((holders, at // HASH_BYTES))
        match = Match(blocks, len(self.holdings), parts)
        if ends is not None:
            if self.reaches:
                self._collect_reaches(match, words_of(path), ends)
            match.keep_safe(ends, profile, self.block_tokens)
        return match

    def insert(
        self,
        slot: int,
        path: bytes,
        at_us: int,
        *,
        end: bool,
        ends: int = 1,
        junction: int = 0,
        owner: int = 0,
    ) -> None:
        """Note that a worker holds all blocks of a path: raise the time of each to at least ``at_us``.

        Args:
            slot: The worker.
            path: Packed hashes; may be empty.
            at_us: Log time of use.
            end: A request ended here. True only for models that need ends (`AttentionProfile.needs_ends`).
            ends: With ``end``: number of boundaries, counted back from the end of the path.
            junction: Blocks after which the path left the worker's cache: an end there (`radix.windows`). 0
                for none.
            owner: Number of the owner that brought the blocks, below `radix.bounds.SHARED`; 0 if unknown.
                Blocks that several brought have no owner, on every worker.
        """
        size = len(path)
        if size % HASH_BYTES:
            check_path(path)
        try:
            holdings = self.holdings[slot]
        except IndexError:  # a worker that was not met before
            holdings = self.holdings_of(slot)
        if at_us > self.newest_us and at_us <= LATEST_US:
            self.newest_us = at_us  # and no removal is as new
        else:
            self.see(at_us)
            path = path[: HASH_BYTES * holdings.admitted(path, at_us, self.floor)]
        if not path:
            return
        children, used = self.root.children, holdings.used
        node = children.get(unpack_hash(path)[0]) if children else None
        if node is not None and node.run == path and node in used and (not owner or owner == node.owner):
            # Often a prompt came before, or all of its full blocks are those that many share.
            if used[node] < at_us:
                used[node] = at_us
            if not (end or junction):
                return
        else:
            node = self.hold(self.root, path, slot, at_us, extend=True, owner=owner)
        if end or junction:
            blocks = len(path) // HASH_BYTES
            if end:
                self._note_ends(node, slot, at_us, size // HASH_BYTES - ends, blocks)
            if 0 < junction <= blocks:
                self._note_ends(node, slot, at_us, junction - 1, junction)
        capacity = holdings.capacity
        if (capacity is not None and holdings.blocks > capacity) or self.blocks > self.blocks_max:
            self.bound(slot)

    def trim(self, slot: int, path: bytes, before_us: int) -> None:
        """Note that a worker lost the last block of a path and all below it, unless used since.

        ``before_us``: blocks last used strictly before this log time go.
        """
        words = words_of(path)
        if not len(words):
            raise ValueError("a trim needs the path of a block")
        self.see(before_us)
        holdings = self.holdings_of(slot)
        holdings.remember_trim(words[-1], before_us, self.newest_us)
        for node, depth in list(self.held_along(slot, path)):
            if depth == len(words):
                self._trim_below(node, depth - 1, slot, before_us)

    def forget(self, slot: int, before_us: int) -> None:
        """Note that a worker lost its cache: drop the blocks last used strictly before ``before_us``."""
        self.see(before_us)
        holdings = self.holdings_of(slot)
        if before_us <= holdings.forgot_us:
            return
        holdings.forgot_us = before_us
        self._ends_from_at[slot] = holdings.ends_from_us
        for node in [node for node, used_us in holdings.used.items() if used_us < before_us]:
            self._release(node, slot)
        holdings.trimmed = {key: at_us for key, at_us in holdings.trimmed.items() if at_us > before_us}

    def end_gone(self, slot: int, path: bytes, before_us: int, *, ends: int = 1) -> None:
        """Note that a worker can no longer go on from the last ``ends`` boundaries of a path.

        The blocks stay; reports of these boundaries strictly before ``before_us`` go.
        """
        words = words_of(path)
        if not len(words):
            raise ValueError("an end that is gone needs the path of a block")
        self.see(before_us)
        holdings = self.holdings_of(slot)
        above = max(0, len(words) - ends)
        for block_hash in words[above:]:
            holdings.remember_trim(block_hash ^ END_SALT, before_us, self.newest_us)
            self.reaches.gone(slot, block_hash, before_us)
        for node, depth in self.held_along(slot, path):
            node.drop_ends(slot, above, before_us, depth)

    def end_reach(self, slot: int, block_hash: int, at_us: int, blocks: int) -> None:
        """Note that a worker can go on so many blocks behind a block, if a prompt continues it.

        The worker holds the block, or the reach counts for nothing.
        """
        self.see(at_us)
        if self.holdings_of(slot).end_counts(block_hash, at_us):
            self.reaches.note(slot, block_hash, at_us, blocks)

    def drop(self, slot: int) -> None:
        """Remove a worker with all that is remembered of it, so that its slot can be used again."""
        for node in list(self.holdings_of(slot).used):
            self._release(node, slot)
        self.holdings[slot] = Holdings()
        self._ends_from_at[slot] = 0
        self.reaches.drop(slot)

    def set_capacity(self, slot: int, blocks: int | None) -> None:
        """Bound the blocks of a worker, None for no bound of its own; evicts at once if needed."""
        assert blocks is None or blocks >= 0
        holdings = self.holdings_of(slot)
        holdings.capacity = blocks
        if blocks is None:
            holdings.queue = None
        elif holdings.queue is None:
            holdings.queue = EvictionQueue(self._used_us)
            holdings.queue.rebuild(self._held_by(slot))
        if blocks is not None and holdings.blocks > blocks:
            self.evict_from(slot)

    def dump(self, slots: Sequence[int]) -> TreeSnapshot:
        """Copy the holdings of these workers as columns; the snapshot knows them by their position here.

        Equal states give equal snapshots, with any history. Capacities are settings, not state.
        """
        return gathered(self.dump_steps(slots))

    def dump_steps(self, slots: Sequence[int]) -> Generator[TreePage | None, None, TreeMarks]:
        """Dump in steps of a few microseconds, between which the tree may change; yield a page or None."""
        return walk(self, slots)

    def load(self, snapshot: TreeSnapshot, slots: Sequence[int]) -> None:
        """Merge a snapshot, as if its content were inserted, trimmed and forgotten here.

        ``slots`` has the worker's slot here for each position of the sequence it was dumped with. Raises
        ValueError, with nothing changed, if the snapshot contradicts itself or is not of that many workers.
        """
        rows = finished(check_steps(snapshot, len(slots)))
        finished(self.load_steps(rows, slots))

    def load_steps(self, rows: Rows, slots: Sequence[int]) -> Generator[float, None, None]:
        """Merge a checked snapshot in steps, between which the tree may change; yield progress, 0 to 1."""
        return merge(self, rows, slots)

    # Inside the package: parts that snapshots and invariants use.

    def see(self, at_us: int) -> None:
        """Keep the latest log time; raise ValueError if it is not within 0 to 2**62."""
        if not 0 <= at_us <= LATEST_US:
            raise ValueError(f"{at_us} is not a log time in microseconds")
        if at_us > self.newest_us:
            self.newest_us = at_us

    def holdings_of(self, slot: int) -> Holdings:
        """Holdings of a worker; empty for a slot not met before."""
        assert slot >= 0
        while slot >= len(self.holdings):
            self.holdings.append(Holdings())
        if slot >= len(self.ends_from_us):
            self.ends_from_us = np.concatenate([self.ends_from_us, np.zeros(slot + 1, dtype=np.int64)])
            self._ends_from_at = self.ends_from_us.data
        return self.holdings[slot]

    def held_along(self, slot: int, path: bytes) -> Iterator[tuple[Node, int]]:
        """Nodes of a path that a worker holds, from above, each with its last depth on the path."""
        words, used = words_of(path), self.holdings_of(slot).used
        children, depth = self.root.children, 0
        while children and depth < len(words):
            node = children.get(words[depth])
            if node is None or node not in used:
                return
            depth += common_blocks(node.run, path, depth)
            yield node, depth
            children = node.children if depth == node.end else None

    def raise_floor(self, slot: int, floor: Key) -> None:
        """Note an eviction from a worker, here or, as a snapshot reports, elsewhere."""
        holdings = self.holdings[slot]
        if floor > holdings.floor:
            holdings.floor = floor
            self._ends_from_at[slot] = holdings.ends_from_us

    def _used_us(self, node: Node, slot: int) -> int | None:
        return self.holdings[slot].used.get(node)

    def _held_by(self, slot: int) -> list[tuple[Node, int, int]]:
        return [(node, slot, used_us) for node, used_us in self.holdings[slot].used.items()]

    def _held_by_all(self) -> list[tuple[Node, int, int]]:
        return [held for slot in range(len(self.holdings)) for held in self._held_by(slot)]

    def _collect_ends(
        self, node: Node, by_slot: dict[int, dict[int, int]], depth: int, ends: NDArray[np.int32]
    ) -> None:
        """Note each worker's last end in a node, down to ``depth``; many workers cost no step for each."""
        tree_us = self.floor[0] + 1
        if len(by_slot) >= WIDE_ENDS_MIN:
            if node.end_columns is None:
                node.end_columns = EndColumns(by_slot)
            node.end_columns.raise_last(ends, depth, self.ends_from_us, tree_us)
            return
        for slot, at_depth in by_slot.items():
            from_us = max(tree_us, self._ends_from_at[slot])
            last = 0
            for end, at_us in at_depth.items():
                if last < end <= depth and at_us >= from_us:
                    last = end
            if last:
                ends[slot] = last

    def _collect_reaches(self, match: Match, words: "memoryview[int]", ends: NDArray[np.int32]) -> None:
        """Raise the last ends of workers that may go on behind the block where the path leaves them."""
        tree_us = self.floor[0] + 1
        for workers, depth in match.parts:
            for slot, at_us, blocks in self.reaches.behind(words[depth - 1]):
                if workers >> slot & 1 and at_us >= max(tree_us, self._ends_from_at[slot]):
                    ends[slot] = max(ends[slot], min(depth + blocks, match.blocks))

    def _note_ends(self, node: Node, slot: int, at_us: int, above: int, depth: int) -> None:
        """Note a worker's ends deeper than ``above``, down to a depth within ``node``, except those gone."""
        holdings = self.holdings[slot]
        while depth > max(0, above):
            while node.parent is not None and node.start >= depth:
                node = node.parent
            if holdings.end_counts(node.hash_at(depth), at_us):
                node.note_end(slot, depth, at_us)
            depth -= 1

    def hold(self, node: Node, path: bytes, slot: int, at_us: int, *, extend: bool, owner: int = 0) -> Node:
        """Raise the times on a path below ``node``, which the worker holds at least as recently.

        The node is the root, or ends where the path begins. With ``extend`` a leaf that only this worker
        holds may grow; else its end stays. Returns the node with the last block of the path.
        """
        holdings = self.holdings[slot]
        used = holdings.used
        at, size = 0, len(path)
        used_us: int | None = at_us
        while at < size:
            children = node.children
            child = children.get(unpack_hash(path, at)[0]) if children else None
            if child is None:
                run = path[at:]
                more = len(run) // HASH_BYTES
                holdings.count(more, owner)
                self.blocks += more
                alone = not children and node.holders == 1 << slot and node.owner == owner
                if not extend or not alone or used[node] != at_us:
                    return self._attach(node, run, slot, at_us, owner)
                node.run += run
                if used_us is None or used_us == at_us:
                    self._enqueue(node, slot, at_us)
                # Else its place, later now, is above that of its entry in the queues, at any length.
                return node
            run = child.run
            used_us = used.get(child)
            if path.startswith(run, at):
                at += len(run)
            else:
                shared = common_blocks(run, path, at // HASH_BYTES)
                at += shared * HASH_BYTES
                owned = joint_owner(child.owner, owner) == child.owner
                if at == size and owned and used_us is not None and used_us >= at_us:
                    return child
                child = self.split(child, shared)
            if used_us is None:
                child.holders |= 1 << slot
                used[child] = at_us
                self.pairs += 1
                holdings.count(child.size, child.owner)
            elif used_us < at_us:
                used[child] = at_us
            if owner and child.owner != owner:
                self._bring(child, owner)
            if extend and child.holders == node.holders and (parent := node.parent) is not None:
                self._join(parent, node, child, returned=used_us is None)
            node = child
        if used_us is None:
            self._enqueue(node, slot, at_us)
        return node

    def _attach(self, node: Node, run: bytes, slot: int, at_us: int, owner: int) -> Node:
        """Hang a run of one worker below a node."""
        child = Node(node, run, node.end, 1 << slot, owner=owner)
        if node.children is None:
            node.children = {}
        node.children[unpack_hash(run)[0]] = child
        self.holdings[slot].used[child] = at_us
        self.pairs += 1
        self.nodes += 1
        self._enqueue(child, slot, at_us)
        return child

    def _bring(self, node: Node, owner: int) -> None:
        """Note another owner of a run; costs a step for each holder if that changes whose it is."""
        joint = joint_owner(node.owner, owner)
        if joint != node.owner:
            for slot in bits(node.holders):
                self.holdings[slot].charge(-node.size, node.owner)
                self.holdings[slot].charge(node.size, joint)
            node.owner = joint

    def split(self, node: Node, size: int) -> Node:
        """Divide a run after ``size`` blocks and return the new upper part; the lower part stays this node.

        Costs a step for each holder: 0.3 ms with 1,000.
        """
        parent = node.parent
        assert parent is not None
        assert 0 < size < node.size
        cut = size * HASH_BYTES
        upper = Node(parent, node.run[:cut], node.start, node.holders, owner=node.owner)
        parent.adopt(upper)
        node.run = node.run[cut:]
        node.start += size
        upper.adopt(node)
        holdings = self.holdings
        for used in [holdings[slot].used for slot in bits(node.holders)]:
            used[upper] = used[node]
        self.pairs += node.holders.bit_count()
        self.nodes += 1
        node.divide_ends(upper)
        return upper

    def _join(self, parent: Node, upper: Node, lower: Node, *, returned: bool) -> None:
        """Undo a division that divides nothing any more: the same workers use both parts.

        Otherwise workers that repeatedly evict the end of a shared run and come back to it would leave one
        node for each block. The lower part stays the same object, as in a split. ``returned``: a worker has
        just come back to it.
        """
        few = returned or upper.holders.bit_count() <= JOINED_HOLDERS_MAX
        if self.walks or len(upper.children or ()) > 1 or not few or upper.owner != lower.owner:
            return
        useds = [self.holdings[slot].used for slot in bits(upper.holders)]
        if any(used[upper] != used[lower] for used in useds):
            return
        upper.disown(lower)
        lower.run = upper.run + lower.run
        lower.start = upper.start
        for slot, at_depth in (upper.ends or {}).items():
            for depth, at_us in at_depth.items():
                lower.note_end(slot, depth, at_us)
        parent.adopt(lower)  # in the place of the upper part
        upper.parent = None
        for used in useds:
            del used[upper]
        self.pairs -= len(useds)
        self.nodes -= 1

    def _release(self, node: Node, slot: int) -> None:
        """Take a node from a worker, which must not hold its children much longer either."""
        holdings = self.holdings[slot]
        del holdings.used[node]
        holdings.count(-node.size, node.owner)
        self.pairs -= 1
        node.holders &= ~(1 << slot)
        node.drop_ends(slot, below=0)
        parent = node.parent
        assert parent is not None
        if not node.holders:
            parent.disown(node)
            self.blocks -= node.size
            self.nodes -= 1
        used_us = holdings.used.get(parent)
        if used_us is not None:
            self._enqueue(parent, slot, used_us)

    def _cut(self, node: Node, slot: int, size: int) -> None:
        holdings = self.holdings[slot]
        run = node.run
        remaining = len(run) // HASH_BYTES - size
        if remaining and node.holders == 1 << slot and not node.children:
            node.run = run[: remaining * HASH_BYTES]
            if node.ends is not None:
                node.drop_ends(slot, below=node.end)
            holdings.count(-size, node.owner)
            self.blocks -= size
            return
        if remaining:
            self.split(node, remaining)
        self._release(node, slot)

    def _trim_below(self, node: Node, depth: int, slot: int, before_us: int) -> None:
        """Drop a worker's blocks deeper than ``depth``, a depth within ``node``, and used before a time."""
        used = self.holdings[slot].used
        doomed: list[Node] = []
        stack = [node]
        while stack:
            below = stack.pop()
            if used[below] < before_us:
                doomed.append(below)
            else:
                below.drop_ends(slot, below=depth, before_us=before_us)
            stack.extend(below.children_of(1 << slot))
        for below in doomed:
            self._cut(below, slot, below.end - max(below.start, depth))

    def _enqueue(self, node: Node, slot: int, used_us: int) -> None:
        """Tell the queues that a node may have become a worker's leaf, or has become longer."""
        holdings = self.holdings[slot]
        if holdings.queue is not None:
            holdings.queue.push(node, slot, used_us)
            if holdings.queue.crowded(len(holdings.used)):
                holdings.queue.rebuild(self._held_by(slot))
        if self.queue is not None:
            self.queue.push(node, slot, used_us)
            if self.queue.crowded(self.pairs):
                self.queue.rebuild(self._held_by_all())

    def bound(self, slot: int) -> None:
        """Evict blocks above a worker's bound, then those above the tree's.

        Inserts leave nothing at or below a floor, so after them there is nothing to look for there.
        """
        holdings = self.holdings[slot]
        if holdings.capacity is not None and holdings.blocks > holdings.capacity:
            self.evict_from(slot, to_floor=False)
        if self.blocks > self.blocks_max:
            self.evict_from_all(to_floor=self.queue is None)

    def evict_from(self, slot: int, *, to_floor: bool = True) -> None:
        """Evict a worker's blocks above its bound, and with ``to_floor`` those at or below its floor."""
        holdings = self.holdings[slot]
        capacity, queue = holdings.capacity, holdings.queue
        if capacity is None or queue is None:
            return
        floor = evict(
            queue, holdings.floor, lambda _: max(0, holdings.blocks - capacity), self._cut, to_floor=to_floor
        )
        self.raise_floor(slot, floor)

    def evict_from_all(self, *, to_floor: bool = True) -> None:
        """Evict the tree's oldest holdings, worker by worker, until few enough blocks are left.

        A worker that has not used a block for longer than anything in a full tree lives thus loses it even if
        others still hold it; else the rest would depend on the order.
        """
        if self.queue is None:
            self.queue = EvictionQueue(self._used_us)
            self.queue.rebuild(self._held_by_all())
        self.floor = evict(self.queue, self.floor, self._blocks_over, self._cut, to_floor=to_floor)

    def _blocks_over(self, node: Node) -> int:
        """Return how many blocks of a node may go at once before the tree is within its bound."""
        over = max(0, self.blocks - self.blocks_max)
        return over if node.holders.bit_count() == 1 else over and node.size
