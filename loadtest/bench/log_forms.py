"""Price of a placement in the shared log, told whole and told by its new part.

    python -m loadtest.bench.log_forms

2,000 conversations on 20 workers take turns; each turn adds two blocks, and three operations (`Placed`,
`FirstToken`, `Finished`) are one entry, as with many replicas. Per length of prompt and form:

    bytes       of a placement in the log
    publish     CPU of encoding a placement and of its way into an entry (`PlacedForms.outgoing`), µs
    read        CPU of a replica that reads the log of a real Valkey into a real fold, all of it, µs a request
    Valkey      CPU of Valkey for appending a request's entry, and for giving it to one reader, µs

The turns that are measured come behind one turn of each conversation, which both forms tell whole.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from loadtest.bench.process_tree import cpu_s
from policies import Finished, FirstToken, FleetState, Placed, WorkerPut, encode_op
from radix import HASH_BYTES
from router.shared import EmbeddedValkey, LogClock, NoListener, SharedState, SharingRules
from router.shared.keys import Keys
from router.shared.placed_forms import PlacedForms
from router.shared.publisher import array_header
from router.shared.server import RedisLink

SESSIONS = 2_000
WORKERS = 20
NEW_BLOCKS = 2
CALLS = 200
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Price:
    """Figures of one form; times in microseconds.

    Attributes:
        size_bytes: Of a placement.
        publish_us: CPU at its publisher.
        read_us: CPU at a reader.
        valkey_us: CPU of Valkey, with one reader.
    """

    size_bytes: float
    publish_us: float
    read_us: float
    valkey_us: float


class _Heard(NoListener):
    """Counts what was applied, and says when it is all that was awaited."""

    def __init__(self) -> None:
        self.ops = self.awaited = 0
        self.all = asyncio.Event()

    def applied(self, ops: int, lag_s: float) -> None:
        self.ops += ops
        if self.ops >= self.awaited:
            self.all.set()

    async def heard(self, ops: int) -> None:
        """Wait until so many operations were applied since the start."""
        self.awaited = ops
        self.all.clear()
        if self.ops < ops:
            await self.all.wait()


def turns(blocks: int, turns_of_each: int, seed: int) -> Iterator[Placed]:
    """Give placements of conversations that take turns, the first of which has so many blocks."""
    chance = random.Random(seed)
    workers = [f"10.0.0.{number}:8000" for number in range(WORKERS)]
    paths = [chance.randbytes(HASH_BYTES * blocks) for _ in range(SESSIONS)]
    for turn in range(turns_of_each):
        for session in range(SESSIONS):
            if turn:
                paths[session] += chance.randbytes(HASH_BYTES * NEW_BLOCKS)
            yield Placed(
                f"gateway-7f9c4d-x2x-{turn * SESSIONS + session:x}",
                time.time_ns() // 1000,
                workers[session % WORKERS],
                "gateway-7f9c4d-x2x",
                500_000,
                NEW_BLOCKS * 256,
                256 * blocks,
                (paths[session],),
                ends=False,
                safe_blocks=blocks if turn else 0,
            )


async def price(url: str, pid: int, blocks: int, requests: int, *, onward: bool) -> Price:
    """Write a log in one form, and read it."""
    namespace = f"forms-{blocks}-{onward}"
    forms = PlacedForms("writer", onward=lambda: onward)
    append = ("XADD", Keys(namespace).log, "*", "v", 1, "r", b"writer/1", "o")
    workers = [WorkerPut(f"10.0.0.{n}:8000", 1, "static", f"http://10.0.0.{n}:8000") for n in range(WORKERS)]
    entries = [array_header(WORKERS) + b"".join(map(encode_op, workers))]
    size_bytes = spent_ns = 0
    for number, placed in enumerate(turns(blocks, 1 + -(-requests // SESSIONS), 1)):
        began_ns = time.process_time_ns()
        body = forms.outgoing(encode_op(placed))
        if number >= SESSIONS:
            spent_ns += time.process_time_ns() - began_ns
            size_bytes += len(body)
        first_token = encode_op(FirstToken(placed.request_id, placed.at_us + 10))
        finished = encode_op(Finished(placed.request_id, placed.at_us + 20))
        entries.append(array_header(3) + body + first_token + finished)
        if number == SESSIONS + requests - 1:
            break
    assert forms.onward == onward * requests
    link, measured = RedisLink(url, 30.0), 1 + SESSIONS
    await _append(link, append, entries[:measured])
    valkey_s = -cpu_s([pid])
    await _append(link, append, entries[measured:])
    valkey_s += cpu_s([pid])
    await link.aclose()
    fleet, heard = FleetState(), _Heard()
    rules = SharingRules(namespace=namespace, snapshot_interval_s=NEVER_S)
    shared = SharedState(rules, url, "reader", fleet, LogClock(), heard)
    reading = asyncio.create_task(shared.run())
    await heard.heard(WORKERS + 3 * SESSIONS)
    ops, valkey_began_s, began_s = heard.ops, cpu_s([pid]), time.process_time()
    await heard.heard(WORKERS + 3 * (SESSIONS + requests))
    read, read_s = (heard.ops - ops) / 3, time.process_time() - began_s
    valkey_s += cpu_s([pid]) - valkey_began_s
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return Price(
        size_bytes / requests, spent_ns / requests / 1e3, read_s / read * 1e6, valkey_s / requests * 1e6
    )


async def _append(link: RedisLink, append: tuple[str | int | bytes, ...], entries: list[bytes]) -> None:
    for begin in range(0, len(entries), CALLS):
        await link.calls(*((*append, entry) for entry in entries[begin : begin + CALLS]))


async def run(lengths: list[int], requests: int) -> None:
    """Print the table."""
    print("| blocks | form | bytes | publish, µs | read, µs | Valkey, µs |\n|--:|---|--:|--:|--:|--:|")
    async with EmbeddedValkey() as server:
        for blocks in lengths:
            for onward in (False, True):
                found = await price(server.url, server.pid, blocks, requests, onward=onward)
                form = "new part" if onward else "whole"
                print(
                    f"| {blocks} | {form} | {found.size_bytes:.0f} | {found.publish_us:.1f} | "
                    f"{found.read_us:.0f} | {found.valkey_us:.0f} |",
                    flush=True,
                )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Price of a placement in the shared log, in both forms.")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[50, 500], help="lengths of prompts, in blocks"
    )
    parser.add_argument("--requests", type=int, default=10_000, help="placements that are measured")
    arguments = parser.parse_args()
    uvloop.run(run(arguments.blocks, arguments.requests))


if __name__ == "__main__":
    main()
