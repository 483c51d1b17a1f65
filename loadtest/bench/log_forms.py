"""CPU of one request in the shared log part by part, for placements told whole and by their new part.

    python -m loadtest.bench.log_forms [--blocks 50 500] [--an-entry 1 10]
    python -m loadtest.bench.log_forms --vectors 1 4 10 40 [--blocks 50]

The conversations of `loadtest.bench.log_crowd`, one placement an entry or several. One
process is publisher and reader, without Redis; `loadtest.bench.log_requests` has the price with it. Per
length of prompts and form:

    bytes       of a placement in the log
    publish     encoding a placement, and its way into an entry (`PlacedForms.outgoing`)
    decode      of the entry
    complete    the whole prompt by its anchor
    fold        the fleet's state and its tree; workers' caches are full after a while, so inserts evict
    entry       all else that the reader does for an entry

With ``--vectors``: CPU of whole requests, that many in each entry, with a load vector behind them or with
their first tokens and ends. *publish* encodes all that, *read* is all work of a reader.

Requests end after `UNDER_WAY` others, unmeasured. Times are CPU of the quickest twentieth of slices of
`SLICE_REQUESTS`: others on the machine take caches away from the rest.
"""

import argparse
import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import process_time_ns

from loadtest.bench.log_crowd import WORKER_BLOCKS, Conversations
from loadtest.bench.markdown import table
from policies import Finished, FirstToken, FleetState, Op, Placed, WorkerPut, encode_op
from radix import BLOCK_TOKENS
from router.shared import Keys, LogClock, NoListener
from router.shared.completing_fold import CompletingFold
from router.shared.degraded_reasons import DegradedReasons
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import PlacedForms, decode_entry
from router.shared.publisher import array_header
from router.shared.reader import Reader, ReaderRules
from router.shared.redis_latency import RedisLatency
from router.shared.server import RedisLink
from router.shared.snapshot import SnapshotStore

REQUESTS = 20_000
SLICE_REQUESTS = 200
UNDER_WAY = 500
QUICKEST = 0.05

Entry = tuple[bytes, list[bytes]]


@dataclass(frozen=True, slots=True)
class Price:
    """Figures of one form: bytes of a placement, and CPU by part in microseconds."""

    size_bytes: float
    publish_us: float
    decode_us: float
    complete_us: float
    fold_us: float
    entry_us: float

    @property
    def read_us(self) -> float:
        """CPU of a reader without its connection."""
        return self.decode_us + self.complete_us + self.fold_us + self.entry_us


class _Unheard:
    """A fold that nothing is applied to."""

    def apply(self, op: Op) -> None:
        """Ignore."""


class _Reading:
    """A reader without a connection; requests end when others have come.

    Args:
        fold: Its target.
        workers: Names of the workers.
    """

    def __init__(self, fold: "FleetState | _Unheard", workers: Sequence[str]) -> None:
        clock, reasons, keys = LogClock(), DegradedReasons(NoListener()), Keys("forms")
        self._forms = CompletingFold(fold, PlacedForms("reader"), clock, lambda body: None)  # type: ignore[arg-type]
        self._reader = Reader(
            ReaderRules(b"reader/1", "reader", keys, 10.0, 1.0),
            self._forms,
            clock,
            SnapshotStore(b"reader/1", keys, NoListener(), 10.0, 1),
            NoListener(),
            lambda _left, _writer: None,
            redis_latency=RedisLatency(reasons),
            presence=PeerPresence(lambda: 1),
        )
        self._fold = fold
        self._ends: list[Finished] = []
        _put_workers(fold, workers)

    async def read(self, entries: Sequence[Entry]) -> None:
        """Read as a reply of Redis has them."""
        await self._reader._apply_entries(list(entries), RedisLink("unix:///none", 1.0))

    def complete(self, entries: Sequence[Entry]) -> None:
        """Decode and complete, and apply."""
        for _, fields in entries:
            for op in decode_entry(fields[5]).ops:
                self._forms.apply(op, 1)

    def end(self, ended: Sequence[Placed]) -> None:
        """End the oldest requests."""
        self._ends += [Finished(placed.request_id, placed.at_us + 1) for placed in ended]
        while len(self._ends) > UNDER_WAY:
            self._fold.apply(self._ends.pop(0))


async def price(blocks: int, an_entry: int, requests: int, *, onward: bool) -> Price:
    """Write a log in one form, and read it in parts."""
    conversations = Conversations(blocks)
    placements = [conversations.placed(number, "writer", 1_000_000 + number) for number in range(requests)]
    forms, bodies = PlacedForms("writer", onward=lambda: onward), list[bytes]()

    async def publish(part: slice) -> None:
        bodies.extend([forms.outgoing(encode_op(placed)) for placed in placements[part]])

    async def decode(part: slice) -> None:
        for _, fields in entries_of(part):
            decode_entry(fields[5])

    async def complete(part: slice) -> None:
        completing.complete(entries_of(part))

    async def fold(part: slice) -> None:
        folding.complete(entries_of(part))

    async def read(part: slice) -> None:
        await reading.read(entries_of(part))

    publish_us = await quickest_us(publish, requests)
    entries = [
        (
            b"%d-0" % (first + 1),
            [b"v", b"1", b"r", b"writer/1", b"o", array_header(len(some)) + b"".join(some)],
        )
        for first in range(0, requests, an_entry)
        if (some := bodies[first : first + an_entry])
    ]

    def entries_of(part: slice) -> list[Entry]:
        return entries[part.start // an_entry : part.stop // an_entry]

    completing = _Reading(_Unheard(), conversations.workers)
    folding = _Reading(FleetState(), conversations.workers)
    reading = _Reading(FleetState(), conversations.workers)
    decode_us = await quickest_us(decode, requests)
    complete_us = await quickest_us(complete, requests)
    fold_us = await quickest_us(fold, requests, lambda part: folding.end(placements[part]))
    read_us = await quickest_us(read, requests, lambda part: reading.end(placements[part]))
    measured = bodies[requests // 2 :]
    return Price(
        sum(map(len, measured)) / len(measured),
        publish_us,
        decode_us,
        complete_us - decode_us,
        fold_us - complete_us,
        read_us - fold_us,
    )


async def quickest_us(
    call: Callable[[slice], Awaitable[None]],
    requests: int,
    after: Callable[[slice], None] = lambda part: None,
) -> float:
    """CPU of a request in the quickest slices of the second half, microseconds; ``after`` is not measured."""
    spent_ns: list[int] = []
    for first in range(0, requests, SLICE_REQUESTS):
        part = slice(first, first + SLICE_REQUESTS)
        began_ns = process_time_ns()
        await call(part)
        spent_ns.append(process_time_ns() - began_ns)
        after(part)
    return _quickest_us(spent_ns)


def _quickest_us(slices_ns: Sequence[int]) -> float:
    later = sorted(slices_ns[len(slices_ns) // 2 :])
    return later[int(QUICKEST * len(later))] / SLICE_REQUESTS / 1e3


class _Owner:
    """A replica that tells whole requests, with vectors or with events; ``spent_ns``: CPU of each entry."""

    def __init__(self, blocks: int, *, vectors: bool) -> None:
        self.conversations = Conversations(blocks)
        self.spent_ns: list[int] = []
        self._vectors = vectors
        self._forms = PlacedForms("writer", onward=lambda: True)
        self._fleet = FleetState(own="writer")
        _put_workers(self._fleet, self.conversations.workers)
        self._now_us = 1_000_000
        self._first_tokens: deque[Op] = deque()
        self._ends: deque[Op] = deque()

    def entry(self, numbers: range) -> Entry:
        """Write an entry of some requests, and of the events of earlier ones."""
        placements: list[Op] = []
        for number in numbers:
            self._now_us += 10
            placed = self.conversations.placed(number, "writer", self._now_us)
            self._first_tokens.append(FirstToken(placed.request_id, self._now_us))
            self._ends.append(Finished(placed.request_id, self._now_us))
            placements.append(placed)
        events = [self._first_tokens.popleft() for _ in range(len(self._first_tokens) - 2 * len(numbers))]
        events += [self._ends.popleft() for _ in range(len(self._ends) - UNDER_WAY)]
        for op in (*placements, *events):
            self._fleet.apply(op)
        began_ns = process_time_ns()
        bodies = [self._forms.outgoing(encode_op(op)) for op in placements]
        if self._vectors:
            bodies.append(encode_op(self._fleet.load_reports.vector(self._now_us, full=False)))
        else:
            bodies += [self._forms.outgoing(encode_op(op)) for op in events]
        ops = array_header(len(bodies)) + b"".join(bodies)
        self.spent_ns.append(process_time_ns() - began_ns)
        return b"%d-0" % (numbers.start + 1), [b"v", b"1", b"r", b"writer/1", b"o", ops]


async def whole(blocks: int, an_entry: int, *, vectors: bool) -> tuple[float, float]:
    """Write whole requests into a log, and read it; return the CPU of both, a request, in microseconds."""
    owner = _Owner(blocks, vectors=vectors)
    entries = [owner.entry(range(first, first + an_entry)) for first in range(0, REQUESTS, an_entry)]
    reading = _Reading(FleetState(), owner.conversations.workers)

    async def read(part: slice) -> None:
        await reading.read(entries[part.start // an_entry : part.stop // an_entry])

    slices = [
        sum(owner.spent_ns[first : first + SLICE_REQUESTS // an_entry])
        for first in range(0, len(entries), SLICE_REQUESTS // an_entry)
    ]
    return _quickest_us(slices), await quickest_us(read, REQUESTS)


def _put_workers(fold: "FleetState | _Unheard", workers: Sequence[str]) -> None:
    for name in workers:
        capacity_tokens = WORKER_BLOCKS * BLOCK_TOKENS
        fold.apply(WorkerPut(name, 1, "static", f"http://{name}", capacity_tokens=capacity_tokens))


HEADS = [
    "blocks",
    "form",
    "placements an entry",
    "bytes",
    "publish, µs",
    "decode",
    "complete",
    "fold",
    "entry",
    "read, µs a request",
]


async def run_whole(lengths: Sequence[int], sizes: Sequence[int]) -> None:
    """Print the table of whole requests."""
    rows: list[list[str]] = []
    for blocks, an_entry in itertools.product(lengths, sizes):
        row = [str(blocks), str(an_entry)]
        for vectors in (True, False):
            row += [f"{us:.1f}" for us in await whole(blocks, an_entry, vectors=vectors)]
        rows.append(row)
    heads = [
        "blocks",
        "requests an entry",
        "vector: publish, µs a request",
        "read",
        "events: publish",
        "read",
    ]
    print(table(heads, rows, left=0))


async def run(lengths: Sequence[int], sizes: Sequence[int]) -> None:
    """Print the table."""
    rows: list[list[str]] = []
    for blocks, an_entry in itertools.product(lengths, sizes):
        for onward in (False, True):
            found = await price(blocks, an_entry, REQUESTS, onward=onward)
            parts = (found.publish_us, found.decode_us, found.complete_us, found.fold_us, found.entry_us)
            form = "new part" if onward else "whole"
            figures = [f"{us:.1f}" for us in (*parts, found.read_us)]
            rows.append([str(blocks), form, str(an_entry), f"{found.size_bytes:.0f}", *figures])
    print(table(HEADS, rows, left=2))


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.log_forms", description="CPU of a placement in the shared log."
    )
    parser.add_argument("--blocks", type=int, nargs="+", default=[50, 500], help="[default 50 500]")
    parser.add_argument("--vectors", type=int, nargs="+", help="whole requests; numbers of them in an entry")
    parser.add_argument(
        "--an-entry", type=int, nargs="+", default=[1, 10], help="placements, divisors of 200 [default 1 10]"
    )
    options = parser.parse_args()
    if options.vectors:
        asyncio.run(run_whole(options.blocks, options.vectors))
    else:
        asyncio.run(run(options.blocks, options.an_entry))


if __name__ == "__main__":
    main()
