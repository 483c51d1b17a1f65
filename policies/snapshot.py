"""A snapshot of the fleet as pieces of bytes, each well under a megabyte.

    [requests] ...            encoded operations, of what is in flight and what waits, `PIECE_OPS` in each
    [page of the tree] ...    `radix.TreePage`
    [summary]                 how many there are of each, and the state that is small

The summary comes last, since what it says is known when the others have been written. Who
reads decodes and checks all of them before anything is changed.
"""

from collections.abc import Generator, Sequence
from typing import Annotated

import msgspec

from policies.length_histogram import ROWS, WINDOW_MINUTES
from policies.loads import RATE_WINDOW_S
from policies.ops import Op, decode_ops
from radix import TreeMarks, TreePage

SNAPSHOT_VERSION = 2
"""Counts changes of the pieces, and of their layout in Redis (`router.shared.snapshot`)."""

PIECE_OPS = 1000
"""Operations in one piece of a snapshot, some 100 bytes each."""

_Second = Annotated[int, msgspec.Meta(ge=0, le=2**43)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Window = Annotated[list[_Whole], msgspec.Meta(min_length=RATE_WINDOW_S, max_length=RATE_WINDOW_S)]
_Table = Annotated[
    list[_Whole], msgspec.Meta(min_length=ROWS * WINDOW_MINUTES, max_length=ROWS * WINDOW_MINUTES)
]


class Summary(msgspec.Struct, array_like=True, frozen=True):
    """The last piece.

    Attributes:
        version: `SNAPSHOT_VERSION` of the writer.
        workers: Worker ids, in the order of the tree's workers.
        ops: Workers, fits and token ratios, as encoded operations.
        inflight: How many pieces are encoded operations, for requests in flight or waiting; they come first.
        pages: How many are pages of the tree; they follow.
        histories: Per worker what `policies.loads.History` has of it.
        marks: Of the tree.
        charges: What flows were served (`policies.fairness`).
        lengths: What came lately by length (`policies.length_histogram`).
    """

    version: int
    workers: list[str]
    ops: bytes
    inflight: Annotated[int, msgspec.Meta(ge=0)]
    pages: Annotated[int, msgspec.Meta(ge=0)]
    histories: list[tuple[_Second, _Window, _Window, _Whole]]
    marks: TreeMarks
    charges: list[tuple[_Whole, dict[str, _Whole]]] = []
    lengths: tuple[_Second, _Table, _Table] | None = None


def decoded(
    pieces: Sequence[bytes],
) -> Generator[float, None, tuple[Summary, list[list[Op]], list[TreePage]]]:
    """Decode the pieces of a snapshot.

    Yields:
        The progress of restoring it, which has not begun.

    Returns:
        The summary, requests in flight, and the pages of the tree.

    Raises:
        ValueError: They are not one, or of another version.
    """
    try:
        version = msgspec.msgpack.decode(pieces[-1] if pieces else b"", type=list[msgspec.Raw])[0]
        if msgspec.msgpack.decode(version) != SNAPSHOT_VERSION:
            raise ValueError(f"a snapshot of another version; this replica reads {SNAPSHOT_VERSION}")
        summary = msgspec.msgpack.decode(pieces[-1], type=Summary)
        inflight: list[list[Op]] = []
        for piece in pieces[: summary.inflight]:
            inflight.append(decode_ops(piece)[0])
            yield 0.0
        pages: list[TreePage] = []
        for piece in pieces[summary.inflight : -1]:
            pages.append(msgspec.msgpack.decode(piece, type=TreePage))
            yield 0.0
    except (msgspec.MsgspecError, IndexError) as error:
        raise ValueError(f"not a readable snapshot: {error}") from error
    if len(summary.histories) != len(summary.workers) or len(pieces) != summary.inflight + summary.pages + 1:
        raise ValueError("not a readable snapshot: its columns contradict each other")
    return summary, inflight, pages
