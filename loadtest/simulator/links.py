"""A link between fleets: a capacity that the transfers under way share, and a round trip.

Fluid model: n transfers get ``capacity / n`` each (TCP or RDMA flows of equal weight). A transfer of B bytes
that begins when the *fair byte* counter stands at v ends when that reaches v + B; the counter runs at
``capacity / n``. So transfers end in the order of a heap, and joining or ending costs O(log n).

KV blocks leave layer by layer during the prefill (PrfaaS, arXiv:2604.15039, 3.1: layer-wise pipelining), so
only part of a transfer is left when it ends: at least the last layer.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from loadtest.simulator.clock import VirtualClock, VirtualTimer


class Link:
    """One link of ``bytes_per_s`` > 0; ``rtt_s`` >= 0 is added to every transfer.

    Attributes:
        sent_bytes: Transferred so far, or under way.
        busy_s: Time with a transfer under way, up to the last change.
    """

    def __init__(self, clock: VirtualClock, bytes_per_s: float, rtt_s: float = 0.0) -> None:
        assert bytes_per_s > 0
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._rtt_s = rtt_s
        self._fair_bytes = 0.0
        self._at_s = 0.0
        self._transfers: list[tuple[float, int, Callable[[], object]]] = []
        self._begun = 0
        self._timer: VirtualTimer | None = None
        self.sent_bytes = 0.0
        self.busy_s = 0.0

    @property
    def transfers(self) -> int:
        """Transfers under way."""
        return len(self._transfers)

    def exposed_bytes(self, n_bytes: float, compute_s: float, layers: int) -> float:
        """Rest of a transfer when the computation of ``compute_s`` that it overlapped ends.

        It is sent in ``layers``, each when it was computed, at the share that one more transfer would get
        now.
        """
        share = self._bytes_per_s / (len(self._transfers) + 1)
        return max(n_bytes / layers, n_bytes - share * compute_s)

    def send(self, n_bytes: float, arrived: Callable[[], object]) -> None:
        """Begin a transfer; ``arrived`` is called when it is over."""
        self._advance()
        heappush(self._transfers, (self._fair_bytes + n_bytes, self._begun, arrived))
        self._begun += 1
        self.sent_bytes += n_bytes
        self._wait()

    def _advance(self) -> None:
        now_s = self._clock.time()
        if self._transfers:
            self.busy_s += now_s - self._at_s
            self._fair_bytes += (now_s - self._at_s) * self._bytes_per_s / len(self._transfers)
        self._at_s = now_s

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transfers:
            left_bytes = max(self._transfers[0][0] - self._fair_bytes, 0.0)
            left_s = left_bytes * len(self._transfers) / self._bytes_per_s
            self._timer = self._clock.call_later(left_s, self._end)

    def _end(self) -> None:
        """End the transfer that had least left, without regard to rounding."""
        self._timer = None
        self._advance()
        end_bytes, _, arrived = heappop(self._transfers)
        self._fair_bytes = max(self._fair_bytes, end_bytes)
        self._wait()
        if self._rtt_s:
            self._clock.call_later(self._rtt_s, arrived)
        else:
            arrived()
