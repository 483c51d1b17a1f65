"""The shared log in virtual time: a replica's operations reach the others a little later.

    put put ... put, load vector --> flush --delay_s--> every other replica applies it
                                       └─ pause_s: what is put meanwhile goes with the next flush

As in `router.shared.publisher` the pause comes behind a flush: a lone operation goes at once. All entries
take equally long, as through one Redis, so all replicas read them in one order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from loadtest.simulator.clock import VirtualClock, VirtualTimer
from policies import LoadPort, LoadVectors, Op


class Reader(Protocol):
    """Reader of the log."""

    def heard(self, ops: Sequence[Op]) -> None:
        """Apply another replica's operations."""


class SharedLog:
    """Delivery of operations between replicas.

    Args:
        delay_s: From a flush until the others have applied it.
        pause_s: Between two flushes of one replica.
    """

    def __init__(self, clock: VirtualClock, *, delay_s: float, pause_s: float) -> None:
        self._clock = clock
        self.delay_s = delay_s
        self._pause_s = pause_s
        self._readers: list[Reader] = []

    def writer(self, reader: Reader, loads: LoadPort, now_us: Callable[[], int]) -> "Writer":
        """Let one more replica read, and write; ``now_us`` is its log time."""
        self._readers.append(reader)
        return Writer(self, reader, LoadVectors(loads, now_us, lambda: self.alone, self._clock.time))

    def leave(self, reader: Reader) -> None:
        """A replica is gone: it reads no more."""
        self._readers.remove(reader)

    def append(self, reader: Reader, ops: Sequence[Op]) -> None:
        """Send an entry of one replica to the others."""
        if len(self._readers) > 1 or reader not in self._readers:
            self._clock.call_later(self.delay_s, partial(self._deliver, reader, ops))

    def _deliver(self, writer: Reader, ops: Sequence[Op]) -> None:
        for reader in list(self._readers):
            if reader is not writer:
                reader.heard(ops)

    @property
    def alone(self) -> bool:
        """True if there is one replica at most."""
        return len(self._readers) < 2

    @property
    def clock(self) -> VirtualClock:
        """Virtual time."""
        return self._clock

    @property
    def pause_s(self) -> float:
        """Between two flushes of one replica."""
        return self._pause_s


class Writer:
    """Operations of one replica that are not flushed yet."""

    def __init__(self, log: SharedLog, reader: Reader, vectors: LoadVectors) -> None:
        self._log = log
        self._reader = reader
        self._vectors = vectors
        self._timer: VirtualTimer | None = None
        self._ops: list[Op] = []
        self._waits = False
        self._flushed_s = -log.pause_s

    def put(self, op: Op) -> None:
        """Say something: at once, or with the next flush."""
        self._ops.append(op)
        self._wake()

    def loads_changed(self) -> None:
        """Schedule their publication, unless the replica is alone (as `router.shared.publisher`)."""
        if self._timer is None and not self._log.alone:
            wait_s = self._vectors.wait_s()
            if wait_s is not None:
                self._timer = self._log.clock.call_later(wait_s, self._tell_loads)

    def _tell_loads(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        if not self._waits:
            self._waits = True
            self._log.clock.call_at(self._flushed_s + self._log.pause_s, self._flush)

    def _flush(self) -> None:
        ops, self._ops = self._ops, []
        self._waits = False
        self._flushed_s = self._log.clock.time()
        vector = None if self._log.alone else self._vectors.take()
        if vector is not None:
            ops.append(vector)
        if ops:
            self._log.append(self._reader, ops)
        self.loads_changed()
