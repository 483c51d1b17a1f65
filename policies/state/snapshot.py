"""A snapshot of the fleet as pieces of bytes, each well under a megabyte: writing one, and merging it.

    [requests] ...            encoded operations: in flight, waiting or shipped, `PIECE_OPS` in each, and
                              load of other replicas in flight, as vectors
    [page of the tree] ...    `radix.TreePage`
    [summary]                 the number of each, and the small state; last, as it is known then

A reader decodes and checks all of them before anything is changed. Both go in steps of microseconds, between
which operations may be applied. So a snapshot is no moment of the fleet: it has every operation applied
before its first step, and some later ones. Operations repeat harmlessly, so the reader applies the later ones
again (decision 0005).

A slot is local to its process. Operations and the summary name workers; pages of the tree number them as the
summary lists them.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Protocol

import msgspec

from policies.estimates.length_histogram import ROWS, WINDOW_MINUTES, LengthHistogram
from policies.state.fairness import Fairness
from policies.state.links import Links
from policies.state.loads import NO_RETURNS, RATE_WINDOW_S, Loads
from policies.state.ops import (
    FirstToken,
    LoadVector,
    Op,
    Placed,
    Shipping,
    Waiting,
    decode_ops,
    encode_sound_ops,
)
from policies.state.waiting import Tickets
from radix import (
    WORKERS_MAX,
    Count,
    Name,
    PrefixTree,
    TreeMarks,
    TreePage,
    TreeSnapshot,
    WholeNumber,
    WorkerId,
    check_steps,
)

SNAPSHOT_VERSION = 2
"""Counts changes of the pieces, and of their layout in Redis (`router.shared.snapshot`)."""

PIECE_OPS = 1000
"""Operations in one piece of a snapshot, some 100 bytes each."""

_Second = Annotated[int, msgspec.Meta(ge=0, le=2**43)]
_Window = Annotated[list[WholeNumber], msgspec.Meta(min_length=RATE_WINDOW_S, max_length=RATE_WINDOW_S)]
_Table = Annotated[
    list[WholeNumber], msgspec.Meta(min_length=ROWS * WINDOW_MINUTES, max_length=ROWS * WINDOW_MINUTES)
]


class Summary(msgspec.Struct, array_like=True, frozen=True):
    """The last piece.

    Attributes:
        workers: Worker ids, in the order of the tree's workers.
        ops: Workers and registers, as encoded operations.
        inflight: Pieces that are encoded operations: requests in flight, waiting or shipped.
        pages: Pages of the tree, which follow.
        histories: `policies.state.loads.History` per worker.
        charges: Service of flows (`policies.state.fairness`).
        lengths: `policies.estimates.length_histogram`, and ``uncached_lengths``.
        returns: Returns per worker, of the same history; empty from a writer that did not count them.
    """

    version: int
    workers: Annotated[list[WorkerId], msgspec.Meta(max_length=WORKERS_MAX)]
    ops: bytes
    inflight: Count
    pages: Count
    histories: list[tuple[_Second, _Window, _Window, WholeNumber]]
    marks: TreeMarks
    charges: list[tuple[WholeNumber, dict[Name, WholeNumber]]] = []
    lengths: tuple[_Second, _Table, _Table] | None = None
    uncached_lengths: tuple[_Second, _Table, _Table] | None = None
    returns: list[_Window] = []


class Parts(Protocol):
    """The parts of a fleet's state that write and merge themselves."""

    tree: PrefixTree
    loads: Loads
    tickets: Tickets
    links: Links
    fairness: Fairness
    lengths: LengthHistogram
    uncached_lengths: LengthHistogram
    left_out_ops: int

    def apply(self, op: Op) -> None:
        """Apply one operation."""


def written(
    parts: Parts, slots: Mapping[str, int], name_at: Callable[[int], str], registers: Iterator[Op]
) -> Generator[bytes | None, None, None]:
    """Write a snapshot, yielding a piece when one is finished, else None.

    Args:
        parts: State to write.
        slots: The slot of each worker and each other holder, by its id.
        name_at: Present id of a slot.
        registers: All else as operations; taken one a step, at the end.
    """
    history, charges = parts.loads.dump_history(), parts.fairness.dump()
    lengths, uncached_lengths = parts.lengths.dump(), parts.uncached_lengths.dump()
    # Only requests that were in flight at the start, so that they agree with the history.
    inflight = pages = 0
    for piece in _requests(parts, name_at):
        inflight += piece is not None
        yield piece
    walk = parts.tree.dump_steps(list(slots.values()))
    while True:
        try:
            page = next(walk)
        except StopIteration as end:
            marks: TreeMarks = end.value
            break
        pages += page is not None
        yield None if page is None else msgspec.msgpack.encode(page)
    histories, returns = [], []
    for slot in slots.values():
        histories.append(history.of(slot))
        returns.append(history.returns_of(slot))
        yield None
    ops: list[Op] = []
    for op in registers:
        ops.append(op)
        yield None
    encoded = _encoded(parts, ops)
    yield msgspec.msgpack.encode(
        Summary(
            SNAPSHOT_VERSION,
            list(slots),
            encoded,
            inflight,
            pages,
            histories,
            marks,
            charges,
            lengths,
            uncached_lengths,
            returns,
        )
    )


def _requests(parts: Parts, name_at: Callable[[int], str]) -> Generator[bytes | None, None, None]:
    """Requests in flight, waiting and shipped, as encoded operations."""
    ops: list[Op] = []
    for op in chain(parts.loads.dump_steps(), parts.tickets.dump_steps(), parts.links.dump_steps()):
        if isinstance(op, Placed | Waiting) and op.worker:
            op = msgspec.structs.replace(op, worker=name_at(int(op.worker)))
        elif isinstance(op, LoadVector):
            op = msgspec.structs.replace(op, workers=tuple(name_at(int(slot)) for slot in op.workers))
        if op is not None:
            ops.append(op)
        if len(ops) >= PIECE_OPS:
            yield _encoded(parts, ops)
            ops.clear()
        else:
            yield None
    if ops:
        yield _encoded(parts, ops)


def _encoded(parts: Parts, ops: Sequence[Op]) -> bytes:
    """Encode operations; invalid ones are left out and counted, so that the others are kept."""
    data, left_out = encode_sound_ops(ops)
    parts.left_out_ops += left_out
    return data


def merged(
    parts: Parts, pieces: Sequence[bytes], own: str, slot_of: Callable[[str], int], *, missed: bool
) -> Generator[float, None, int]:
    """Merge a snapshot, as if its operations were applied, yielding progress, 0 to 1.

    Args:
        parts: State to merge into.
        pieces: From `written`.
        own: Replica whose requests are passed over.
        slot_of: The slot of a worker or other holder; a new one if unknown.
        missed: Other replicas' requests that the snapshot does not list are released.

    Returns:
        Number of operations skipped: unknown, invalid, or refused by the fold.

    Raises:
        ValueError: This version cannot read it; nothing was changed.
    """
    summary, requests, pages, skipped = yield from _decoded(pieces)
    rows = yield from check_steps(TreeSnapshot(summary.marks, pages), len(summary.workers))
    listed: set[str] = set()
    shipped: set[str] = set()
    told: set[str] = set()
    passed_over: set[str] = set()
    for ops in requests:
        for op in ops:
            if isinstance(op, Placed | Waiting):
                (passed_over if op.replica == own else listed).add(op.request_id)
            elif isinstance(op, Shipping):
                (passed_over if op.replica == own else shipped).add(op.request_id)
            elif isinstance(op, LoadVector):
                if op.replica == own:
                    continue
                told.add(op.replica)
            if (
                not isinstance(op, Placed | FirstToken | Waiting | Shipping)
                or op.request_id not in passed_over
            ):
                try:
                    parts.apply(op)
                except ValueError:
                    skipped += 1
            yield 0.0
    if missed:
        parts.loads.retain(listed, own, told)
        parts.tickets.retain(listed, own)
        parts.links.retain(shipped, own)
    parts.fairness.merge(summary.charges)
    if summary.lengths is not None:
        parts.lengths.merge(*summary.lengths)
    if summary.uncached_lengths is not None:
        parts.uncached_lengths.merge(*summary.uncached_lengths)
    for index, (worker_id, history) in enumerate(zip(summary.workers, summary.histories, strict=True)):
        returns = summary.returns[index] if summary.returns else NO_RETURNS
        parts.loads.merge_history(slot_of(worker_id), *history, returns)
        yield 0.0
    # Only now, and the tree looks at them at once: a slot may have been given to another worker meanwhile.
    slots = [slot_of(worker_id) for worker_id in summary.workers]
    yield from parts.tree.load_steps(rows, slots)
    return skipped


def _decoded(
    pieces: Sequence[bytes],
) -> Generator[float, None, tuple[Summary, list[list[Op]], list[TreePage], int]]:
    """Decode pieces to the summary, operations, the tree's pages, and the number of operations skipped.

    Raises:
        ValueError: They are not one, or of another version.
    """
    try:
        version = msgspec.msgpack.decode(pieces[-1] if pieces else b"", type=list[msgspec.Raw])[0]
        readable = msgspec.msgpack.decode(version) == SNAPSHOT_VERSION
    except (ValueError, IndexError, RecursionError) as error:
        raise ValueError(f"not a readable snapshot: {error}") from error
    if not readable:
        raise ValueError(f"a snapshot of another version; this replica reads {SNAPSHOT_VERSION}")
    try:
        summary = msgspec.msgpack.decode(pieces[-1], type=Summary)
        ops: list[list[Op]] = []
        skipped = 0
        for piece in (summary.ops, *pieces[: summary.inflight]):
            decoded = decode_ops(piece)
            ops.append(decoded.ops)
            skipped += decoded.unknown + decoded.invalid
            yield 0.0
        pages: list[TreePage] = []
        for piece in pieces[summary.inflight : -1]:
            pages.append(msgspec.msgpack.decode(piece, type=TreePage))
            yield 0.0
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a readable snapshot: {error}") from error
    if (
        len(summary.histories) != len(summary.workers)
        or len(summary.returns) not in (0, len(summary.workers))
        or len(pieces) != summary.inflight + summary.pages + 1
    ):
        raise ValueError("not a readable snapshot: its columns contradict each other")
    return summary, ops, pages, skipped
