"""The two forms in which a placement travels through the log: with its whole prompt, or with the new part.

    Placed   [worker, times, whole path]                       4.4 KB at 128,000 tokens
    Onward   [anchor, its depth, Placed with the new blocks]   150 bytes

The fold knows whole placements alone. `PlacedForms` shortens own operations on their way into the log and
completes those that come out of it, in the order of the log, by paths that both sides know (`KnownPaths`).

A replica may read an anchor that it does not know: it has just joined, or has lost its place in the log.

    Onward, anchor unknown ──> the fold gets the reservation, without a prompt
                               `PathAsked` to the replica that placed it; after `AGAIN_US` once more, to all
    `PathTold`             ──> the fold gets the placement again, whole, and all that waited behind it
    none for `WAIT_US`     ──> the fold counts the arrival, and this replica does not learn that prompt

Operations repeat harmlessly, so the fold is the same as if the whole form had come the first time, late.
Waiting placements are bounded in number and bytes, and questions and answers in their rate; a placement
beyond these bounds is treated as one that waited too long.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, cast

import msgspec

from policies import OP_KINDS, Decoded, Op, OpDecoder, Placed
from radix import HASH_BYTES, PATH_BYTES_MAX, Name, Path
from router.shared.known_paths import KnownPaths

BlockHash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
Depth = Annotated[int, msgspec.Meta(ge=1, le=PATH_BYTES_MAX // HASH_BYTES)]

NO_PROMPT = (b"",)

WAITING_MAX = 4096
"""Placements that wait for the path of their anchor: a second of a fleet's."""

WAITING_BYTES_MAX = 4 << 20
"""New parts of their prompts."""

ASKED_PER_S_MAX = 200
"""Questions of one replica, and answers of one replica. An answer is the path of a session, once."""

AGAIN_US = 1_000_000
WAIT_US = 10_000_000
LOOK_US = 250_000


class Onward(msgspec.Struct, frozen=True, array_like=True, tag=17, gc=False):
    """A `Placed` whose only prompt goes on from one that the log told before.

    Attributes:
        anchor: Hash of the last block that it goes on from.
        anchor_blocks: Number of these blocks.
        placed: The placement, with the blocks behind the anchor as its path.
    """

    anchor: BlockHash
    anchor_blocks: Depth
    placed: Placed

    @property
    def at_us(self) -> int:
        """Log time of the placement."""
        return self.placed.at_us


class PathAsked(msgspec.Struct, frozen=True, array_like=True, tag=18, gc=False):
    """A replica does not know an anchor.

    Attributes:
        replica: Replica that asks.
        asked: Replica that should answer; empty for all that know it.
        anchor: Hash of the last block of the path.
        anchor_blocks: Number of its blocks.
    """

    replica: Name
    asked: Name
    anchor: BlockHash
    anchor_blocks: Depth

    @property
    def at_us(self) -> int:
        """Return 0, no time: a question changes nothing."""
        return 0


class PathTold(msgspec.Struct, frozen=True, array_like=True, tag=19, gc=False):
    """A path that a replica asked for."""

    path: Path

    @property
    def at_us(self) -> int:
        """Return 0, no time: a hash stands for one path at any time."""
        return 0


LogOp = Op | Onward | PathAsked | PathTold

ENTRY_KINDS: tuple[type[LogOp], ...] = (*OP_KINDS, Onward, PathAsked, PathTold)
"""All kinds that an entry of the log may hold."""

_decoder: OpDecoder[LogOp] = OpDecoder(ENTRY_KINDS)
_encoder = msgspec.msgpack.Encoder()
_placed_decoder = msgspec.msgpack.Decoder(Placed)
_PLACED_HEAD = _encoder.encode(Placed("", 0, "", "", 0, 0, 0)).split(_encoder.encode(""))[0]


def decode_entry(data: bytes) -> Decoded[LogOp]:
    """Decode one log entry; invalid bytes raise nothing."""
    return _decoder.decode(data)


@dataclass(slots=True)
class _Question:
    """An anchor that this replica does not know, and the placements that wait for it.

    Attributes:
        anchor: Hash of its last block.
        anchor_blocks: Its depth.
        asked_us: Log time of the first question.
        asked_all: True if all replicas were asked.
        waiting: Placements with the blocks behind it.
    """

    anchor: bytes
    anchor_blocks: int
    asked_us: int
    asked_all: bool = False
    waiting: list[Placed] = field(default_factory=list)


class PlacedForms:
    """Shortens the placements of one replica, and completes those of the others.

    Args:
        replica: Id of this replica.
        known: Paths of the log that it knows.
        onward: Returns True if all replicas read the short form.

    Attributes:
        known: The same.
        onward: Own placements that went out with their new part.
        unknown: Placements of others whose anchor was not known when they were read.
        unresolved: Those of them whose prompt never came.
        outbox: Encoded questions and answers for the log; the sender empties it.
    """

    def __init__(
        self, replica: str, known: KnownPaths | None = None, onward: Callable[[], bool] = lambda: True
    ) -> None:
        self.known = KnownPaths() if known is None else known
        self._onward = onward
        self.onward = self.unknown = self.unresolved = 0
        self.outbox: list[bytes] = []
        self._replica = replica
        self._questions: dict[bytes, _Question] = {}
        self._waiting = self._waiting_bytes = 0
        self._looked_us = 0
        self._asked, self._answered = _Rate(ASKED_PER_S_MAX), _Rate(ASKED_PER_S_MAX)

    @property
    def waits(self) -> bool:
        """True if placements wait for their prompts."""
        return bool(self._questions)

    def reset(self) -> None:
        """Tell whole prompts again: told ones may be lost, or a replica joined without it."""
        self.known.reset()

    def outgoing(self, body: bytes) -> bytes:
        """Return the form in which an own operation goes into the log now, and remember its path.

        Args:
            body: The operation, encoded (`policies.state.ops.encode_op`).
        """
        if not body.startswith(_PLACED_HEAD):
            return body
        placed = _placed_decoder.decode(body)
        if len(placed.paths) != 1 or len(placed.paths[0]) % HASH_BYTES:
            return body
        path = placed.paths[0]
        if not self._onward():
            self.known.tell(path, 0, _junction(placed))
            return body
        blocks = self.known.tell_shortly(path, _junction(placed))
        if not blocks:
            return body
        self.onward += 1
        size = HASH_BYTES * blocks
        rest = msgspec.structs.replace(placed, paths=(path[size:],))
        return _encoder.encode(Onward(path[size - HASH_BYTES : size], blocks, rest))

    def incoming(self, op: LogOp, now_us: int) -> Iterable[Op]:
        """Return the operations that the fold must apply for an operation of another replica.

        Args:
            op: The operation, in the order of the log.
            now_us: Log time.
        """
        if type(op) is Onward:
            return self._continued(op, now_us)
        if type(op) is Placed:
            if len(op.paths) == 1:
                path = op.paths[0]
                self.known.tell(path, 0, _junction(op))
                if self._questions:
                    return [op, *self._completed(path)]
            return (op,)
        if isinstance(op, PathAsked):
            self._answer(op, now_us)
            return ()
        if isinstance(op, PathTold):
            self.known.tell(op.path)
            return self._completed(op.path)
        return (cast("Op", op),)

    def due(self, now_us: int) -> Iterable[Op]:
        """Ask again where no answer came, and give up placements that waited too long; call it often.

        Returns:
            Operations that the fold must apply.
        """
        if not self._questions or 0 <= now_us - self._looked_us < LOOK_US:
            return ()
        self._looked_us = now_us
        ops: list[Op] = []
        for question in list(self._questions.values()):
            age_us = now_us - question.asked_us
            if age_us >= WAIT_US:
                ops += self._given_up(question)
            elif age_us >= AGAIN_US and not question.asked_all and self._asked.has_room(now_us):
                question.asked_all = True
                self._ask(question, "")
        return ops

    def _continued(self, op: Onward, now_us: int) -> Iterable[Op]:
        placed, anchor, blocks = op.placed, op.anchor, op.anchor_blocks
        if len(placed.paths) != 1:
            raise ValueError("a placement that goes on from an anchor has one prompt")
        rest = placed.paths[0]
        size = len(rest)
        if HASH_BYTES * blocks + size > PATH_BYTES_MAX:
            raise ValueError("a prompt with its anchor is too long")
        path = self.known.go_on(int.from_bytes(anchor, "little"), blocks, rest, _junction(placed))
        if path is not None:
            whole = msgspec.structs.replace(placed, paths=(path,))
            return [whole, *self._completed(path)] if self._questions else (whole,)
        self.unknown += 1
        question = self._questions.get(anchor)
        if (
            self._waiting >= WAITING_MAX
            or self._waiting_bytes + size > WAITING_BYTES_MAX
            or (question is not None and question.anchor_blocks != blocks)
            or (question is None and not self._asked.has_room(now_us))
        ):
            self.unresolved += 1
            return (_without_prompt(placed),)
        if question is None:
            question = self._questions[anchor] = _Question(anchor, blocks, now_us)
            self._ask(question, placed.replica)
        question.waiting.append(placed)
        self._waiting += 1
        self._waiting_bytes += size
        return (msgspec.structs.replace(placed, paths=()),)

    def _completed(self, path: bytes) -> list[Op]:
        """Placements that waited for a path, whole, and those that waited for them in their turn."""
        ops: list[Op] = []
        told = [path]
        while told:
            start = told.pop()
            question = self._questions.get(start[-HASH_BYTES:])
            if question is None:
                continue
            if len(start) != HASH_BYTES * question.anchor_blocks:
                ops += self._given_up(question)
                continue
            for placed in self._taken(question):
                whole = msgspec.structs.replace(placed, paths=(start + placed.paths[0],))
                self.known.tell(whole.paths[0], question.anchor_blocks, _junction(placed))
                ops.append(whole)
                told.append(whole.paths[0])
        return ops

    def _given_up(self, question: _Question) -> list[Op]:
        waited = self._taken(question)
        self.unresolved += len(waited)
        return [_without_prompt(placed) for placed in waited]

    def _taken(self, question: _Question) -> list[Placed]:
        del self._questions[question.anchor]
        self._waiting -= len(question.waiting)
        self._waiting_bytes -= sum(len(placed.paths[0]) for placed in question.waiting)
        return question.waiting

    def _ask(self, question: _Question, asked: str) -> None:
        asking = PathAsked(self._replica, asked, question.anchor, question.anchor_blocks)
        self.outbox.append(_encoder.encode(asking))

    def _answer(self, op: PathAsked, now_us: int) -> None:
        if op.asked not in (self._replica, ""):
            return
        path = self.known.path_to(int.from_bytes(op.anchor, "little"), op.anchor_blocks)
        if path is not None and self._answered.has_room(now_us):
            self.outbox.append(_encoder.encode(PathTold(path)))


class _Rate:
    """At most so many a second of log time."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = self._count = 0

    def has_room(self, now_us: int) -> bool:
        """Count one more, if that may be."""
        second = now_us // 1_000_000
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._per_s


def _junction(placed: Placed) -> int:
    """Depth at which a prompt left the part that others share, as far as its worker held it."""
    return placed.junction_blocks or placed.safe_blocks


def _without_prompt(placed: Placed) -> Placed:
    """The placement as an arrival of a prompt that is too short to be known."""
    return msgspec.structs.replace(placed, paths=NO_PROMPT, safe_blocks=0, junction_blocks=0)
