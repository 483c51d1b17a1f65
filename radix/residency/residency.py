"""The blocks that one worker's engines really hold by their KV events, and the tree operations that follow.

    stored, removed, cleared ──apply──► Residency ──changes──► Insert, EndGone, Trim, Forget ──► PrefixTree

* **Identity.** An engine's hash is a handle: it names a block. The block's place in its sequence follows from
  its parent, its identity in the tree from its tokens, chained from a root that LoRA adapter and salt choose.
  All groups of a model use the same handle for the same prefix (vLLM). So a block that a group reports
  without a place (a sliding window lists fewer handles than tokens, an offload tier no tokens) takes the
  place of another group's block with that handle, now or when that comes.
* **Loose.** A block without a place is only counted: unknown parent, media or other things beside the tokens,
  an adapter without a root, another block size. Its removal is understood and it never reaches the tree.
* **Reached.** The tree holds a prefix as far as all groups that demand every block hold it from its
  beginning. A worker whose engine has data-parallel ranks holds what any of them does.
* **Tiers.** Memory below the device goes on where the device ends, and only there
  (`radix.residency.boundaries`).
* **Ends.** Where the other groups hold their windows or states, up to a boundary that is reached, the engine
  can go on: an end (`radix.windows`). A boundary inside a tree block is the one before it, as there. An
  engine without groups (SGLang) reports no windows: its events mark and remove no ends.
* **Copies.** vLLM does not merge equal blocks: two requests that fill the same block at once store it twice,
  and evict it twice. So stores are counted. (An engine that reports hits as stores, vLLM's
  ``kv_cache_report_mode=full``, cannot be followed: it never removes what it only repeats.)

An event costs dictionary look-ups per handle and a few operations on whole runs (`radix.residency.runs`),
never steps per block of a sequence. `Residency.changes` derives the rest, once per changed run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from radix.blocks import HASH_BYTES, words_of
from radix.node import common_blocks
from radix.ops import EndGone, Forget, Insert, TreeOp, Trim
from radix.residency.audit import AUDIT_BLOCKS, Audit
from radix.residency.boundaries import carried, chained, solid, valid
from radix.residency.engine_events import BlocksRemoved, BlocksStored, EngineEvent
from radix.residency.places import Places
from radix.residency.runs import (
    RUN_BLOCKS_MAX,
    UNREACHED,
    Rank,
    Run,
    ranges,
)

if TYPE_CHECKING:
    from radix.tree import PrefixTree

HANDLES_MAX = 4_000_000
"""Most handles kept of one rank: 64 M tokens in blocks of 16. Bounds a rank that never removes."""


class Residency:
    """Blocks of one worker's engines.

    Args:
        block_tokens: Tokens of the tree's blocks, > 0; the engine's may be others.
        root_of: Root of the sequences of a LoRA adapter and a salt, each empty for none; None if unknown.
        handles_max: Most handles kept of one rank. One with more is forgotten, and not `readable` until it is
            cleared or lost.
    """

    def __init__(
        self,
        block_tokens: int,
        root_of: Callable[[str, str], int | None],
        handles_max: int = HANDLES_MAX,
    ) -> None:
        assert block_tokens > 0
        self.block_tokens = block_tokens
        self._places = Places(block_tokens, root_of)
        self.groups = self._places.groups
        self._handles_max = handles_max
        self._ranks: dict[int, Rank] = {}
        self._ends: dict[int, int] = {}
        """By hash of the tree block before: boundaries to go on from, times 2; plus 1 if the tree was told.
        """
        self._touched: dict[int, tuple[Run, int]] = {}
        self._judged = 0
        self._audit = Audit(self)
        self._emptied = False
        self._spilled: set[int] = set()
        self._reported_us = 0

    @property
    def runs(self) -> Mapping[int, Run]:
        """Runs of blocks, for the comparison with a tree."""
        return self._places.runs

    @property
    def blocks(self) -> int:
        """Engine blocks whose places are known, over all ranks."""
        return sum(len(rank.places) for rank in self._ranks.values())

    @property
    def opaque(self) -> int:
        """Handles without a place."""
        return sum(len(rank.loose) for rank in self._ranks.values())

    @property
    def readable(self) -> bool:
        """True if the tree gets exactly the blocks that the engine can reuse.

        False after a rank had more handles than are kept, and while a group's blocks have no places: models
        of sliding windows only, whose stores do not name their blocks, or groups with different block sizes.
        """
        return not self._spilled and self.groups.readable

    @property
    def ends_known(self) -> bool:
        """True if the engine reports windows or states: ends then come from here and not from history."""
        return bool(self.groups.partial)

    def apply(self, rank: int, events: Iterable[EngineEvent]) -> None:
        """Apply the events of a data-parallel rank, in its order."""
        state = self._ranks.get(rank)
        if state is None:
            state = self._ranks[rank] = Rank()
            self._places.shared = self._places.shared or len(self._ranks) > 1
        for event in events:
            if isinstance(event, BlocksRemoved):
                for lane in self.groups.removed(event.group, event.medium):
                    self._places.removed(state, lane, event.hashes)
            elif isinstance(event, BlocksStored):
                self._places.stored(state, event)
            else:
                self._spilled.discard(rank)
                self._drop(state)
        if len(state.places) + len(state.loose) > self._handles_max:
            self._drop(state)
            self._spilled.add(rank)

    def lost(self, rank: int) -> None:
        """Forget a rank whose cache is empty or unknown: it was restarted, or events are missing.

        `changes` then begins with a `Forget`, and reports the other ranks' blocks again.
        """
        self._spilled.discard(rank)
        state = self._ranks.pop(rank, None)
        self._drop(state or Rank())

    def retell(self) -> None:
        """Let `changes` begin with a `Forget` and report everything that is held again."""
        self._drop(Rank())

    def held_blocks(self, path: bytes) -> int:
        """Tree blocks of a path that any rank holds from its beginning, as reported to the tree."""
        words = words_of(path)
        held = 0
        for first in range(len(words) - 1, -1, -1):
            for run in self._places.starts.get(words[first], {}).values():
                held = max(held, min(first + common_blocks(bytes(run.keys), path, first), self._reached(run)))
            if held > first and not self._places.shared:
                break
        return held

    def has_end(self, block_hash: int) -> bool:
        """True if the tree was told that the engine can go on behind a block."""
        return bool(self._ends.get(block_hash, 0) & 1)

    def changes(self, worker: str, at_us: int) -> list[TreeOp]:
        """Return the tree operations since the last call; none for a block that went and came again.

        Their log time is ``at_us``, raised above that of the call before.
        """
        if self.groups.version != self._judged:
            self._judged = self.groups.version
            self._judge_all()
        if not self._places.dirty and not self._emptied:
            return []
        self._reported_us = at_us = max(at_us, self._reported_us + 1)
        ops: list[TreeOp] = [Forget(worker, at_us)] if self._emptied else []
        self._emptied = False
        settled = self._settle()
        ops += self._trims(settled, worker, at_us)
        ops += self._news(settled, worker, at_us)
        for run, _ in reversed(settled):
            if run.number in self.runs:
                self._places.shrink(run)
        return ops

    def reconcile(
        self,
        tree: "PrefixTree",
        slot: int,
        worker: str,
        at_us: int,
        before_us: int,
        blocks_max: int = AUDIT_BLOCKS,
    ) -> list[TreeOp]:
        """Compare a part of a tree's belief about the worker with its blocks here (`radix.residency.audit`).

        Only for a residency that has followed all ranks from the beginning or since they were cleared, and a
        tree up to date with `changes`. Inserts get ``at_us``; uses and reports in the tree at or after
        ``before_us`` are spared.
        """
        return self._audit.step(tree, slot, worker, at_us, before_us, blocks_max)

    def ends_of(self, run: Run) -> set[int]:
        """Depths of a run's ends, in tree blocks."""
        ends: set[int] = set()
        valid = run.valid
        while valid:
            bit = valid & -valid
            valid ^= bit
            ends.add((run.start + bit.bit_length()) * self.groups.block_tokens // self.block_tokens)
        return ends - {0}

    def _drop(self, rank: Rank) -> None:
        """Remove a rank; the others' blocks are reported again."""
        self._places.drop(rank)
        self._ends, self._touched = {}, {}
        self._emptied = True

    # Consequences of the events.

    def _judge_all(self) -> None:
        for run in self.runs.values():
            run.changed(0, run.size - 1)
        self._places.dirty = dict(self.runs)

    def _settle(self) -> list[tuple[Run, int]]:
        """Find how far each run is reached and where its ends are, parents first.

        Returns the runs, each with the number of blocks reported to the tree before.
        """
        runs, groups = self.runs, self.groups
        size, back = groups.block_tokens, groups.reach_back - 1
        heap = [(run.start, run.number) for run in self._places.dirty.values()]
        heapify(heap)
        queued, self._places.dirty = self._places.dirty, {}
        settled: list[tuple[Run, int]] = []
        while heap:
            start, number = heappop(heap)
            run = runs[number]
            was, before, parent = run.reach, run.reported, run.parent
            low, high, chains = start + run.low, start + run.high, run.chains
            valid = self._judge(run, parent is None or parent.reach >= start, max(0, was - start))
            run.reported = run.first if run.reach < 0 else run.reach * size // self.block_tokens
            run.low, run.high = RUN_BLOCKS_MAX, -1
            settled.append((run, before))
            if groups.partial and valid != run.valid:
                self._flip(run, valid)
            if not run.kids or (run.fork <= low and was == run.reach):
                continue
            for kid_number, begin in run.kids.items():
                if (
                    (was >= begin) != (run.reach >= begin)
                    or low < begin <= high + back
                    or (
                        chains != run.chains
                        and carried(chains, begin - start) != carried(run.chains, begin - start)
                    )
                ):
                    kid = runs[kid_number]
                    kid.changed(0, max(0, back - 1))
                    if kid_number not in queued:
                        queued[kid_number] = kid
                        heappush(heap, (begin, kid_number))
        return settled

    def _judge(self, run: Run, reached: bool, known: int) -> int:
        """Find how far a run is reached; return the boundaries that the engine can go on from.

        Args:
            run: Its parent is judged.
            reached: The parent is reached up to the start of the run.
            known: Leading blocks that were reached before.
        """
        groups = self.groups
        if not reached:
            run.reach, run.chains = UNREACHED, ()
            return 0
        if not groups.tiered:
            blocks = solid(groups, run, min(run.low, known))
            run.reach = run.start + blocks
            return valid(groups, run, blocks)
        boundaries, run.chains = chained(groups, run)
        # The second chain of a model without windows or states has no gap: it is how far the engine gets.
        blocks = solid(groups, run, 0) if groups.partial else boundaries.bit_length()
        run.reach = run.start + blocks
        return boundaries

    def _flip(self, run: Run, valid: int) -> None:
        ends, size = self._ends, self.groups.block_tokens
        flipped = valid ^ run.valid
        run.valid = valid
        while flipped:
            bit = flipped & -flipped
            flipped ^= bit
            depth = (run.start + bit.bit_length()) * size // self.block_tokens
            if depth:
                block_hash = run.hash_before(depth)
                ends[block_hash] = ends.get(block_hash, 0) + (2 if valid & bit else -2)
                self._touched[block_hash] = run, depth

    def _reached(self, run: Run) -> int:
        """Tree blocks of the sequence of a run that the tree was told of."""
        while run.parent is not None and run.parent.reach < run.start:
            run = run.parent
        return run.reach * self.groups.block_tokens // self.block_tokens

    def _trims(self, settled: Iterable[tuple[Run, int]], worker: str, at_us: int) -> list[TreeOp]:
        """Report removals: of a run that broke off the first block, unless it is below another's.

        Includes blocks that came and went since the last call: the tree may believe them of a placed prompt.
        """
        ops: list[TreeOp] = []
        cuts: dict[int, int] = {}
        for run, before in settled:
            if run.shed:
                before = max(before, run.first + len(run.keys) // HASH_BYTES)
                run.shed = False
            cut = None if run.parent is None else cuts.get(run.parent.number)
            if cut is not None and cut < run.first:
                cuts[run.number] = cut
            elif run.reported < before:
                gone = run.path(before if self._places.shared else run.reported + 1)
                held = self.held_blocks(gone) if self._places.shared else run.reported
                if held < before:
                    ops.append(Trim(worker, gone[: (held + 1) * HASH_BYTES], at_us))
                if not self._places.shared:
                    cuts[run.number] = held
        return ops

    def _news(self, settled: Sequence[tuple[Run, int]], worker: str, at_us: int) -> list[TreeOp]:
        """Report additions: the end of each chain that grew, and the ends that came and went."""
        came, went = self._turned()
        ops: list[TreeOp] = []
        if self.groups.tiered and self.groups.partial:
            ops += self._no_junctions(settled, worker, at_us)
        for run, depths in went:
            reached = max(depths) if self._places.shared else self._reached(run)
            for last, count in ranges(depth for depth in depths if depth <= reached):
                ops.append(EndGone(worker, run.path(last), at_us, count))
        reported: dict[int, int] = {}
        for run, depths in came:
            for last, count in ranges(depths):
                ops.append(Insert(worker, run.path(last), at_us, end=True, ends=count))
                reported[run.number] = last
        for run, before in reversed(settled):
            if run.reported <= before:
                continue
            if reported.get(run.number, 0) < run.reported:
                ops.append(Insert(worker, run.path(run.reported), at_us, end=False))
            if run.parent is not None:
                above = run.parent.number
                reported[above] = max(reported.get(above, 0), run.first)
        return ops

    def _no_junctions(self, settled: Iterable[tuple[Run, int]], worker: str, at_us: int) -> list[TreeOp]:
        """Take back the ends that placements expected where a prompt left the held blocks (`radix.windows`).

        An engine keeps a window there only if its device held all before: below it there are no junctions.
        """
        left = {
            run.hash_before(before): (run, before) for run, before in settled if run.reported > before > 0
        }
        return [
            EndGone(worker, run.path(before), at_us)
            for block_hash, (run, before) in left.items()
            if self._ends.get(block_hash, 0) < 2
        ]

    def _turned(self) -> tuple[list[tuple[Run, list[int]]], list[tuple[Run, list[int]]]]:
        """Depths of the ends that came, and of those that went, since the last report, by run."""
        came: dict[int, tuple[Run, list[int]]] = {}
        went: dict[int, tuple[Run, list[int]]] = {}
        for block_hash, (run, depth) in self._touched.items():
            state = self._ends[block_hash]
            if state == 0 or state == 1:
                del self._ends[block_hash]
                if state:
                    went.setdefault(run.number, (run, []))[1].append(depth)
            elif not state & 1:
                self._ends[block_hash] = state | 1
                came.setdefault(run.number, (run, []))[1].append(depth)
        self._touched = {}
        return list(came.values()), list(went.values())
