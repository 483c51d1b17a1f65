"""Finds the places of engines' blocks in runs (`radix.residency.runs`), and the lanes that hold them.

    with a parent and its tokens     behind the parent, in a run that ends there or in a new one
    otherwise, with a known place    there: another group or medium, or once more
    otherwise                        loose, until a report gives its place

`radix.residency` derives reach, ends and reports to the tree; here runs are only marked as changed.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from radix.blocks import HASH_BYTES
from radix.residency.engine_events import BlocksStored, Handle
from radix.residency.groups import IGNORED, Groups
from radix.residency.runs import PLACE_MASK, PLACE_SHIFT, RUN_BLOCKS_MAX, TOKEN_BYTES, Rank, Run


class Places:
    """The runs of one worker.

    Args:
        block_tokens: Tokens of the tree's blocks.
        root_of: See `radix.residency.Residency`.

    Attributes:
        groups: The engine's groups.
        runs: By number.
        dirty: Runs that changed since the last report to the tree.
        starts: Runs by the hash of the first tree block that they complete.
        shared: True if several runs may stand for one block of the tree: there are ranks, or sizes that do
            not divide, or two names for one root.
    """

    def __init__(self, block_tokens: int, root_of: Callable[[str, str], int | None]) -> None:
        self.block_tokens = block_tokens
        self.groups = Groups()
        self.runs: dict[int, Run] = {}
        self.dirty: dict[int, Run] = {}
        self.starts: dict[int, dict[int, Run]] = {}
        self.shared = False
        self._root_of = root_of
        self._numbers = 0

    def stored(self, rank: Rank, event: BlocksStored) -> None:
        """Apply a store."""
        hashes = event.hashes
        lane = self.groups.lane(event)
        if lane == IGNORED or not hashes:
            return
        size = event.block_tokens
        if (
            size <= 0
            or len(event.token_ids) != size * len(hashes)
            or (self.groups.block_tokens or size) != size
            or not self._place(rank, event, lane)
        ):
            self._hold(rank, hashes, lane)

    def _place(self, rank: Rank, event: BlocksStored, lane: int) -> bool:
        """Store blocks that follow their parent; False if that is not known, and nothing was done."""
        places, hashes = rank.places, event.hashes
        run: Run | None = None
        depth = root = 0
        readable, salt = _readable(event)
        if event.parent is not None:
            place = places.get(event.parent)
            if place is None:
                return False
            run = self.runs[place >> PLACE_SHIFT]
            depth = run.start + (place & PLACE_MASK) + 1
        elif readable:
            chain_root = self._root_of(event.lora or "", salt)
            if chain_root is None:
                return False
            root = chain_root
        if not readable:
            return False
        data = b""
        if not all(map(places.__contains__, hashes)):
            try:
                data = array("I", event.token_ids).tobytes()
            except (OverflowError, TypeError):
                return False
            if len(set(hashes)) < len(hashes):
                return False
        if not self.groups.block_tokens:
            self.groups.settle(event.block_tokens)
            self.shared = self.shared or self.block_tokens % event.block_tokens > 0
        step = event.block_tokens * TOKEN_BYTES
        at = 0
        while at < readable:
            stop = at
            while stop < readable and hashes[stop] not in places:
                stop += 1
            if stop > at:
                run = self._add(rank, lane, run, depth, root, hashes[at:stop], data[at * step : stop * step])
                depth = run.start + run.size
                at = stop
            else:
                self._hold(rank, (hashes[at],), lane)
                place = places[hashes[at]]
                run = self.runs[place >> PLACE_SHIFT]
                depth = run.start + (place & PLACE_MASK) + 1
                at += 1
        if readable < len(hashes):
            self._hold(rank, hashes[readable:], lane)
        return True

    def _add(
        self,
        rank: Rank,
        lane: int,
        run: Run | None,
        depth: int,
        root: int,
        hashes: Sequence[Handle],
        tokens: bytes,
    ) -> Run:
        """Place new blocks behind ``depth``; return the run where they end."""
        step = self.groups.block_tokens * TOKEN_BYTES
        at = 0
        while True:
            if run is None or depth < run.start + run.size or run.size == RUN_BLOCKS_MAX:
                run = self._begin(rank, run, depth, root)
            count = min(len(hashes) - at, RUN_BLOCKS_MAX - run.size)
            base, unnamed = run.size, not run.keys
            run.lanes[lane] = run.lanes.get(lane, 0) | ((1 << count) - 1) << base
            run.grow(tokens[at * step : (at + count) * step], count, self.block_tokens)
            if unnamed and run.keys:
                self._note_start(run)
            place = run.number << PLACE_SHIFT | base
            added = hashes[at : at + count]
            rank.places.update(zip(added, range(place, place + count), strict=True))
            run.changed(base, base + count - 1)
            self.dirty[run.number] = run
            at += count
            depth = run.start + run.size
            if rank.loose and not rank.loose.keys().isdisjoint(added):
                for handle in added:
                    for held in rank.loose.pop(handle, ()):
                        self._hold(rank, (handle,), held)
            if at == len(hashes):
                self.groups.owner(lane).placed = True
                return run

    def _begin(self, rank: Rank, parent: Run | None, start: int, root: int) -> Run:
        size = self.groups.block_tokens
        first = start * size // self.block_tokens
        above = root if parent is None else parent.hash_before(first)
        self._numbers += 1
        run = Run(self._numbers, rank, parent, start, first, above, bytearray(), {}, reported=first)
        if size % self.block_tokens:
            run.tokens = bytearray()
            if parent is not None:
                assert parent.tokens is not None
                skipped = parent.first * self.block_tokens
                begin, end = first * self.block_tokens - skipped, start * size - skipped
                run.tokens += parent.tokens[begin * TOKEN_BYTES : end * TOKEN_BYTES]
        self.runs[run.number] = run
        if parent is not None:
            if parent.kids is None:
                parent.kids = {}
            parent.kids[run.number] = start
            parent.fork = max(parent.fork, start)
        return run

    def _hold(self, rank: Rank, hashes: Iterable[Handle], lane: int) -> None:
        for handle in hashes:
            place = rank.places.get(handle)
            if place is None:
                rank.loose.setdefault(handle, []).append(lane)
                continue
            run = self.runs[place >> PLACE_SHIFT]
            at = place & PLACE_MASK
            bits = run.lanes.get(lane, 0)
            if bits >> at & 1:
                rank.again[handle, lane] = rank.again.get((handle, lane), 0) + 1
                continue
            run.lanes[lane] = bits | 1 << at
            if run.ghosts:
                run.ghosts.pop(at, None)
            self.groups.owner(lane).placed = True
            run.changed(at, at)
            self.dirty[run.number] = run

    def removed(self, rank: Rank, lane: int, hashes: Iterable[Handle]) -> None:
        """Take one copy of each block from a lane."""
        places, runs, again, dirty = rank.places, self.runs, rank.again, self.dirty
        full = self.groups.full
        sheds = not full or self.groups.owner(lane) in full
        for handle in hashes:
            place = places.get(handle)
            if place is None:
                held = rank.loose.get(handle)
                if held is not None and lane in held:
                    held.remove(lane)
                    if not held:
                        del rank.loose[handle]
                continue
            run = runs[place >> PLACE_SHIFT]
            at = place & PLACE_MASK
            lanes = run.lanes
            bits = lanes.get(lane, 0)
            bit = 1 << at
            if not bits & bit:
                continue
            if again:
                copies = again.pop((handle, lane), 0)
                if copies:
                    if copies > 1:
                        again[handle, lane] = copies - 1
                    continue
            lanes[lane] = bits ^ bit
            run.shed = run.shed or sheds
            for others in lanes.values():
                if others & bit:
                    break
            else:
                if run.ghosts is None:
                    run.ghosts = {}
                run.ghosts[at] = handle
            if at < run.low:
                run.low = at
            if at > run.high:
                run.high = at
            dirty[run.number] = run

    def drop(self, rank: Rank) -> None:
        """Remove a rank, and mark the other runs as not yet reported."""
        rank.places, rank.loose, rank.again = {}, {}, {}
        self.runs = {number: run for number, run in self.runs.items() if run.rank is not rank}
        self.dirty, self.starts = dict(self.runs), {}
        for run in self.runs.values():
            run.reported = run.first
            run.valid = 0
            run.changed(0, run.size - 1)
            if run.keys:
                self._note_start(run)

    def _note_start(self, run: Run) -> None:
        starts = self.starts.setdefault(run.hash_before(run.first + 1), {})
        starts[run.number] = run
        self.shared = self.shared or len(starts) > 1

    def shrink(self, run: Run) -> None:
        """Forget the end of a run that no lane holds, and the run if nothing is left; then so above it."""
        while True:
            top = run.top()
            if top < run.size:
                self._cut(run, top)
            if run.size or run.kids:
                return
            del self.runs[run.number]
            parent = run.parent
            if parent is None:
                return
            assert parent.kids is not None
            del parent.kids[run.number]
            if not self.groups.full:
                parent.changed(parent.size - 1, parent.size - 1)
                self.dirty[parent.number] = parent
            run = parent

    def _cut(self, run: Run, size: int) -> None:
        assert run.ghosts is not None
        for at in [at for at in run.ghosts if at >= size]:
            del run.rank.places[run.ghosts.pop(at)]
        run.size = size
        keys = (run.start + size) * self.groups.block_tokens // self.block_tokens - run.first
        if run.keys and not keys:
            first_hash = run.hash_before(run.first + 1)
            del self.starts[first_hash][run.number]
            if not self.starts[first_hash]:
                del self.starts[first_hash]
        del run.keys[keys * HASH_BYTES :]
        if run.tokens is not None:
            tokens = (run.start + size) * self.groups.block_tokens - run.first * self.block_tokens
            del run.tokens[tokens * TOKEN_BYTES :]


def _readable(event: BlocksStored) -> tuple[int, str]:
    """Number of leading blocks that consist of tokens, an adapter and a salt only; and the salt."""
    salt = event.salt or ""
    if event.extra_keys is None:
        return len(event.hashes), salt
    for at, keys in enumerate(islice(event.extra_keys, len(event.hashes))):
        if not keys:
            continue
        rest = keys[1:] if keys[0] == event.lora else keys
        if not rest:
            continue
        if at == 0 and event.parent is None and len(rest) == 1 and isinstance(rest[0], str):
            salt = rest[0]
            continue
        return at, salt
    return len(event.hashes), salt
