"""Boundaries behind the blocks that the gateway knows: the ends of prompts' last blocks, and of answers.

A prompt ends inside a block, and the gateway never sees the decoded tokens after it as blocks. So where
the engine can go on after an answer has no depth on any path yet:

    prompt   [b1][b2][b3][b       an end of SGLang's lies here ^, or behind the answer, not at b3
    answer                aaaaaaaaaaaaaaaaaaaa
    next     [b1][b2][b3][b4][b5][b6][b7]       continues both: so many blocks behind b3

A *reach* says of a worker: a prompt that parts from everything known at this block probably continues what
was there, and the engine goes on from so many blocks behind it. A reach rests on observed prompts that
continued here (`policies.dispatch.continuations`).

Reaches are remembered by the hash of the last known block, the newest ones only, and are in no snapshot: a
newcomer undershoots until the next answer.
"""

from collections.abc import Iterator

REACHES_MAX = 65_536
"""Most blocks with a reach: one for each conversation that goes on, 25 MB."""

WORKERS_MAX = 16
"""Most workers with a reach behind one block: a conversation is at few, and each costs a step of a match."""


class Reaches:
    """Reaches of all workers, by the hash of the block that they lie behind."""

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind: dict[int, dict[int, tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._behind)

    def note(self, slot: int, block_hash: int, at_us: int, blocks: int) -> None:
        """Note a worker's reach in blocks, >= 0; the newest one counts, of equally new ones the longest."""
        known = self._behind.pop(block_hash, None) or {}
        known[slot] = max(known.get(slot, (-1, 0)), (at_us, blocks))
        if len(known) > WORKERS_MAX:
            del known[min(known, key=lambda other: (known[other], other))]
        self._behind[block_hash] = known  # so that those noted last are last
        if len(self._behind) > REACHES_MAX:
            del self._behind[next(iter(self._behind))]

    def behind(self, block_hash: int) -> Iterator[tuple[int, int, int]]:
        """Slot, log time and blocks of each worker's reach behind a block."""
        for slot, (at_us, blocks) in self._behind.get(block_hash, {}).items():
            yield slot, at_us, blocks

    def gone(self, slot: int, block_hash: int, before_us: int) -> None:
        """Remove a worker's reach behind a block if it was noted strictly before a log time."""
        known = self._behind.get(block_hash)
        if known is not None and slot in known and known[slot][0] < before_us:
            del known[slot]
            if not known:
                del self._behind[block_hash]

    def drop(self, slot: int) -> None:
        """Remove all reaches of a worker; costs a step for each block with one."""
        for block_hash in [block_hash for block_hash, known in self._behind.items() if slot in known]:
            self.gone(slot, block_hash, 1 << 62)
