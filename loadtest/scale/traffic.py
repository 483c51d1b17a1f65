"""Traffic of the simulation: conversations whose prompts grow and share their beginnings.

    agents         drawn: sessions with the lengths of recorded coding agents (`loadtest.simulator.generated`)
    conversation   recorded: the Mooncake trace, sped up; each row is a conversation of one turn

Blocks are the gateway's, of 256 tokens. Pauses of *agents* are a tenth of the recorded ones, and the trace
runs many times faster than recorded. So the next turn comes sooner than in a real fleet, and late news costs
more here than there.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.simulator.generated import CODING_AGENTS
from loadtest.simulator.identity import hashes_of, scope_root
from loadtest.traces import TRACE_BLOCK_TOKENS, read_trace, spread_arrivals
from radix import BLOCK_TOKENS

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "mooncake_conversation_first60.jsonl.gz"
PAUSE_SCALE = 0.1
PRODUCTS = 24
TURNS_MAX = 60
DECODE_TOKENS_PER_S = 100.0
_BLOCKS_PER_TRACE_BLOCK = TRACE_BLOCK_TOKENS // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Turn:
    """Blocks of a conversation's path that are the prompt; seconds of decoding and before the next turn."""

    blocks: int
    decode_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """Packed hashes of all that is said, and the turns that reveal it."""

    path: bytes
    turns: tuple[Turn, ...]


Starts = Iterator[tuple[float, Conversation]]
"""Conversations with the seconds at which they start, in order."""


def agents(sessions_per_s: float, seed: int = 1) -> Starts:
    """Draw sessions of agents without an end; their starts are a Poisson process."""
    chance, shape = random.Random(seed), CODING_AGENTS
    systems = [chance.randint(*shape.system_tokens) // BLOCK_TOKENS for _ in range(PRODUCTS)]
    shares = [1 / (rank + 1) for rank in range(PRODUCTS)]
    at_s, number = 0.0, 0
    while True:
        at_s += chance.expovariate(sessions_per_s)
        number += 1
        (product,) = chance.choices(range(PRODUCTS), shares)
        tokens = systems[product] * BLOCK_TOKENS + shape.task.draw(chance)
        turns: list[Turn] = []
        for _ in range(min(int(shape.turns.draw(chance)), TURNS_MAX)):
            if tokens > shape.context_tokens_max:
                break
            output = shape.output.draw(chance)
            pause_s = PAUSE_SCALE * shape.pause_s.draw(chance)
            turns.append(Turn(max(int(tokens / BLOCK_TOKENS), 1), output / DECODE_TOKENS_PER_S, pause_s))
            tokens += output + shape.result.draw(chance)
        blocks = np.arange(turns[-1].blocks, dtype=np.uint64)
        hashes = hashes_of(scope_root(seed, "session", number), blocks)
        hashes[: systems[product]] = hashes_of(
            scope_root(seed, "product", product), blocks[: systems[product]]
        )
        yield at_s, Conversation(hashes.tobytes(), tuple(turns))


def conversations(path: Path, speed: float, seed: int = 1) -> Starts:
    """Read the rows of a Mooncake trace, ``speed`` times faster. May raise `loadtest.traces.TraceError`."""
    root = scope_root("mooncake")
    for row in spread_arrivals(list(read_trace(path)), seed):
        blocks = row.input_tokens // BLOCK_TOKENS
        if not blocks:
            continue
        ids = np.repeat(np.array(row.block_ids, dtype=np.uint64), _BLOCKS_PER_TRACE_BLOCK)
        parts = np.arange(len(ids), dtype=np.uint64) % np.uint64(_BLOCKS_PER_TRACE_BLOCK)
        hashes = hashes_of(root, ids * np.uint64(_BLOCKS_PER_TRACE_BLOCK) + parts)[:blocks]
        turn = Turn(blocks, row.output_tokens / DECODE_TOKENS_PER_S, 0.0)
        yield row.arrival_s / speed, Conversation(hashes.tobytes(), (turn,))
