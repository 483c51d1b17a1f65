"""A fluid link: transfers under way share its capacity, each as far as it has something to send.

    bytes of a transfer
      n ┤                              ┌──── computed: the rest may go
        │                       ┌ ─ ─ ─┘     all but the last layer, at most
        │               produced at S/T
      r ┤ ready: cached before
        └───────┬───────────────┬──────┬──> t
             begins         over_s   prefill ends

A transfer beside its prefill (PrfaaS, arXiv:2604.15039, 3.1) cannot send what is not computed yet: alone on a
fast link it takes S/T, and its last layer goes when the prefill is over. Shares are max-min fair, as flows of
equal weight. Time goes in steps of `STEP_S`, also when a timer is late, so egress per tenth of a second is
exact. A dead link fails all transfers at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from loadtest.engine.link.egress import BUCKETS_PER_S, Egress
from loadtest.engine.scheduler import Clock, Timer

STEP_S = 0.004
PULLED_MAX = 10_000

DEAD = "the link is dead"
_ROUNDING_BYTES = 0.5


@dataclass(slots=True, eq=False)
class Transfer:
    """KV that goes over the link.

    Attributes:
        ready_bytes: May go at once.
        held_bytes: Wait until the prefill is over: the last layer; 0 if it is over.
        over_s: Seconds over which the bytes between are produced.
        ended: Called once, with the reason if it did not arrive; not after `ShapedLink.cancel`.
    """

    n_bytes: float
    ready_bytes: float
    held_bytes: float
    over_s: float
    ended: Callable[[str | None], None]
    began_s: float = 0.0
    sent_bytes: float = field(default=0.0, init=False)

    def produced_bytes(self, now_s: float) -> float:
        """Bytes that could have left by now."""
        open_bytes = self.n_bytes - self.held_bytes
        if self.ready_bytes >= open_bytes:
            return open_bytes
        share = min(1.0, (now_s - self.began_s) / self.over_s) if self.over_s > 0 else 1.0
        return self.ready_bytes + share * (open_bytes - self.ready_bytes)


class ShapedLink:
    """One direction between two sites.

    Args:
        clock: The event loop, or a virtual clock.
        bytes_per_s: Capacity, > 0.
        rtt_s: Delay of the notice that the last byte arrived, >= 0.

    Attributes:
        egress: Bytes sent, in seconds since the link was made.
        arrived: Transfers that arrived.
        lost: Transfers that failed.
        pulled: Begin, end and bytes of the latest transfers that were complete when they began.
    """

    def __init__(self, clock: Clock, bytes_per_s: float, rtt_s: float = 0.0) -> None:
        assert bytes_per_s > 0
        self.egress = Egress()
        self.rtt_s = rtt_s
        self.arrived = 0
        self.lost = 0
        self.pulled: deque[tuple[float, float, float]] = deque(maxlen=PULLED_MAX)
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._ratio = 1.0
        self._dead = False
        self._made_s = self._at_s = clock.time()
        self._sending: list[Transfer] = []
        self._landing: dict[Transfer, Timer] = {}
        self._timer: Timer | None = None

    @property
    def bytes_per_s(self) -> float:
        """Capacity now."""
        return 0.0 if self._dead else self._bytes_per_s * self._ratio

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return self._clock.time() - self._made_s

    @property
    def under_way(self) -> int:
        """Transfers that have begun and not ended."""
        return len(self._sending) + len(self._landing)

    def begin(
        self,
        n_bytes: float,
        ended: Callable[[str | None], None],
        *,
        ready_bytes: float | None = None,
        held_bytes: float = 0.0,
        over_s: float = 0.0,
    ) -> Transfer:
        """Begin a transfer; see `Transfer`. Without ``ready_bytes`` all is there already."""
        now_s = self._clock.time()
        self.advance()
        ready = n_bytes if ready_bytes is None else ready_bytes
        transfer = Transfer(n_bytes, ready, held_bytes, over_s, ended, now_s)
        if self._dead:
            self._landing[transfer] = self._clock.call_at(now_s, partial(self._land, transfer, DEAD))
        else:
            self._sending.append(transfer)
            self._wait()
        return transfer

    def computed(self, transfer: Transfer) -> None:
        """The prefill of a transfer is over: all of it may go."""
        self.advance()
        transfer.ready_bytes, transfer.held_bytes = transfer.n_bytes, 0.0

    def cancel(self, transfer: Transfer) -> None:
        """Give it up without notice."""
        self.advance()
        if transfer in self._sending:
            self._sending.remove(transfer)
        timer = self._landing.pop(transfer, None)
        if timer is not None:
            timer.cancel()

    def slow(self, ratio: float) -> None:
        """Go on with this part of the capacity; 0 keeps everything under way where it is."""
        self.advance()
        self._ratio = ratio

    def die(self) -> None:
        """Fail everything under way, and all that comes until `restore`."""
        self.advance()
        self._dead = True
        lost, self._sending = [*self._sending, *self._landing], []
        for timer in self._landing.values():
            timer.cancel()
        self._landing.clear()
        for transfer in lost:
            self.lost += 1
            transfer.ended(DEAD)

    def restore(self) -> None:
        """Live again, at full capacity."""
        self.advance()
        self._dead = False
        self._ratio = 1.0

    def advance(self) -> None:
        """Bring everything up to now."""
        now_s = self._clock.time()
        while self._sending and self._at_s < now_s:
            bucket = int((self._at_s - self._made_s) * BUCKETS_PER_S + 1e-6)
            border_s = self._made_s + (bucket + 1) / BUCKETS_PER_S
            until_s = min(now_s, self._at_s + STEP_S, border_s)
            sent_bytes = self._step(until_s, self.bytes_per_s * (until_s - self._at_s))
            self.egress.add((bucket + 0.5) / BUCKETS_PER_S, sent_bytes)
            self._at_s = until_s
        self._at_s = max(self._at_s, now_s)

    def _step(self, until_s: float, budget_bytes: float) -> float:
        """Divide a budget among all that have something to send: those with least first. Bytes sent."""
        wanting = sorted(
            ((one.produced_bytes(until_s) - one.sent_bytes, one) for one in self._sending),
            key=lambda pair: pair[0],
        )
        left_bytes = budget_bytes
        for number, (want_bytes, transfer) in enumerate(wanting):
            granted_bytes = min(max(want_bytes, 0.0), left_bytes / (len(wanting) - number))
            transfer.sent_bytes += granted_bytes
            left_bytes -= granted_bytes
            if transfer.sent_bytes >= transfer.n_bytes - _ROUNDING_BYTES:
                self._sending.remove(transfer)
                if not transfer.over_s:
                    began_s = transfer.began_s - self._made_s
                    self.pulled.append((began_s, until_s - self._made_s, transfer.n_bytes))
                lands_s = until_s + self.rtt_s
                self._landing[transfer] = self._clock.call_at(lands_s, partial(self._land, transfer))
        return budget_bytes - left_bytes

    def _land(self, transfer: Transfer, problem: str | None = None) -> None:
        del self._landing[transfer]
        self.arrived += problem is None
        self.lost += problem is not None
        transfer.ended(problem)

    def _wait(self) -> None:
        if self._timer is None and self._sending:
            self._timer = self._clock.call_at(self._clock.time() + STEP_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.advance()
        self._wait()
