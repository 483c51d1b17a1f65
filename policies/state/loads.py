"""Work given to every worker and not yet done, over all replicas.

A request is *reserved* from the moment it is placed and released exactly once:

    (nothing) ── Placed ──> prefilling ── FirstToken ──> decoding ── Finished ──> ended
                                 ├────────── Finished, expired ────────────────────┘
                                 └── Left ──> given up ── Placed, later ──> as before

A replica that was given up while it lived (paused, cut off) repeats `Placed`, with a later time and without
paths, for its requests in flight. A request is in flight if it has not finished and its newest placement is
later than its replica's newest `Left`. It counts as one arrival, by the first placement with paths that is
seen.

So a replica counts its own requests. The others tell it their sums (`LoadVector`), some 25 times a second:

    sum at a worker = own reservations + rows of the others + their placements since their newest vector

A row *absorbs* what its replica placed there at or before its time, since it counts that; a placement alone
makes no row. So the others' requests are no reservations, but a few numbers until the next row
(`policies.state.load_rows`). All requests of a replica that sends no vectors (an older version) are reserved
until they end.

Backlog ``V`` of a worker is the seconds of prefill reserved there, less the time its oldest prefill (the
*head*) has had: an engine slower than predicted never looks idle while a request still waits for its first
token.

All of it is a fold: sums are whole numbers (microseconds, tokens; exact in float64 up to 2**53). Ended
requests are remembered by id for two generations of ``memory_us`` each, so that repeated or reordered
operations change nothing.

Decisions read the sums as columns, and the fold changes them one number at a time. So each column is a numpy
array with a memoryview of the same memory: ``view[slot] += x`` costs 0.05 us, ``array[slot] += x`` 0.13.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.state.clock import FUTURE_US
from policies.state.load_rows import (
    DONE_US,
    FEW,
    INFLIGHT_REQUESTS,
    NONE,
    PREFILL_REQUESTS,
    SUMS,
    Book,
    Increment,
    LoadRows,
    Place,
    numbers,
    packed,
    unpacked,
)
from policies.state.ops import Finished, FirstToken, Left, LoadVector, Placed
from radix import HASH_BYTES

Whole = NDArray[np.float64]
"""Whole numbers, in the type that policies compute with."""

RATE_WINDOW_S = 16
"""Seconds over which arrivals and utilisation are measured.

A few dozen requests a worker at 1 to 3 requests/s (theory E2), and short enough to follow a burst.
"""

NO_RETURNS = (0,) * RATE_WINDOW_S
"""Returns of a slot without any."""

BYTES_OF_RETURN = 2 * HASH_BYTES
"""Bytes of prompts for each cached block up to which a request returns."""

NEVER_US = 2**62
"""A log time that does not come."""

LEADERS_MAX = 32
"""Prefills of other replicas at one worker whose prompts are remembered for followers."""

SORTED_MAX = 512
"""Request ids sorted at once (0.1 ms)."""


class Reservation(msgspec.Struct, gc=False, eq=False):
    """A request: in flight, or remembered because it ended, was given up, or not yet seen placed.

    Attributes:
        slot: Its worker; -1 until it is seen placed.
        at_us: Log time of its newest placement; only a later one reserves it again. -1 if any does.
        service_us: Predicted prefill time.
        context_tokens: Prompt plus expected output.
        arrived: It was counted as an arrival.
        prefilled_us: Log time of its first token; 0 before.
        finished: It finished, and is never in flight again.
        paths: Paths of its prompts, while it prefills.
        safe_blocks: Cached blocks of the first, predicted.
    """

    replica: str = ""
    slot: int = -1
    at_us: int = -1
    service_us: int = 0
    uncached_tokens: int = 0
    context_tokens: int = 0
    arrived: bool = False
    paths: tuple[bytes, ...] = ()
    safe_blocks: int = 0
    prefilled_us: int = 0
    finished: bool = False

    @property
    def path(self) -> bytes:
        """Path of its prompt, while it prefills a single one (`policies.dispatch.followers`)."""
        return self.paths[0] if len(self.paths) == 1 else b""


class Ended:
    """Requests that arrived, were prefilled and finished at a worker: as much as is remembered of them.

    Attributes:
        slot: Slot of the worker; -1 once another worker has it.
    """

    __slots__ = ("slot",)

    finished: ClassVar[bool] = True
    prefilled_us: ClassVar[int] = 1
    """After any beginning: its true time is in the worker's columns."""

    def __init__(self, slot: int) -> None:
        self.slot = slot


Trace = Reservation | Place | Ended


@dataclass(frozen=True, slots=True)
class History:
    """Memory of each slot about ended requests, in whole numbers.

    Attributes:
        second: The newest second of the rate windows, in log time.
        arrivals: Requests placed in each second, at the second modulo `RATE_WINDOW_S`.
        service_us: Prefill placed, likewise.
        returns: Requests placed with most of their prompt cached, likewise.
        done_us: Log time at which the newest prefill was done.
    """

    second: int
    arrivals: Whole
    service_us: Whole
    returns: Whole
    done_us: Whole

    def of(self, slot: int) -> tuple[int, list[int], list[int], int]:
        """History of one slot without its returns, for `Loads.merge_history`."""
        return self.second, _row(self.arrivals, slot), _row(self.service_us, slot), int(self.done_us[slot])

    def returns_of(self, slot: int) -> list[int]:
        """Returns of one slot, likewise."""
        return _row(self.returns, slot)


class Head(msgspec.Struct, frozen=True, gc=False):
    """The oldest prefill of a worker.

    Attributes:
        request_id: Empty if it is one of a replica that sends vectors.
        placed_us: Log time of its placement.
        elapsed_s: Seconds since it began.
        service_s: Its predicted duration.
        context_tokens: Its prompt plus expected output.
    """

    request_id: str
    placed_us: float
    elapsed_s: float
    service_s: float
    context_tokens: int


class Loads:
    """In-flight requests and their sums per worker slot.

    Args:
        memory_us: Ended requests are remembered for one to two times as long.
        own: Id of this replica; its vectors are passed over, since it knows its own requests.

    Attributes:
        changed: Slots at which own requests changed since it was last emptied (`own_vector`), other than by
            placements that are told themselves.
    """

    def __init__(self, *, memory_us: int = 30_000_000, own: str = "") -> None:
        self._memory_us = memory_us
        self.own = own
        self.changed: set[int] = set()
        self._own_us = self._told_us = 0
        """Log time of the newest operation on an own request, and above that of giving up this replica.
        And the same as of the newest vector."""
        self._rows = LoadRows()
        self._generation = 0
        self._traces: dict[str, Trace] = {}
        self._old_traces: dict[str, Trace] = {}
        """Requests of replicas that send vectors are remembered by their places, as long as that is all."""
        self._ended_at: defaultdict[int, list[str]] = defaultdict(list)
        self._old_ended_at: defaultdict[int, list[str]] = defaultdict(list)
        """By slot the ids of reservations among the traces that name it, of the same two generations."""
        self._ended: list[Ended] = []
        """Per slot, its trace of requests of which nothing more can be said."""
        self._left_us: dict[str, int] = {}
        self.requests: dict[str, Reservation] = {}
        self._of_replica: defaultdict[str, dict[str, Reservation]] = defaultdict(dict)
        """Those of other replicas."""
        self._oldest_us = NEVER_US
        """Log time that no request in flight is older than."""
        self._prefilling: list[dict[str, Reservation]] = []
        """Per slot, reservations without a first token, the oldest first."""
        self._queued_us = -1
        """Log time of the newest of them since the start."""
        self._leaders: dict[int, dict[str, Placed]] = {}
        """Per slot, requests of replicas that send vectors whose prompts may be prefilling."""
        self._sums: Whole = np.zeros((SUMS, 0))
        self._second = 0
        self._windows: Whole = np.zeros((RATE_WINDOW_S, 3, 0))
        """Arrivals, their prefill and returns (`History`) of each second, by slot."""
        self._allocate(8)

    def _allocate(self, rows: int) -> None:
        def grown(name: str) -> Whole:
            array = np.zeros(rows)
            old = getattr(self, name, None)
            if old is not None:
                array[: len(old)] = old
            return array

        known = self._sums
        self._sums = np.zeros((SUMS, rows))
        self._sums[:, : known.shape[1]] = known
        self.prefill_us: Whole = self._sums[0]
        self.prefill_requests: Whole = self._sums[1]
        self.prefill_tokens: Whole = self._sums[2]
        self.inflight_requests: Whole = self._sums[3]
        self.inflight_tokens: Whole = self._sums[4]
        self._head_us = grown("_head_us")
        self._head_service_us = grown("_head_service_us")
        self._done_us = grown("_done_us")
        windows = self._windows
        self._windows = np.zeros((RATE_WINDOW_S, 3, rows))
        self._windows[:, :, : windows.shape[2]] = windows
        self._rows.resize(self._sums, self._done_us)
        self._row_head_us_at = self._rows.head_us_at
        self._prefill_us_at = numbers(self.prefill_us)
        self.prefill_requests_at = numbers(self.prefill_requests)
        self._prefill_tokens_at = numbers(self.prefill_tokens)
        self.inflight_requests_at = numbers(self.inflight_requests)
        self._inflight_tokens_at = numbers(self.inflight_tokens)
        self._head_us_at = numbers(self._head_us)
        self._head_service_us_at = numbers(self._head_service_us)
        self._done_us_at = numbers(self._done_us)
        self.backlog_at = self._prefill_us_at, self._head_us_at, self._head_service_us_at
        self._shown = -1
        """Second of the windows that views show; -1 for none."""

    def ensure(self, slot: int) -> None:
        """Make room for a slot."""
        while len(self._prefilling) <= slot:
            self._ended.append(Ended(len(self._prefilling)))
            self._prefilling.append({})
        if slot >= len(self.prefill_us):
            self._allocate(max(slot + 1, 2 * len(self.prefill_us)))

    # The fold.

    def placed(self, op: Placed, slot: int) -> bool:
        """Reserve a request, or renew its reservation; return True if it counted as an arrival."""
        request_id, at_us, paths = op.request_id, op.at_us, op.paths
        service_us, uncached_tokens, cached = op.service_us, op.uncached_tokens, op.safe_blocks
        # One that a decode worker is handed has neither work nor a match, or no prompt.
        arrives = paths != () and (service_us > 0 or uncached_tokens > 0 or cached > 0)
        request: Reservation | None
        if (
            op.replica == self.own
            and at_us >= self._own_us
            and request_id not in self.requests
            and request_id not in self._traces
            and request_id not in self._old_traces
        ):
            # A new one of this replica, placed after the replica was given up, if it was.
            self._own_us = at_us
            if arrives:
                self._count_arrival(op, slot)
            elif not paths:
                self.changed.add(slot)
            request = Reservation(
                self.own, slot, at_us, service_us, uncached_tokens, op.context_tokens, arrives, paths, cached
            )
        else:
            request, arrives = self._placed_otherwise(op, slot, has_work=arrives)
            if request is None:
                return arrives
        self.requests[request_id] = request
        self.inflight_requests_at[slot] += 1
        self._inflight_tokens_at[slot] += op.context_tokens
        if request.prefilled_us:
            self._oldest_us = min(self._oldest_us, at_us)
            return arrives
        self._prefill_us_at[slot] += service_us
        self.prefill_requests_at[slot] += 1
        self._prefill_tokens_at[slot] += uncached_tokens
        queue = self._prefilling[slot]
        if at_us <= self._queued_us:
            self._queue(request_id, request)
            return arrives
        self._queued_us = at_us
        if queue:
            queue[request_id] = request
            return arrives
        queue[request_id] = request
        self._oldest_us = min(self._oldest_us, at_us)  # never behind another prefill, which is older
        self._find_head(slot)
        return arrives

    def _placed_otherwise(self, op: Placed, slot: int, *, has_work: bool) -> tuple[Reservation | None, bool]:
        """Note a placement of another replica, a repetition or a renewal.

        Returns:
            The request if it is to be reserved; True if it counted as an arrival.
        """
        request_id, at_us, replica = op.request_id, op.at_us, op.replica
        if replica in self._rows.books:
            return None, self._placed_there(self._rows.books[replica], op, slot, has_work=has_work)
        known = self.requests.get(request_id)
        request, gone = known or self._recalled(request_id) or Reservation(), False
        if known is None:
            gone = request.finished or at_us <= max(request.at_us, self._left_us.get(replica, -1))
            self._place_again(request, op, slot)
            if request.prefilled_us:
                self._find_head(slot, request.prefilled_us)
        arrives = has_work and not request.arrived
        if arrives:
            request.arrived = True
            self._count_arrival(op, request.slot)
        if len(op.paths) == 1 and not (gone or request.path or request.prefilled_us):
            # The prompt may come after the reservation (`router.shared.placed_forms`).
            request.paths, request.safe_blocks = op.paths, op.safe_blocks
        renewed = known is not None and at_us > request.at_us
        if renewed:
            request.at_us = at_us
            if not request.prefilled_us:
                self._queue(request_id, request)
        if gone:
            if self._trace(request_id) is None:
                self._traces[request_id] = request
        elif request.replica != self.own:
            self._of_replica[request.replica][request_id] = request
        elif renewed or not known:
            self._own_us = max(self._own_us, at_us)
            if renewed or not op.paths:
                self.changed.add(request.slot)  # it is in flight again
        return None if known or gone else request, arrives

    def _placed_there(self, book: Book, op: Placed, slot: int, *, has_work: bool) -> bool:
        """Count a request of a replica that sends vectors until one absorbs it; likewise."""
        request_id, paths = op.request_id, op.paths
        if request_id in self._traces or request_id in self._old_traces or not paths:
            return self._placed_there_again(book, op, slot, has_work=has_work)
        place = self._traces[request_id] = book.places.get(slot) or self._rows.place(book, slot)
        if len(paths) == 1:
            self._leads(op, slot)
        increment = request_id, op.at_us, 1, op.service_us, op.uncached_tokens, op.context_tokens
        if op.at_us > book.counted_us(slot) and self._rows.add(place, increment):
            self._find_head(slot)
        if has_work:
            self._count_arrival(op, slot)
        return has_work

    def _placed_there_again(self, book: Book, op: Placed, slot: int, *, has_work: bool) -> bool:
        """The same for a repetition or a renewal, and for one that is known better, or has no prompt."""
        request_id = op.request_id
        request = self._recalled(request_id)
        if request is None:
            request = self._traces[request_id] = Reservation()
        counted = self._rows.remove(request.replica, request.slot, request_id)
        newer = op.at_us > max(request.at_us, book.counted_us(slot))
        if counted is None:
            self._place_again(request, op, slot)
        arrives = has_work and not request.arrived
        if arrives:
            request.arrived = True
            self._count_arrival(op, request.slot)
        if counted is not None or (newer and not request.finished):
            request.at_us = max(request.at_us, op.at_us)
            self._count_there(request_id, request)
        if len(op.paths) == 1:
            self._leads(op, request.slot)
        self._find_head(request.slot, request.prefilled_us)
        return arrives

    def _place_again(self, request: Reservation, op: Placed, slot: int) -> None:
        """Renew the memory of a request."""
        if request.slot != slot:
            self._ended_at[slot].append(op.request_id)
        request.replica, request.slot, request.at_us = op.replica, slot, max(request.at_us, op.at_us)
        request.service_us, request.uncached_tokens = op.service_us, op.uncached_tokens
        request.context_tokens = op.context_tokens

    def _count_there(self, request_id: str, request: Reservation) -> None:
        """Count a request of a replica that sends vectors until one absorbs it."""
        book = self._rows.books[request.replica]
        self._rows.count(book, request.slot, _increment(request_id, request))

    def first_token(self, op: FirstToken) -> None:
        """Release the prefill part of a reservation."""
        request_id, at_us = op.request_id, op.at_us
        request = self.requests.get(request_id)
        if request is None:
            self._prefilled_elsewhere(request_id, at_us)
            return
        slot = request.slot
        if not request.prefilled_us:
            self._prefill_us_at[slot] -= request.service_us
            self.prefill_requests_at[slot] -= 1
            self._prefill_tokens_at[slot] -= request.uncached_tokens
            del self._prefilling[slot][request_id]
            request.paths = ()
        if at_us > request.prefilled_us:
            request.prefilled_us = at_us
        if request.replica == self.own:
            self.changed.add(slot)
            if at_us > self._own_us:
                self._own_us = at_us
        self._find_head(slot, at_us)

    def finished(self, op: Finished) -> None:
        """Release all of a reservation."""
        request_id, prefilled_us = op.request_id, op.prefilled_us
        request = self.requests.get(request_id)
        if request is None:
            if prefilled_us:
                self._prefilled_elsewhere(request_id, prefilled_us)
            request = self._recalled(request_id) or self._unseen(request_id)
            if self._rows.remove(request.replica, request.slot, request_id) is not None:
                self._find_head(request.slot)
            request.finished = True
            return
        self._let_go_one(request_id, request, op.at_us, prefilled_us)
        if request.arrived and (prefilled_us or request.prefilled_us):
            self._traces[request_id] = self._ended[request.slot]
        else:
            request.finished, request.prefilled_us = True, max(request.prefilled_us, prefilled_us)
            self._remember(request_id, request)

    def left(self, op: Left) -> list[int]:
        """Release a replica's requests placed at or before ``op.at_us``, and return their slots.

        Costs one step for each of its requests that this replica counts one by one, and of the others one for
        each worker.
        """
        if op.at_us <= self._left_us.get(op.replica, -1):
            return []
        self._left_us[op.replica] = op.at_us
        if op.replica == self.own:
            self._own_us = max(self._own_us, op.at_us + 1)
        slots = self._let_go(op.replica, op.at_us)
        book = self._rows.books.get(op.replica)
        if book is not None:
            slots.update(self._drop_rows(book, op.at_us))
        return list(slots)

    def told(self, op: LoadVector, slot_of: Callable[[str], int]) -> list[int]:
        """Take another replica's load in flight, and return the slots with less load than before.

        Args:
            op: Its vector.
            slot_of: The slot of a worker by its id.

        Raises:
            ValueError: It contradicts itself, or too many replicas send vectors. Nothing was counted.
        """
        if op.replica == self.own:
            return []
        rows = unpacked(op)
        slots = [slot_of(worker) for worker in op.workers]
        left_us = self._left_us.get(op.replica, -1)
        if op.at_us <= left_us:
            for slot, row in zip(slots, rows, strict=True):
                if row[DONE_US] < NONE:
                    self._find_head(slot, op.at_us - row[DONE_US])
            return []
        book = self._rows.book(op.replica, left_us)
        if op.replica in self._of_replica:
            self._hand_over(op.replica)
        moved, fell = self._rows.put(book, op, slots, rows)
        if len(moved) > FEW:
            self._find_heads(np.fromiter(moved, np.intp, len(moved)))
        else:
            for slot in moved:
                self._find_head(slot)
        return list(fell)

    @property
    def placed_any(self) -> bool:
        """True if this replica placed requests since `changed` was last emptied."""
        return self._own_us > self._told_us

    def own_vector(self, now_us: int, name_at: Callable[[int], str] = str, *, full: bool) -> LoadVector:
        """Return the load that this replica has in flight, and empty `changed`.

        Args:
            now_us: Log time, later than all that it placed.
            name_at: Id of the worker in a slot.
            full: With all that is in flight, not only where something changed since the vector before.
        """
        told, self.changed = self.changed, set()
        if full:
            told.update(self._own_inflight())
        self._told_us = self._own_us
        return self._own_rows(sorted(told), now_us, name_at, full=full)

    def _own_inflight(self) -> list[int]:
        """Slots at which this replica has anything in flight."""
        slots: list[int] = np.flatnonzero(self.inflight_requests).tolist()
        return [
            slot for slot, sums in zip(slots, self._own_sums(slots), strict=True) if sums[INFLIGHT_REQUESTS]
        ]

    def _own_sums(self, slots: list[int]) -> list[list[int]]:
        """Sums of this replica's requests at some workers: those of all, less those of the others."""
        index = np.array(slots, dtype=np.intp)
        sums = self._sums[:, index]
        row_of = {slot: row for row, slot in enumerate(slots)}
        apart = [
            (request.slot, _increment(request_id, request))
            for reserved in self._of_replica.values()
            for request_id, request in reserved.items()
        ]
        for book in self._rows.books.values():
            sums -= book.cells[index, :SUMS].T
            apart += book.increments()
        for slot, (_, _, prefills, service_us, uncached_tokens, context_tokens) in apart:
            if slot in row_of:
                sums[:, row_of[slot]] -= service_us, prefills, uncached_tokens, 1, context_tokens
        of_slots: list[list[int]] = sums.T.astype(np.int64).tolist()
        return of_slots

    def _own_rows(
        self, told: list[int], now_us: int, name_at: Callable[[int], str], *, full: bool
    ) -> LoadVector:
        rows: list[bytes] = []
        for slot, sums in zip(told, self._own_sums(told), strict=True):
            done_us = self._done_us_at[slot]
            ago_us = now_us - int(done_us) if done_us else NONE
            head_us = service_us = tokens = 0
            if sums[PREFILL_REQUESTS]:
                head = self._own_head(slot)
                head_us, service_us, tokens = now_us - head.at_us, head.service_us, head.context_tokens
            rows.append(packed((*sums, head_us, service_us, tokens, ago_us)))
        return LoadVector(self.own, now_us, tuple(map(name_at, told)), b"".join(rows), full)

    def collect(self, now_us: int, lifetime_us_max: int) -> int:
        """Forget old traces, release requests in flight for too long, and return how many.

        Each released one is a bug somewhere. The requests in flight are inspected only when the oldest of the
        last inspection may have expired.
        """
        self._forget_future(now_us)
        generation = now_us // self._memory_us
        if generation != self._generation:
            stale = 0 < self._generation < generation - 1
            self._old_traces, self._traces = {} if stale else self._traces, {}
            self._old_ended_at = defaultdict(list) if stale else self._ended_at
            self._ended_at = defaultdict(list)
            self._generation = generation
            horizon_us = now_us - 2 * self._memory_us
            self._left_us = {replica: at for replica, at in self._left_us.items() if at > horizon_us}
        for slot in self._leaders:
            self._forget_leaders(slot)
        for book in list(self._rows.books.values()):
            until_us = max(book.newest_us, book.last_us)
            if not now_us - self._memory_us <= until_us <= now_us + FUTURE_US:
                # It fell silent without a word, or its time is no time that any replica may have.
                self._drop_rows(book, until_us)
        if now_us - self._oldest_us <= lifetime_us_max:
            return 0
        expired = [each for each in self.requests.items() if now_us - each[1].at_us > lifetime_us_max]
        for request_id, request in expired:
            self._end(request_id, request)
            request.finished = True
        self._oldest_us = min([request.at_us for request in self.requests.values()], default=NEVER_US)
        return len(expired)

    def retain(self, listed: Container[str], own: str, told: Container[str] = ()) -> None:
        """Release other replicas' requests that a snapshot does not list: they ended unheard of.

        Placements behind the snapshot's position in the log are reserved again when the log is read from
        there. A replica (``own``) knows its own requests best. Rows go with the replicas of which the
        snapshot has no vector (``told``).
        """
        for book in list(self._rows.books.values()):
            if book.replica == own:
                continue
            if book.replica not in told:
                self._drop_rows(book, book.newest_us, placed=False)
            for slot, (request_id, *_) in list(book.increments()):
                if request_id not in listed:
                    request = self._recalled(request_id)
                    if request is not None:
                        request.at_us = -1
                    self._rows.remove(book.replica, slot, request_id)
                    self._find_head(slot)
        for request_id, request in list(self.requests.items()):
            if request.replica != own and request_id not in listed:
                self._end(request_id, request)
                request.at_us = -1

    def drop(self, slot: int) -> None:
        """Free a slot that has nothing in flight, for another worker.

        Costs one step for each ended request of this worker that is remembered.
        """
        assert self.inflight_requests[slot] == 0
        for array in (self._done_us, self._head_us, self._head_service_us):
            array[slot] = 0
        self._sums[:, slot] = self._windows[:, :, slot] = 0
        self._prefilling[slot].clear()
        self._rows.clear(slot)
        self._leaders.pop(slot, None)
        self.changed.discard(slot)
        self._ended[slot].slot = -1
        self._ended[slot] = Ended(slot)
        for ended_at in (self._ended_at, self._old_ended_at):
            for request_id in ended_at.pop(slot, ()):
                for traces in (self._traces, self._old_traces):
                    trace = traces.get(request_id)
                    if trace is not None and trace.slot == slot:
                        del traces[request_id]

    # Values that decisions read.

    def knows(self, request_id: str) -> bool:
        """True if a request is in flight or remembered."""
        return request_id in self.requests or self._trace(request_id) is not None

    def has_finished(self, request_id: str) -> bool:
        """True if a request is remembered as finished."""
        request = self._trace(request_id)
        return request is not None and request.finished

    def slot_of(self, request_id: str) -> int:
        """Slot of a request in flight, as far as is known one by one; else -1."""
        request = self.requests.get(request_id)
        return -1 if request is None else request.slot

    def last_slot_of(self, request_id: str) -> int:
        """Slot of a request in flight or remembered; else -1."""
        request = self.requests.get(request_id) or self._trace(request_id)
        return -1 if request is None else request.slot

    def prefilled(self, request_id: str) -> bool | None:
        """True if the first token of a request came; None if it ended, or was given up, without one."""
        request = self.requests.get(request_id)
        if request is not None:
            return request.prefilled_us > 0
        known = self._trace(request_id)
        return True if known is not None and known.prefilled_us else None

    def replicas(self) -> set[str]:
        """Other replicas with a request in flight, and those that send vectors."""
        return self._of_replica.keys() | self._rows.books.keys()

    def left_us(self, replica: str) -> int:
        """Log time up to which a replica's placements were dropped; 0 if none were lately."""
        return self._left_us.get(replica, 0)

    def backlog_s(self, slots: slice | NDArray[np.intp], now_us: int) -> NDArray[np.float64]:
        """V of each slot, in seconds: reserved prefill less the time its head had."""
        elapsed_us = np.minimum(np.maximum(now_us - self._head_us[slots], 0), self._head_service_us[slots])
        backlog: NDArray[np.float64] = (self.prefill_us[slots] - elapsed_us) / 1e6
        return backlog

    def backlog_at_s(self, slot: int, now_us: int) -> float:
        """V of one slot, in seconds."""
        return self.backlogs_s((slot,), now_us)[0]

    def backlogs_s(self, slots: Sequence[int], now_us: int) -> list[float]:
        """V of a few slots, in seconds: as `backlog_at_s` of each, in one call."""
        head_us_at, service_us_at = self._head_us_at, self._head_service_us_at
        prefill_us_at = self._prefill_us_at
        backlogs_s: list[float] = []
        for slot in slots:
            elapsed_us = now_us - head_us_at[slot]
            service_us = service_us_at[slot]
            if elapsed_us > service_us:
                elapsed_us = service_us
            elif elapsed_us < 0:
                elapsed_us = 0.0
            backlogs_s.append((prefill_us_at[slot] - elapsed_us) / 1e6)
        return backlogs_s

    def head(self, slot: int, now_us: int) -> Head | None:
        """The oldest prefill of a slot, believed to be running; None if there is none."""
        request_id, placed_us, tokens = "", self._rows.head_us_at[slot], 0
        first = next(iter(self._prefilling[slot].items()), None)
        if first is not None and self._goes_first(first[1], slot):
            request_id, placed_us, tokens = first[0], float(first[1].at_us), first[1].context_tokens
        elif placed_us:
            tokens = self._rows.head_tokens(slot)
        else:
            return None
        elapsed_s = max(now_us - self._head_us_at[slot], 0.0) / 1e6
        return Head(request_id, placed_us, elapsed_s, self._head_service_us_at[slot] / 1e6, tokens)

    def prefills(self, slot: int) -> Iterator[tuple[str, Reservation]]:
        """Prefilling requests of a slot: those reserved, and those of vectors that may go on.

        Of the former the oldest comes first, all others in any order.
        """
        yield from self._prefilling[slot].items()
        for request_id, op in self._leaders.get(slot, {}).items():
            placed_us = self._goes_on(op, slot)
            if placed_us:
                cached = op.safe_blocks
                yield request_id, Reservation(op.replica, slot, placed_us, paths=op.paths, safe_blocks=cached)

    def oldest_prefill_us(self, slot: int) -> int:
        """Log time at which the oldest unfinished prefill was placed; `NEVER_US` if there is none."""
        row_us = self._row_head_us_at[slot]
        for oldest in self._prefilling[slot].values():
            return min(oldest.at_us, int(row_us)) if row_us else oldest.at_us
        return int(row_us) if row_us else NEVER_US

    def prefilled_us(self, slot: int) -> int:
        """Log time at which the newest prefill of a slot was done; 0 if none was."""
        return int(self._done_us_at[slot])

    def rates(self, now_us: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Arrivals per second and utilisation of each slot over the last window.

        Utilisation is the work placed there over the time: more than 1 in overload.
        """
        self._advance(now_us // 1_000_000)
        arrivals, service_us, _ = self._windows.sum(axis=0)
        return arrivals / RATE_WINDOW_S, service_us / (1e6 * RATE_WINDOW_S)

    def return_ratio(self, slots: NDArray[np.intp]) -> float:
        """Share of these slots' arrivals over the last window that found most of their prompt cached."""
        windows = self._windows
        # Of many slots it is quicker to add up all first, and as exact.
        many = 4 * len(slots) > windows.shape[2]
        of_slots = windows.sum(axis=0)[:, slots] if many else windows[:, :, slots].sum(axis=0)
        arrivals, _, returns = of_slots.sum(axis=1).tolist()
        return returns / arrivals if arrivals else 0.0

    # Snapshot.

    def dump_steps(self) -> Generator[Placed | FirstToken | Left | LoadVector | None, None, None]:
        """Yield everything in flight as operations, with slots in place of worker ids (the fleet names them).

        Own requests come twice: one by one, by which a reader knows what arrived, and as the vector that its
        reader needs before the partial ones in the log.
        In steps (None), between which requests may come and go: new ones are left out, since they are in the
        log behind the snapshot, and so is the end of those that go.
        """
        held = list(self.requests)
        counted = sorted(
            (increment, slot, book.replica)
            for book in self._rows.books.values()
            for slot, increment in book.increments()
        )
        for replica, at_us in sorted(self._left_us.items()):
            yield Left(replica, at_us)
        parts: list[list[str]] = []
        for first in range(0, len(held), SORTED_MAX):
            parts.append(sorted(held[first : first + SORTED_MAX]))
            yield None
        for request_id in heapq.merge(*parts):
            request = self.requests.get(request_id)
            if request is None:
                yield None
                continue
            placed = Placed(
                request_id,
                request.at_us,
                str(request.slot),
                request.replica,
                request.service_us,
                request.uncached_tokens,
                request.context_tokens,
                (b"",) if request.arrived else (),
            )
            prefilled_us = request.prefilled_us
            yield placed
            if prefilled_us:
                yield FirstToken(request_id, prefilled_us)
        for replica in sorted(self._rows.books):
            book = self._rows.books.get(replica)
            yield from book.dumped() if book is not None else ()
        for increment, slot, replica in counted:
            request_id, at_us, prefills, service_us, uncached_tokens, context_tokens = increment
            known = self._trace(request_id)
            paths: tuple[bytes, ...] = (b"",)
            if isinstance(known, Reservation):
                service_us, uncached_tokens = known.service_us, known.uncached_tokens
                paths = paths if known.arrived else ()
            yield Placed(
                request_id, at_us, str(slot), replica, service_us, uncached_tokens, context_tokens, paths
            )
            if not prefills and known is not None:
                yield FirstToken(request_id, known.prefilled_us)
        inflight = self._own_inflight()
        if inflight:
            yield self._own_rows(sorted(inflight), self._own_us, str, full=True)

    def dump_history(self) -> History:
        """Copy the history of all slots."""
        arrivals, service_us, returns = self._windows.transpose(1, 2, 0).copy()
        return History(self._second, arrivals, service_us, returns, self._done_us.copy())

    def merge_history(
        self,
        slot: int,
        second: int,
        arrivals: list[int],
        service_us: list[int],
        done_us: int,
        returns: Sequence[int],
    ) -> None:
        """Merge the history of a slot; the greater count of each second wins, and the newest prefill."""
        self._advance(second)
        kept = max(0, RATE_WINDOW_S - (self._second - second))
        columns = (second - np.arange(kept)) % RATE_WINDOW_S
        dumped = np.array((arrivals, service_us, returns), dtype=float).T[columns]
        self._windows[columns, :, slot] = np.maximum(self._windows[columns, :, slot], dumped)
        self._find_head(slot, done_us)

    # Inside.

    def _prefilled_elsewhere(self, request_id: str, at_us: int) -> None:
        """Note the first token of a request that is not reserved here."""
        request = self._recalled(request_id) or self._unseen(request_id)
        counted = self._rows.remove(request.replica, request.slot, request_id)
        request.paths = ()
        if at_us > request.prefilled_us:
            request.prefilled_us = at_us
        if counted is not None:
            self._count_there(request_id, request)
        if request.slot >= 0:
            self._find_head(request.slot, at_us)

    def _trace(self, request_id: str) -> Trace | None:
        return self._traces.get(request_id) or self._old_traces.get(request_id)

    def _recalled(self, request_id: str) -> Reservation | None:
        """Remembered state of a request, with room for more than its place."""
        known = self._trace(request_id)
        if known is None or isinstance(known, Reservation):
            return known
        if isinstance(known, Ended):
            request = Reservation(slot=known.slot, arrived=True, prefilled_us=1, finished=True)
        else:
            replica, counted_us = known.book.replica, known.book.until_us
            if self._rows.books.get(replica) is known.book:
                counted_us = -1  # its book knows the counted requests
            request = Reservation(replica, known.slot, counted_us, arrived=True)
            for each, at_us, _, *work in known.increments:
                if each == request_id:
                    request.at_us = at_us
                    request.service_us, request.uncached_tokens, request.context_tokens = work
        self._traces[request_id] = request
        self._ended_at[known.slot].append(request_id)
        return request

    def _unseen(self, request_id: str) -> Reservation:
        """Remember a request that was not seen placed."""
        request = self._traces[request_id] = Reservation()
        return request

    def _end(self, request_id: str, request: Reservation) -> None:
        """Release a reservation."""
        self._let_go_one(request_id, request)
        self._remember(request_id, request)

    def _let_go_one(self, request_id: str, request: Reservation, at_us: int = 0, first_us: int = 0) -> None:
        """Count a request no longer, and find the head then.

        ``at_us`` and ``first_us``: log times of its end and of its first token, if told now.
        """
        slot = request.slot
        del self.requests[request_id]
        if request.replica == self.own:
            self.changed.add(slot)
            if at_us > self._own_us:
                self._own_us = at_us
        else:
            of_replica = self._of_replica[request.replica]
            del of_replica[request_id]
            if not of_replica:
                del self._of_replica[request.replica]
        self.inflight_requests_at[slot] -= 1
        self._inflight_tokens_at[slot] -= request.context_tokens
        if not request.prefilled_us:
            self._prefill_us_at[slot] -= request.service_us
            self.prefill_requests_at[slot] -= 1
            self._prefill_tokens_at[slot] -= request.uncached_tokens
            del self._prefilling[slot][request_id]
        elif not first_us:
            return
        self._find_head(slot, first_us)

    def _remember(self, request_id: str, request: Reservation) -> None:
        """Remember a request without the fields that a later placement repeats."""
        self._traces[request_id] = request
        self._ended_at[request.slot].append(request_id)
        request.paths, request.replica = (), ""
        request.service_us = request.uncached_tokens = request.context_tokens = 0

    def _let_go(self, replica: str, until_us: int) -> set[int]:
        """Release a replica's placements until a log time; return the slots."""
        reserved = self.requests if replica == self.own else self._of_replica.get(replica, {})
        due = [each for each in reserved.items() if each[1].at_us <= until_us]
        gone = [each for each in due if each[1].replica == replica]
        for request_id, request in gone:
            self._end(request_id, request)
        return {request.slot for _, request in gone}

    def _hand_over(self, replica: str) -> None:
        """Count a replica's placements until its vectors absorb them: it sends its first one."""
        for request_id, request in list(self._of_replica[replica].items()):
            self._let_go_one(request_id, request)
            self._traces[request_id] = request
            self._ended_at[request.slot].append(request_id)
            self._count_there(request_id, request)
            self._find_head(request.slot)
            if request.path:
                paths, safe_blocks = request.paths, request.safe_blocks
                op = Placed(request_id, request.at_us, "", replica, 0, 0, 0, paths, safe_blocks=safe_blocks)
                self._leads(op, request.slot)
                request.paths = ()

    def _drop_rows(self, book: Book, until_us: int, *, placed: bool = True) -> list[int]:
        """Void a replica's vectors until a log time, and if ``placed`` its placements; return the slots."""
        slots = self._rows.drop(book, until_us, placed=placed)
        self._find_heads(slots)
        return list(map(int, slots))

    def _own_head(self, slot: int) -> Reservation:
        """The oldest unfinished prefill of this replica at a worker, of which there is one."""
        return next(request for request in self._prefilling[slot].values() if request.replica == self.own)

    def _leads(self, op: Placed, slot: int) -> None:
        """Remember a request while it prefills, for followers (`policies.dispatch.followers`)."""
        leaders = self._leaders.get(slot)
        if leaders is None:
            leaders = self._leaders[slot] = {}
        elif len(leaders) >= LEADERS_MAX:
            self._forget_leaders(slot)
            for request_id in list(leaders)[: len(leaders) - LEADERS_MAX // 2]:
                del leaders[request_id]
        leaders[op.request_id] = op

    def _goes_on(self, op: Placed, slot: int) -> int:
        """Newest placement of a leader whose prefill may go on, as far as told; 0 if it may not."""
        known, at_us, book = self._trace(op.request_id), op.at_us, self._rows.books.get(op.replica)
        if isinstance(known, Reservation):
            if known.prefilled_us or known.finished:
                return 0
            at_us = max(at_us, known.at_us)
        if book is None or at_us <= self.left_us(op.replica) or at_us < book.prefills_since_us(slot):
            return 0
        return at_us

    def _forget_leaders(self, slot: int) -> None:
        leaders = self._leaders[slot]
        for request_id, op in list(leaders.items()):
            if not self._goes_on(op, slot):
                del leaders[request_id]

    def _queue(self, request_id: str, request: Reservation) -> None:
        """Put a prefill that is not the newest, or no longer, into its place in its worker's queue."""
        queue = self._prefilling[request.slot]
        queue.pop(request_id, None)
        in_order = not queue or next(reversed(queue.values())).at_us < request.at_us
        queue[request_id] = request
        if not in_order:
            self._prefilling[request.slot] = dict(sorted(queue.items(), key=_age))
        self._queued_us = max(self._queued_us, request.at_us)
        self._oldest_us = min(self._oldest_us, request.at_us)
        self._find_head(request.slot)

    def _find_head(self, slot: int, ended_us: int = 0) -> None:
        """Find the oldest unfinished prefill; it began when it was placed or its predecessor was done.

        ``ended_us``: log time at which a prefill was done, if one was.
        """
        done_us = self._done_us_at[slot]
        if ended_us > done_us:
            self._done_us_at[slot] = done_us = ended_us
        queue, row_us = self._prefilling[slot], self._row_head_us_at[slot]
        if queue:
            first = next(iter(queue.values()))
            placed_us: float = first.at_us
            service_us: float = first.service_us
            if row_us and not self._goes_first(first, slot):
                placed_us, service_us = row_us, self._rows.head_service_us_at[slot]
        elif row_us:
            placed_us, service_us = row_us, self._rows.head_service_us_at[slot]
        else:
            self._head_us_at[slot] = self._head_service_us_at[slot] = 0
            return
        self._head_us_at[slot] = placed_us if placed_us > done_us else done_us
        self._head_service_us_at[slot] = service_us

    def _goes_first(self, request: Reservation, slot: int) -> bool:
        """True if the oldest reservation is the head, and not the oldest prefill of the rows.

        The longer one of a row and a reservation of one moment counts, as of two rows.
        """
        rows = self._rows
        row_us, service_us = rows.head_us_at[slot], rows.head_service_us_at[slot]
        return not row_us or (request.at_us, -request.service_us) < (row_us, -service_us)

    def _find_heads(self, slots: NDArray[np.intp]) -> None:
        """Find the oldest unfinished prefills of many workers, most of which have them in rows."""
        placed_us = self._rows.head_us[slots]
        began_us = np.where(placed_us > 0, np.maximum(placed_us, self._done_us[slots]), 0.0)
        self._head_us[slots], self._head_service_us[slots] = began_us, self._rows.head_service_us[slots]
        queues = self._prefilling
        for slot in slots.tolist():
            if queues[slot]:
                self._find_head(slot)

    def _count_arrival(self, op: Placed, slot: int) -> None:
        second = op.at_us // 1_000_000
        if second != self._shown and not self._show(second):
            return
        self._arrivals_at[slot] += 1
        self._service_us_at[slot] += op.service_us
        if op.safe_blocks and BYTES_OF_RETURN * op.safe_blocks >= sum(map(len, op.paths)):
            self._returns_at[slot] += 1

    def _show(self, second: int) -> bool:
        """Let the views show a second; False if it is older than the windows."""
        self._advance(second)
        if self._second - second >= RATE_WINDOW_S:
            return False
        self._arrivals_at, self._service_us_at, self._returns_at = map(
            numbers, self._windows[second % RATE_WINDOW_S]
        )
        self._shown = second
        return True

    def _forget_future(self, now_us: int) -> None:
        """Forget a time that no replica may have: after it nothing would be counted until it comes.

        The clock of this replica was ahead, and was set back (`policies.state.clock`).
        """
        until_us = now_us + FUTURE_US
        if self._second * 1_000_000 > until_us:
            self._windows[:] = 0
            self._second, self._shown = now_us // 1_000_000, -1
        self._done_us[self._done_us > until_us] = now_us

    def _advance(self, second: int) -> None:
        """Empty the columns of the seconds that begin now."""
        if second <= self._second:
            return
        for begun in range(max(self._second + 1, second - RATE_WINDOW_S + 1), second + 1):
            self._windows[begun % RATE_WINDOW_S] = 0
        self._second, self._shown = second, -1


def _increment(request_id: str, request: Reservation) -> Increment:
    prefills = not request.prefilled_us
    work = (request.service_us, request.uncached_tokens) if prefills else (0, 0)
    return request_id, request.at_us, int(prefills), *work, request.context_tokens


def _age(item: tuple[str, Reservation]) -> tuple[int, str]:
    """Place of a request in the queue of its worker."""
    return item[1].at_us, item[0]


def _row(column: Whole, slot: int) -> list[int]:
    row: list[int] = column[slot].astype(np.int64).tolist()
    return row
