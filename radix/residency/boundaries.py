"""Boundaries of a run that an engine can go on from, as bits: bit i is the boundary behind block i.

Without memory below the device: where all blocks before are held, and every window or state.

An engine with host memory (vLLM 0.32, ``v1/core/sched/scheduler.py`` and ``OffloadingConnectorScheduler``;
SGLang's radix tree is of that shape anyway) takes the longest prefix that its device alone can go on from,
and asks the tiers below for the following blocks. So they must hold

    every block from there on, also those that the device has behind a gap;
    each window from there on, or a whole one of their own: windows of both are not put together.

Each of these is a chain: a boundary is in it if the device can go on from there, or if the boundary before is
in it and the block between is held below. A chain over a run is one addition of integers, whose carries run
along the held blocks. `Run.chains` keeps them for the runs that leave it.

An engine with linear states begins at the last block of its device, although the state may lie before it
(``get_computed_blocks_for_connector``). The blocks between are not promised.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radix.residency.groups import Groups
    from radix.residency.runs import Run

Bits = Callable[["Run"], int]


def solid(groups: "Groups", run: "Run", at: int) -> int:
    """Leading blocks of a run that all demanding groups hold on any tier; ``at`` are known to be."""
    if not groups.full:
        return run.top()
    missing = ~_all_of((group.bits for group in groups.full), run) >> at
    return at + (missing & -missing).bit_length() - 1


def valid(groups: "Groups", run: "Run", reached: int) -> int:
    """Boundaries within the leading blocks that are reached; for an engine without tiers."""
    if reached <= 0:
        return 0
    return _windows(groups, run, (1 << reached) - 1, [group.bits for group, _ in groups.partial])


def chained(groups: "Groups", run: "Run") -> tuple[int, tuple[int, ...]]:
    """Return the boundaries of an engine with tiers, and the run's chains; see the module.

    The chains of the parent are up to date. The first is the device's part from the beginning, the second
    the lower tiers' part from the last boundary of the device, and then one for each partial group.
    """
    full, partial, whole = groups.full, groups.partial, (1 << run.size) - 1
    parent = run.parent
    device = _all_of((group.device_bits for group in full), run) & whole
    held = carried(parent.chains, run.start - parent.start) if parent is not None else -1
    first = _chain(0, device, held & 1, whole)
    alone = _windows(groups, run, first, [group.device_bits for group, _ in partial])
    below = _all_of((group.below_bits for group in full), run) & whole
    second = _chain(alone, below, held >> 1 & 1, whole)
    chains, reachable = [first, second], second
    for number, ((group, _), need) in enumerate(zip(partial, groups.needs_below, strict=True), 2):
        windows = group.below_bits(run) & whole
        chains.append(_chain(alone, windows, held >> number & 1, whole))
        reachable &= chains[-1] | _row(run, group.below_bits, need)
    if groups.has_states:
        reachable &= ~first
    return alone | reachable, tuple(chains)


def carried(chains: tuple[int, ...], depth: int) -> int:
    """Bits that a run carries to another that leaves it behind ``depth`` of its blocks, one per chain."""
    bits = 0
    for number, chain in enumerate(chains):
        bits |= (chain >> (depth - 1) & 1) << number
    return bits


def _chain(made: int, held: int, carry: int, whole: int) -> int:
    """Boundaries that are made, or follow one of the chain over a block that is held.

    The sum of ``made | held`` and ``made`` carries out of each such bit.
    """
    either = made | held
    return (either ^ made ^ (either + made + carry)) >> 1 & whole


def _all_of(bits_of: Iterable[Bits], run: "Run") -> int:
    """Blocks that all groups hold; all blocks without groups."""
    bits = -1
    for each in bits_of:
        bits &= each(run)
    return bits


def _windows(groups: "Groups", run: "Run", boundaries: int, bits_of: Iterable[Bits]) -> int:
    """Those of the boundaries before which every partial group holds its window or state."""
    for (_, need), bits in zip(groups.partial, bits_of, strict=True):
        boundaries &= _row(run, bits, need)
    return boundaries


def _row(run: "Run", bits_of: Bits, need: int) -> int:
    """Boundaries before which a group holds as many blocks in a row as are needed."""
    windows = bits_of(run)
    if need > 1:
        windows = windows << (need - 1) | _before(run, bits_of, need - 1)
        row = 1
        while row < need:
            step = min(row, need - row)
            windows &= windows >> step
            row += step
    return windows


def _before(run: "Run", bits_of: Bits, count: int) -> int:
    """Bits of the last blocks before a run that a group holds; set where the sequence has not begun."""
    bits, missing = 0, count
    while missing:
        start, parent = run.start, run.parent
        if parent is None:
            return bits | ((1 << missing) - 1)
        taken = min(missing, start - parent.start)
        missing -= taken
        bits |= (bits_of(parent) >> (start - parent.start - taken) & ((1 << taken) - 1)) << missing
        run = parent
    return bits
