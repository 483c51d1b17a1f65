"""CPU from the bytes of a prompt to the prefix tree, and memory of the tree.

    python -m loadtest.bench.tree [--parsing]

CPU of one prompt: *identify* is `radix.chain_bytes` of its canonical text, *match* and *insert* are the
tree's. Workers hold the prompt *level*, up to the middle, or *staggered*, each at least a block deeper than
the one before (the most segments possible). Every prompt leaves the common path after three quarters.

Then a full tree, where each insert evicts as many blocks as it brings; and memory, the growth of the resident
set from one to two million blocks, in a process of its own for each length of run.

With ``--parsing`` request bodies are parsed and identified: ``code`` is Python source with escapes, ``plain``
has none, ``agent`` has 40 tools and many turns. CPU times are medians.
"""

import argparse
import gc
import inspect
import json
import os
import random
from functools import partial
from itertools import product
from statistics import median

import msgspec

from loadtest.bench.costs import apart, mean_us, median_us
from loadtest.bench.process_tree import rss_bytes
from radix import BLOCK_BYTES, BLOCK_TOKENS, PrefixTree, chain_bytes, root_hash
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier

REPEATS = 31
"""Odd, so that the median is a measurement."""

SYSTEM_PROMPT = chain_bytes(bytes(8), 1, 1)
"""Eight blocks that all sessions of a full tree share."""

WORDS = {
    "plain": ["the ", "quick ", "brown ", "fox ", "jumps ", "over "],
    "cjk": ["漢字", "かな", "、", "です", "x "],
}
KINDS = ("plain", "code", "cjk")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.tree", description="Cost of parsing and of the prefix tree."
    )
    parser.add_argument("--parsing", action="store_true", help="only parsing")
    parser.add_argument("--repeats", type=int, default=7, help="of parsing")
    options = parser.parse_args()
    if options.parsing:
        print(f"{'request':32} {'body bytes':>12} {'CPU us':>12}")
        for name, (endpoint, body) in bodies().items():
            print(f"{name:32} {len(body):12,} {parsing_us(endpoint, body, options.repeats):12,.1f}")
        return
    gc.disable()
    _print_cost()
    _print_full()
    _print_snapshot()
    print("\nbytes per block from 1,000,000 to 2,000,000 blocks, 100 workers:")
    for run_blocks in (64, 16, 4):
        print(f"  runs of {run_blocks:>2} blocks {apart(bytes_per_block, run_blocks):>8.1f}")


def _print_cost() -> None:
    print(" tokens  workers     depths  identify    match   insert      sum  µs CPU")
    for tokens in (1_000, 16_000, 128_000, 1_000_000):
        text = os.urandom(tokens * BLOCK_BYTES // BLOCK_TOKENS)
        path = chain_bytes(text, 1)
        identify_us = median_us(partial(chain_bytes, text), range(REPEATS))
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

    match_us = median_us(lambda number: tree.match(prompts[number]).matched, range(REPEATS))
    return match_us, median_us(insert, range(REPEATS))


def _print_full() -> None:
    tree = PrefixTree(blocks_max=200_000)
    _fill(tree, 199_000, 64, workers=100)
    session = partial(_session, tree, run_blocks=64, workers=100)
    median_us(session, range(300_000, 400_000, 64))
    bounded_us = median_us(session, range(400_000, 500_000, 64))
    for slot in range(100):
        tree.set_capacity(slot, 1_900)
    both_us = median_us(session, range(500_000, 600_000, 64))
    print(f"\n64 new blocks into a full tree: {bounded_us:.1f} µs, and into a full worker: {both_us:.1f} µs")


def _print_snapshot() -> None:
    tree = PrefixTree()
    _fill(tree, 1_000_000, 64, workers=100)
    workers = range(100)
    dump_ms = median_us(lambda _: tree.dump(workers), range(3)) / 1e3
    snapshot = tree.dump(workers)
    load_ms = median_us(lambda _: PrefixTree().load(snapshot, workers), range(3)) / 1e3
    size_mb = len(msgspec.msgpack.encode(snapshot)) / 1e6
    print(f"snapshot of 1,000,000 blocks: dump {dump_ms:.0f} ms, load {load_ms:.0f} ms, {size_mb:.1f} MB")


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
    common_bytes = len(path) // 8 * 3 // 4 * 8
    return path[:common_bytes] + chain_bytes(bytes(len(path) - common_bytes), root_hash(number), 8)


def bytes_per_block(run_blocks: int) -> float:
    """Return the memory of a block in runs of this length, by the growth of this process."""
    tree = PrefixTree()
    _fill(tree, 1_000_000, run_blocks, workers=100)
    before = rss_bytes(os.getpid())
    blocks = tree.blocks
    _fill(tree, 2_000_000, run_blocks, workers=100)
    return (rss_bytes(os.getpid()) - before) / (tree.blocks - blocks)


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


def text(kind: str, size: int, rng: random.Random) -> str:
    """Text of about ``size`` bytes in UTF-8."""
    if kind == "code":
        source = inspect.getsource(argparse)
        return (source * (size // len(source) + 1))[:size]
    words = WORDS[kind]
    mean = sum(len(word.encode()) for word in words) / len(words)
    return "".join(rng.choices(words, k=int(size / mean)))


def tools() -> list[object]:
    """Forty tools of an agent, some 28 KB."""
    properties = {
        f"argument_{number}": {"type": "string", "description": "What the tool is to do. " * 2}
        for number in range(6)
    }
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": "Does one thing well. " * 6,
                "parameters": {"type": "object", "properties": properties, "required": ["argument_0"]},
            },
        }
        for number in range(40)
    ]


def bodies() -> dict[str, tuple[Endpoint, bytes]]:
    """The rows of the table."""
    rng = random.Random(1)
    found: dict[str, tuple[Endpoint, bytes]] = {}
    for size, name in ((1 << 10, "1 KB"), (64 << 10, "64 KB"), (512 << 10, "512 KB"), (4 << 20, "4 MB")):
        for kind in KINDS:
            body = {
                "model": "m",
                "messages": [
                    {"role": "system", "content": text(kind, size // 4, rng)},
                    {"role": "user", "content": text(kind, size - size // 4, rng)},
                ],
                "max_tokens": 128,
                "stream": True,
            }
            found[f"chat {kind} {name}"] = Endpoint.CHAT, json.dumps(body, ensure_ascii=False).encode()
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text("code", 1 << 10, rng)}
        for number in range(128)
    ]
    body = {"model": "m", "messages": turns, "tools": tools(), "stream": True}
    found["chat agent 128 turns, tools"] = Endpoint.CHAT, json.dumps(body).encode()
    for count in (1 << 10, 1 << 14, 1 << 17, 1 << 20):
        ids = [rng.randrange(150_000) for _ in range(count)]
        found[f"completions {count} ids"] = (
            Endpoint.COMPLETIONS,
            json.dumps({"model": "m", "prompt": ids}).encode(),
        )
    return found


def parsing_us(endpoint: Endpoint, body: bytes, repeats: int) -> float:
    """Median CPU of parsing a body, microseconds."""
    identifier = Identifier("bench")
    identifier.parse(endpoint, body)
    loops = max(3, min(20_000, (8 << 20) // len(body)))
    return median(mean_us(lambda _: identifier.parse(endpoint, body), loops) for _ in range(repeats))


if __name__ == "__main__":
    main()
