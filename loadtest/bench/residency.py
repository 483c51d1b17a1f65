"""What it costs to follow an engine's KV events: ``python -m loadtest.bench.residency``.

An engine's cache is full of sessions that share a system prompt. Each turn of one stores a prefill in chunks
and a few decoded blocks, and the blocks that must go for it are removed one event each, the deepest of the
least recently used session first, as vLLM does it. What is measured is `radix.Residency` alone: events are
made before, and nothing is decoded. The tree is told every 100 events (half a second at 200 events/s).

    dense          one group, blocks of 16 tokens, tree blocks of the same size
    dense, 256     the same for a tree with blocks of 256 tokens
    hybrid         a full group and three sliding windows that keep the ends of prompts (W = 128)
    hybrid, all    the same, the windows keep everything and lose what is oldest

*ops* and *op bytes* are per 1,000 events: what goes to the log. Memory is the growth of the resident set for
another 200,000 blocks, in a process of its own.

CPU time is ``process_time_ns``, the least of several runs; run it on a quiet machine.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from radix import BlocksRemoved, BlocksStored, EngineEvent, PrefixTree, Residency, apply

BLOCK_TOKENS = 16
CHUNK_BLOCKS = 64
SYSTEM_BLOCKS = 96
WINDOW_TOKENS = 128
TOLD_EVERY = 100
SESSIONS = 400


@dataclass(frozen=True, slots=True)
class Mix:
    """One kind of engine."""

    name: str
    tree_tokens: int
    windows: int = 0
    keeps_all: bool = False


MIXES = (
    Mix("dense", 16),
    Mix("dense, 256", 256),
    Mix("hybrid", 16, windows=3),
    Mix("hybrid, 256", 256, windows=3),
    Mix("hybrid, all", 16, windows=3, keeps_all=True),
)


@dataclass(slots=True)
class Engine:
    """A cache that is always full.

    Attributes:
        mix: What it is like.
        capacity: Blocks of the full group.
        random: Draws tokens and turns.
    """

    mix: Mix
    capacity: int
    random: Random
    sessions: dict[int, list[int]] = field(default_factory=dict)
    windows: dict[int, list[int]] = field(default_factory=dict)
    system: list[int] = field(default_factory=list)
    held: int = 0
    handles: int = 0

    def events(self, count: int) -> list[EngineEvent]:
        """The next events, at least so many."""
        events: list[EngineEvent] = []
        while len(events) < count:
            events += self._turn()
        return events

    def fill(self) -> list[EngineEvent]:
        """Events until it is full."""
        events: list[EngineEvent] = []
        while self.held < self.capacity - 10 * CHUNK_BLOCKS:
            events += self._turn()
        return events

    def _turn(self) -> Iterator[EngineEvent]:
        if not self.system:
            yield from self._store(self.system, SYSTEM_BLOCKS)
        number = self.random.randrange(SESSIONS)
        session = self.sessions.pop(number, None)
        if session is None or len(session) > 1500:
            if session:
                yield from self._evict(number, session, len(session))
            session = [self.system[-1]]
        self.sessions[number] = session
        blocks = self.random.choice((4, 16, 64, 128))
        yield from self._room(blocks + 8, number)
        while blocks:
            chunk = min(blocks, CHUNK_BLOCKS)
            blocks -= chunk
            yield from self._store(session, chunk)
            yield from self._window(number, session, chunk if self.mix.keeps_all else 0)
        yield from self._window(number, session, 0 if self.mix.keeps_all else WINDOW_TOKENS // BLOCK_TOKENS)
        for _ in range(self.random.randrange(8)):
            yield from self._store(session, 1)

    def _room(self, blocks: int, but: int) -> Iterator[EngineEvent]:
        while self.held + blocks > self.capacity:
            oldest = next(number for number in self.sessions if number != but)
            session = self.sessions[oldest]
            yield from self._evict(oldest, session, min(len(session) - 1, blocks))
            if len(session) == 1:
                del self.sessions[oldest]

    def _evict(self, number: int, session: list[int], blocks: int) -> Iterator[EngineEvent]:
        windows = self.windows.pop(number, [])
        for handle in windows:
            for group in range(1, self.mix.windows + 1):
                yield BlocksRemoved([handle], group, "GPU")
        for _ in range(min(blocks, len(session) - 1)):
            self.held -= 1
            yield BlocksRemoved([session.pop()], 0, "GPU")

    def _store(self, session: list[int], blocks: int) -> Iterator[EngineEvent]:
        parent = session[-1] if session else None
        hashes = [self.random.getrandbits(64) for _ in range(blocks)]
        ids = [self.random.randrange(150_000) for _ in range(blocks * BLOCK_TOKENS)]
        session += hashes
        self.held += blocks
        yield BlocksStored(hashes, parent, ids, BLOCK_TOKENS, 0, "full_attention", None, "GPU")

    def _window(self, number: int, session: list[int], blocks: int) -> Iterator[EngineEvent]:
        """The windows keep the last blocks of a session; before, the oldest of those it kept go."""
        if not blocks or not self.mix.windows:
            return
        kept = self.windows.setdefault(number, [])
        gone, kept[:] = (
            (kept, []) if not self.mix.keeps_all else (kept[: max(0, len(kept) - 256)], kept[-256:])
        )
        for handle in gone:
            for group in range(1, self.mix.windows + 1):
                yield BlocksRemoved([handle], group, "GPU")
        hashes = session[-blocks:]
        kept += hashes
        ids = [0] * (BLOCK_TOKENS * (blocks + (not self.mix.keeps_all)))
        for group in range(1, self.mix.windows + 1):
            yield BlocksStored(hashes, None, ids, BLOCK_TOKENS, group, "sliding_window", WINDOW_TOKENS, "GPU")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.residency", description="Cost of following KV events."
    )
    parser.add_argument("--events", type=int, default=40_000, help="events of each mix (default: 40,000)")
    parser.add_argument(
        "--blocks", type=int, default=60_000, help="blocks the engine holds (default: 60,000)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", metavar="MIX", help="only bytes per block, of one mix")
    given = parser.parse_args()
    if given.memory:
        print(f"{_bytes_per_block(next(mix for mix in MIXES if mix.name == given.memory)):.0f}")
        return
    print("mix            µs/event:  apply  changes  reconcile/call   ops/1,000  bytes/1,000   bytes/block")
    for mix in MIXES:
        rows = [_measured(mix, given.events, given.blocks) for _ in range(given.repeats)]
        apply_us, changes_us, audit_us = (min(row[at] for row in rows) for at in range(3))
        command = [sys.executable, "-m", "loadtest.bench.residency", "--memory", mix.name]
        memory = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
        print(
            f"{mix.name:<24} {apply_us:>6.2f} {changes_us:>8.2f} {audit_us:>15.0f}"
            f" {rows[0][3]:>11.0f} {rows[0][4]:>12.0f} {memory.stdout.strip():>13}"
        )


def _measured(mix: Mix, count: int, blocks: int) -> tuple[float, float, float, float, float]:
    engine = Engine(mix, blocks, Random(1))
    residency = Residency(mix.tree_tokens, lambda lora, salt: 1)
    tree = PrefixTree(block_tokens=mix.tree_tokens)
    residency.apply(0, engine.fill())
    for op in residency.changes("w", 1):
        apply(tree, op, 0)
    events = engine.events(count)
    apply_ns = changes_ns = audit_ns = ops = op_bytes = audits = 0
    gc.collect()
    for at in range(0, len(events), TOLD_EVERY):
        some = events[at : at + TOLD_EVERY]
        began_ns = time.process_time_ns()
        residency.apply(0, some)
        applied_ns = time.process_time_ns()
        told = residency.changes("w", at + 2)
        told_ns = time.process_time_ns()
        apply_ns += applied_ns - began_ns
        changes_ns += told_ns - applied_ns
        ops += len(told)
        op_bytes += len(msgspec.msgpack.encode(told))
        for op in told:
            apply(tree, op, 0)
        if at // TOLD_EVERY % 20 == 0:
            began_ns = time.process_time_ns()
            assert not residency.reconcile(tree, 0, "w", at + 2, at)
            audit_ns += time.process_time_ns() - began_ns
            audits += 1
    return (
        apply_ns / len(events) / 1e3,
        changes_ns / len(events) / 1e3,
        audit_ns / audits / 1e3,
        ops / len(events) * 1e3,
        op_bytes / len(events) * 1e3,
    )


def _bytes_per_block(mix: Mix) -> float:
    residency = Residency(mix.tree_tokens, lambda lora, salt: 1)
    random = Random(1)
    for at, engine in enumerate(Engine(mix, 100_000, random) for _ in range(4)):
        if at == 2:
            before, blocks = _resident(), residency.blocks
        residency.apply(0, engine.fill())
        residency.changes("w", at + 1)
    return (_resident() - before) / (residency.blocks - blocks)


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
