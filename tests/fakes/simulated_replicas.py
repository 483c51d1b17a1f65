"""Replicas over one log, without Redis, sockets or a clock: `router.shared` as plain data.

    publish ──> fleet.apply, buffer      flush ──> log      read ──> fleet.apply
                                                    │ trimmed behind the snapshot
                                                    └─ gap ──> restore, go on behind what it covers

Every replica has a naive fold beside its real one, which gets the same operations. A snapshot carries the
naive fold of its writer, so that the knowledge of its reader afterwards is a union of sets.

The protocol is that of `router.shared`. Its rules:

* A replica's operations reach the log in the order of their publication. An entry whose acknowledgement was
  lost comes again, with the operations published since.
* A snapshot covers the log up to its writer's read position at its beginning. A replica writes one only when
  all its operations published by then are in the log, and only over a snapshot that it knows: it had read the
  log before that snapshot before it began its own.
* A replica that starts, or fell behind the trimmed log, takes the others' requests in flight from the
  snapshot, and reads everything behind the part that the snapshot covers.
* A replica that dropped operations publishes `Left` and its requests in flight or waiting again, and then
  writes a snapshot and a mark, on which all replicas merge the snapshot.
* A replica that starts first publishes `Left` for its former life.
* First tokens, ends and renewals are not published: each flush ends with a load vector, if anything changed.
  The first vector is a full one, and so is each one after a vector that may be lost, or void since another
  replica published `Left` of its replica.
* Placements go through the log with the new part of their prompt. A replica that does not know an anchor asks
  all others at once, and begins no snapshot while it waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from fakes.naive_fold import NaiveFold
from msgspec import structs
from msgspec.msgpack import encode

from policies import FirstToken, FleetRules, FleetState, Left, Op, Placed, Waiting, encode_op
from router.shared.known_paths import KnownPaths
from router.shared.placed_forms import PathAsked, PlacedForms, decode_entry

EVERY_STEP = 1_000_000
MOMENTS = 16
"""Each replica has moments of its own: two clocks never show the same one."""

RULES = FleetRules(memory_s=30.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Contents of the newest snapshot.

    Attributes:
        covered: Everything in the log before this position is included.
        settled: End of the log when it was written, with its mark: a replica that has read so far knows it
            all.
        pieces: The fold's bytes.
        naive: The same by definition.
    """

    covered: int
    settled: int
    pieces: list[bytes]
    naive: NaiveFold


@dataclass(slots=True)
class SimulatedLog:
    """Contents of Redis: entries from ``first`` on, and a snapshot.

    Attributes:
        entries: Writer and operations (or None: a mark that asks to read the snapshot), from the very first.
        first: Position of the first entry that is still there.
        snapshot: The newest one.
    """

    entries: list[tuple[str, bytes | None]] = field(default_factory=list)
    first: int = 0
    snapshot: Snapshot | None = None

    @property
    def end(self) -> int:
        return len(self.entries)


@dataclass(slots=True)
class SnapshotInProgress:
    """A snapshot that its writer has begun."""

    covered: int
    steps: Iterator[bytes | None]
    pieces: list[bytes] = field(default_factory=list)


class SimulatedReplica:
    """One life of one replica."""

    def __init__(self, name: str, life: int, log: SimulatedLog, now_us: int) -> None:
        self.name = name
        self.writer = f"{name}/{life}"
        self.log = log
        self.fleet = FleetState(RULES, own=name)
        self.naive = NaiveFold(own=name)
        self.full = True
        self.number = sum(name.encode()) % MOMENTS
        self.forms = PlacedForms(name, KnownPaths(1 << 20, blocks_min=1))
        self.reads = 0
        self.buffer: list[Op] = []
        self.dropped = False
        self.merging: Iterator[float] | None = None
        self.merged_position = 0
        self.position = 0
        self.settled = 0
        self.asleep = False
        self.beat_us = now_us
        self.said_us = now_us
        self.prefilled: dict[str, bool] = {}
        self.waiting: dict[str, Waiting] = {}
        self.snapshot: SnapshotInProgress | None = None
        if log.snapshot is not None:
            self._merge(missed=True)

    @property
    def settles(self) -> bool:
        """True if it has read again all that it knew before it merged a snapshot."""
        return self.merging is None and self.position >= self.settled

    def moment(self, now_us: int) -> int:
        """A log time at which no replica has said anything yet."""
        passed_us = max(now_us, self.said_us + 1)
        self.said_us = passed_us + (self.number - passed_us) % MOMENTS
        return self.said_us

    def publish(self, op: Op) -> None:
        told = self.fleet.load_reports.tells(op)
        self.fleet.apply(op)
        self.naive.apply(op)
        if told:
            self.buffer.append(op)

    def flush(self, *, acknowledged: bool = True) -> None:
        bodies = [self.forms.outgoing(encode_op(op)) for op in self.buffer]
        if self.fleet.load_reports.due or self.full:
            vector = self.fleet.load_reports.vector(self.moment(self.said_us), full=self.full)
            bodies.append(encode_op(vector))
            self.full = False
        if bodies:
            self._append(bodies)
        if acknowledged:
            self.buffer.clear()
        else:
            self.forms.reset()
            self.full = True

    def _append(self, bodies: list[bytes]) -> None:
        entry = b"\xdd" + len(bodies).to_bytes(4, "big") + b"".join(bodies)
        self.log.entries.append((self.writer, entry))

    def overflow(self, count: int) -> None:
        """Redis was away for long: the oldest operations are dropped; a snapshot must carry their facts."""
        if self.buffer and self.snapshot is None:
            del self.buffer[:count]
            self.dropped = True

    def read(self, count: int) -> None:
        """Read some entries; after a gap the snapshot first."""
        self.step_merge(EVERY_STEP)
        if self.position < self.log.first:
            self._merge(missed=True)
            self.step_merge(EVERY_STEP)
        for _ in range(count):
            if self.position == self.log.end:
                return
            writer, data = self.log.entries[self.position]
            if data is None and writer != self.writer:
                # The position is passed when the snapshot is merged.
                self._merge(missed=False)
                return
            self.position += 1
            if data is not None and writer != self.writer:
                self._apply(data)

    def _apply(self, data: bytes) -> None:
        self.reads += 1
        for op in decode_entry(data).ops:
            for whole in self.forms.incoming(op, self.reads * 1_000_000):
                self.fleet.apply(whole)
                self.naive.apply(whole)
                self.full = self.full or (isinstance(whole, Left) and whole.replica == self.name)
        if self.forms.outbox:
            self._append([_to_all(body) for body in self.forms.outbox])
            self.forms.outbox.clear()

    def read_all(self) -> None:
        while self.merging is not None or self.position < self.log.end:
            self.read(self.log.end)

    def rewind(self, count: int) -> None:
        """Read some entries again that are still there."""
        self.step_merge(EVERY_STEP)
        self.settled = max(self.settled, self.position)
        self.position = max(self.position - count, min(self.position, self.log.first))

    def disown(self) -> None:
        """Release everything in flight here and reserve it again: an end that was dropped never comes."""
        self.publish(Left(self.name, self.moment(self.said_us)))
        self.full = True
        self.renew()

    def renew(self) -> None:
        """Say of all requests in flight or waiting here that they go on."""
        for op in self.waiting.values():
            self.publish(structs.replace(op, at_us=self.moment(self.said_us)))
        placed = {op.request_id: op for op in self.naive.said.values() if isinstance(op, Placed)}
        for request_id, prefilled in self.prefilled.items():
            at_us = self.moment(self.said_us)
            self.publish(structs.replace(placed[request_id], at_us=at_us, paths=()))
            if prefilled:
                self.publish(FirstToken(request_id, at_us))

    def begin_snapshot(self) -> None:
        if self.snapshot is None and not self.forms.waits:
            if self.dropped:
                self.disown()
            self.snapshot = SnapshotInProgress(self.position, self.fleet.snapshot_steps())

    def step_snapshot(self, steps: int) -> None:
        if self.snapshot is not None:
            pieces = islice(self.snapshot.steps, steps)
            self.snapshot.pieces.extend(piece for piece in pieces if piece is not None)

    def finish_snapshot(self, margin: int) -> None:
        """Write the snapshot that was begun, and trim the log a margin behind its covered part."""
        self.step_snapshot(EVERY_STEP)
        progress, self.snapshot = self.snapshot, None
        newest = self.log.snapshot
        if progress is None or (newest is not None and progress.covered < newest.settled):
            return
        self.flush()
        if self.dropped:
            self.log.entries.append((self.writer, None))
            self.dropped = False
        self.log.snapshot = Snapshot(progress.covered, self.log.end, progress.pieces, self.naive.copy())
        self.log.first = max(self.log.first, progress.covered - margin)

    def step_merge(self, steps: int) -> None:
        """Merge a snapshot for some steps; operations may be published in between.

        Only at the end has it read all that the snapshot covers: a snapshot that it writes before covers
        less.
        """
        if self.merging is not None and len(list(islice(self.merging, steps))) < steps:
            self.merging, self.position = None, self.merged_position

    def _merge(self, *, missed: bool) -> None:
        snapshot = self.log.snapshot
        assert snapshot is not None, "it is written before a mark, and before the log is trimmed"
        self.merging = self.fleet.restore_steps(snapshot.pieces, self.name, missed=missed)
        self.merged_position = snapshot.covered if missed else self.position + 1
        self.naive.merge(snapshot.naive)
        self.settled = max(self.settled, self.position, snapshot.settled)


def _to_all(body: bytes) -> bytes:
    """A question as all replicas are asked it; answers as they are."""
    (op,) = decode_entry(b"\x91" + body).ops
    return encode(structs.replace(op, asked="")) if isinstance(op, PathAsked) else body
