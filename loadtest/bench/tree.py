"""What the prefix tree costs: ``python -m loadtest.bench.tree``.

Three tables. CPU time of one prompt, from its canonical text to the tree (parsing JSON is
measured by ``loadtest.bench.identity``): *identify* is `radix.chain_bytes`, *match* and
*insert* are the tree's. Some workers hold a part of the prompt, either *level*, all up to the
middle, or *staggered*, each a block or more deeper than the one before, which makes as many
segments as there can be. Every prompt leaves the common path after three quarters, so that each
insert makes new blocks.

Then a full tree, where each insert evicts as many blocks as it brings; and memory, as the
growth of the resident set from one to two million blocks, in a process of its own for each
length of run, since that growth is what an operator pays for.

CPU time is ``process_time_ns``, medians; run it on a quiet machine.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import msgspec

from radix import BLOCK_BYTES, BLOCK_TOKENS, PrefixTree, chain_bytes, root_hash

REPEATS = 31
"""Odd, so that the median is a measurement."""

SYSTEM_PROMPT = chain_bytes(bytes(8), 1, 1)
"""Eight blocks that all sessions of a full tree share."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.tree", description="Cost of the prefix tree."
    )
    parser.add_argument("--memory", type=int, metavar="RUN", help="only bytes per block, for runs this long")
    run_blocks = parser.parse_args().memory
    if run_blocks:
        print(f"{_bytes_per_block(run_blocks):.1f}")
        return
    gc.disable()
    _print_cost()
    _print_full()
    _print_snapshot()
    _print_memory()


def _print_cost() -> None:
    print(" tokens  workers     depths  identify    match   insert      sum  µs CPU")
    for tokens in (1_000, 16_000, 128_000, 1_000_000):
        text = os.urandom(tokens * BLOCK_BYTES // BLOCK_TOKENS)
        path = chain_bytes(text, 1)
        identify_us = _median_us(partial(chain_bytes, text), range(REPEATS))
        for workers, depths in product((1, 100, 1_000), ("level", "staggered")):
            if (workers, depths) != (1, "staggered"):
                match_us, insert_us = _match_and_insert_us(path, workers, staggered=depths == "staggered")
                sum_us = identify_us + match_us + insert_us
                print(
                    f"{tokens:>7} {workers:>8} {depths:>10} {identify_us:>9.1f} {match_us:>8.1f}"
                    f" {insert_us:>8.1f} {sum_us:>8.1f}"
                )


def _match_and_insert_us(path: bytes, workers: int, *, staggered: bool) -> tuple[float, float]:
    tree = _shared_tree(path, workers, staggered=staggered)
    prompts = [_leave(path, number) for number in range(REPEATS)]

    def insert(number: int) -> None:
        tree.insert(number * 7 % workers, prompts[number], 2 + number, end=False)

    match_us = _median_us(lambda number: tree.match(prompts[number]).matched, range(REPEATS))
    return match_us, _median_us(insert, range(REPEATS))


def _print_full() -> None:
    tree = PrefixTree(blocks_max=200_000)
    _fill(tree, 199_000, 64, workers=100)
    session = partial(_session, tree, run_blocks=64, workers=100)
    _median_us(session, range(300_000, 400_000, 64))
    bounded_us = _median_us(session, range(400_000, 500_000, 64))
    for slot in range(100):
        tree.set_capacity(slot, 1_900)
    both_us = _median_us(session, range(500_000, 600_000, 64))
    print(f"\n64 new blocks into a full tree: {bounded_us:.1f} µs, and into a full worker: {both_us:.1f} µs")


def _print_snapshot() -> None:
    tree = PrefixTree()
    _fill(tree, 1_000_000, 64, workers=100)
    workers = range(100)
    dump_ms = _median_us(lambda _: tree.dump(workers), range(3)) / 1e3
    snapshot = tree.dump(workers)
    load_ms = _median_us(lambda _: PrefixTree().load(snapshot, workers), range(3)) / 1e3
    size_mb = len(msgspec.msgpack.encode(snapshot)) / 1e6
    print(f"snapshot of 1,000,000 blocks: dump {dump_ms:.0f} ms, load {load_ms:.0f} ms, {size_mb:.1f} MB")


def _print_memory() -> None:
    print("\nbytes per block from 1,000,000 to 2,000,000 blocks, 100 workers:")
    for run_blocks in (64, 16, 4):
        command = [sys.executable, "-m", "loadtest.bench.tree", "--memory", str(run_blocks)]
        measured = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
        print(f"  runs of {run_blocks:>2} blocks {float(measured.stdout):>8.1f}")


def _shared_tree(path: bytes, workers: int, *, staggered: bool) -> PrefixTree:
    """A tree in which every worker holds a part of a path."""
    tree = PrefixTree()
    blocks = len(path) // 8
    for slot in range(workers):
        held = max(1, (slot + 1) * blocks // workers) if staggered else max(1, blocks // 2)
        tree.insert(slot, path[: held * 8], 1, end=False)
    return tree


def _leave(path: bytes, number: int) -> bytes:
    """The first three quarters of a path, then blocks of its own."""
    kept = len(path) // 8 * 3 // 4 * 8
    return path[:kept] + chain_bytes(bytes(len(path) - kept), root_hash(number), 8)


def _bytes_per_block(run_blocks: int) -> float:
    tree = PrefixTree()
    _fill(tree, 1_000_000, run_blocks, workers=100)
    before = _resident_bytes()
    blocks = tree.blocks
    _fill(tree, 2_000_000, run_blocks, workers=100)
    return (_resident_bytes() - before) / (tree.blocks - blocks)


def _fill(tree: PrefixTree, blocks: int, run_blocks: int, workers: int) -> None:
    """Add sessions of one run each until the tree holds this many blocks, or is full."""
    inserted = tree.blocks
    while inserted < blocks:
        _session(tree, inserted, run_blocks, workers)
        inserted += run_blocks


def _session(tree: PrefixTree, number: int, run_blocks: int, workers: int) -> None:
    """Insert a new session below the shared system prompt, at a time that grows with its number."""
    path = SYSTEM_PROMPT + os.urandom(run_blocks * 8)
    tree.insert(number // run_blocks % workers, path, 1_760_000_000_000_000 + number * 1000, end=False)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _median_us(call: Callable[[int], object], numbers: Iterable[int]) -> float:
    """Median CPU time of a call, in microseconds."""
    spent: list[int] = []
    for number in numbers:
        start = time.process_time_ns()
        call(number)
        spent.append(time.process_time_ns() - start)
    return median(spent) / 1e3


if __name__ == "__main__":
    main()
