"""Numbers of one publisher's batches: gaps, replays, restarts, late joins.

Each process numbers its batches from 0, and some may never come: ZeroMQ drops batches that a subscriber reads
too slowly, and those sent before a subscription has arrived. A publisher keeps its latest batches (10,000 in
vLLM's distributed/kv_events.py) and sends them again on request. So:

    joining ──replay from 0──> complete      all batches of the process are known
        └───────────────────> partial        only later ones: true, but not all
    complete ── gap, or connected again ──> asked for the batches after the last one, and for that one too:
        the same bytes      the same process: go on
        other bytes, none   another process with an empty cache: all is lost, join again
        it is gone already  the missing ones will never come: all is lost, partial
    partial ── connected again ──> asked for everything: complete, or as before

The last batch has a time stamp, so it identifies its process; any other number that comes again is another
process's. Without a replay endpoint a reconnected publisher counts as the same process if its numbers go on.
"""

from collections import deque
from enum import StrEnum
from typing import Protocol

HELD_MAX = 10_000
HELD_BYTES_MAX = 64 << 20
"""Batches held while an answer is awaited: as many as can be asked for."""


class Loss(StrEnum):
    """Reason why all earlier batches are void; ``AGAIN``: they are repeated from the beginning."""

    RESTART = "restart"
    GAP = "gap"
    AGAIN = "again"


class Listener(Protocol):
    """Receiver of the batches in order."""

    def batch(self, payload: bytes) -> None:
        """Apply the next batch."""

    def lost(self, loss: Loss) -> None:
        """Void all earlier batches; `Sequence.complete` still has its old value."""


class Sequence:
    """The numbers of one publisher.

    Attributes:
        complete: All batches of its process are known; the owner may set it after a batch that clears the
            cache.
        asked: Number from which on the owner is to ask for batches; None for none.
        next: Number of the next batch; None for any.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.complete = False
        self.asked: int | None = 0
        self.next: int | None = None
        self.gaps = 0
        self.restarts = 0
        self._last = b""  # the last batch that the owner got
        self._history = False  # earlier batches still hold for the owner
        self._missing = False  # a number is missing; else the question only checks
        self._asked_at = 0  # `next` at the question
        self._replies = 0
        self._useless = False  # the rest of the answer is: another process, or a number is missing
        self._other = False
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0

    @property
    def live(self) -> bool:
        """True if the known batches are all there are, as far as can be known."""
        return self.complete and self.asked is None

    def connected(self) -> None:
        """Check a publisher that connected; held batches, perhaps of another process, are dropped."""
        self._held.clear()
        self._held_bytes = 0
        self._ask()
        if not self.complete:
            self.asked = 0

    def doubted(self) -> None:
        """Begin again: another source reports a restart."""
        self._begin_again()

    def came(self, number: int, payload: bytes) -> None:
        """Take a published batch."""
        if self.asked is not None or not self._taken(number, payload):
            self._hold(number, payload)

    def replayed(self, number: int, payload: bytes) -> None:
        """Take a batch of an answer, in order."""
        if self._useless or self.asked is None or number < self.asked:
            return
        first = not self._replies
        if first and number == 0 and not self.complete:
            self.next = None
        if self.next is not None and number < self.next - 1:
            return
        self._replies += 1
        if self.next is None:
            self._join(number)
            self._tell(number, payload)
        elif first and number == self.next - 1:
            self._useless = self._other = payload != self._last
        elif first:
            self._lose(Loss.GAP)
            self._tell(number, payload)
        elif number == self.next:
            self._tell(number, payload)
        elif number > self.next:
            self._useless = self._missing = True

    def ended(self, *, answered: bool) -> None:
        """End an answer; `answered` is False without a replay endpoint or an end of the answer."""
        if self.asked is None:
            return
        missing, useless, asked_at = self._missing, self._useless, self._asked_at
        self._missing = self._useless = False
        self.asked = None
        if self._other or (answered and asked_at and not self._replies):
            self._begin_again()
            return
        if answered and not self._replies:
            self._join(0)
            self.next = 0
            missing = missing and bool(self._held)  # else another process had published more
        if missing and (self.next or 0) == asked_at:
            self._give_up()
        elif useless:
            # Publishers drop replies that are read too slowly, too: ask from there, as long as it helps.
            self._miss()
        self._release()

    def _taken(self, number: int, payload: bytes) -> bool:
        """Tell a batch, unless another one must be asked for first."""
        if self.next is None:
            self._join(number)
        elif number > self.next:
            self._miss()
            return False
        elif number < self.next:
            if number == self.next - 1 and payload == self._last:
                return True
            self._begin_again()
            return False
        self._tell(number, payload)
        return True

    def _join(self, number: int) -> None:
        """Begin with this batch. From 0 on it is all there is, and earlier batches are void."""
        if number == 0 and self._history:
            self._lose(Loss.AGAIN)
        self.complete = number == 0

    def _tell(self, number: int, payload: bytes) -> None:
        self.next = number + 1
        self._last = payload
        self._history = True
        self._listener.batch(payload)

    def _lose(self, loss: Loss) -> None:
        self._listener.lost(loss)
        self.complete = False
        self._history = self._history and loss is Loss.GAP

    def _ask(self) -> None:
        if not self.next:
            self.next = None
        self._asked_at = self.next or 0
        self.asked = max(self._asked_at - 1, 0)
        self._replies, self._useless, self._other = 0, False, False

    def _miss(self) -> None:
        self.gaps += 1
        self._missing = True
        self._ask()

    def _begin_again(self) -> None:
        self.restarts += 1
        self._lose(Loss.RESTART)
        self.next, self._missing = None, False
        self._ask()

    def _give_up(self) -> None:
        self._lose(Loss.GAP)
        self.next = None

    def _hold(self, number: int, payload: bytes) -> None:
        self._held.append((number, payload))
        self._held_bytes += len(payload)
        if len(self._held) > HELD_MAX or self._held_bytes > HELD_BYTES_MAX:
            self._held.clear()
            self._held_bytes = 0

    def _release(self) -> None:
        while self._held and self.asked is None:
            number, payload = self._held[0]
            if (self.next is None or number >= self.next) and not self._taken(number, payload):
                return
            self._held_bytes -= len(payload)
            self._held.popleft()
