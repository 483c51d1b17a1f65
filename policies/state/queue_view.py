"""The waiting queue as one request sees it that is about to join a worker.

A request with work x on a worker would wait there with the key ``arrival + k·x`` (`policies.state.waiting`).
The tickets with a lesser key go before it, those with a greater one are overtaken and delayed:

    ahead_s   predicted work of the tickets that go first, seconds
    behind    tickets that are overtaken

A ticket for one worker counts there in full. A ticket for any worker of the lane counts 1/n on each of the n
workers that serve the lane. The request's own ticket, if it waits already, does not count.
"""

import msgspec
import numpy as np

from policies.estimates.costs import Floats
from policies.state.waiting import Tickets
from policies.state.waiting_lines import Ticket
from radix import WHOLE_MAX


def without(own: Ticket, share: float, key_us: int, ahead_us: float, behind: float) -> tuple[float, float]:
    """Take a request's own ticket, counted in part (``share``), out of the work and tickets around it."""
    if own.key_us < key_us:
        return max(ahead_us - share * own.service_us, 0.0), behind
    if own.key_us > key_us:
        return ahead_us, max(behind - share, 0.0)
    return ahead_us, behind


class QueueView(msgspec.Struct, frozen=True, gc=False):
    """The queue, seen by one request.

    Attributes:
        tickets: All waiting tickets; None if there are none.
        lane: Lane of the request.
        workers: Workers that serve that lane, >= 1.
        arrived_us: Log time of the request's arrival.
        k: Weight k of the order (`policies.state.waiting`).
        committed_s: Backlog up to which a worker is given more (`fleet.admission`). The engine serves that in
            its own order; no request overtakes it.
        own: The request's own ticket, if it waits already.
    """

    tickets: Tickets | None
    lane: str
    workers: int
    arrived_us: int
    k: float
    committed_s: float
    own: Ticket | None = None

    def at(self, slot: int, work_s: float) -> tuple[float, float]:
        """``ahead_s`` and ``behind`` on the worker in a slot, for the request's work there."""
        if self.tickets is None:
            return 0.0, 0.0
        key_us = min(self.arrived_us + int(self.k * work_s * 1e6), WHOLE_MAX)
        ahead_us, behind = self.tickets.around(slot, self.lane, self.workers, key_us)
        own = self.own
        if own is not None:
            ahead_us, behind = without(own, self._own_share(own, slot), key_us, ahead_us, behind)
        return ahead_us / 1e6, behind

    def columns(
        self, slots: np.ndarray[tuple[int], np.dtype[np.intp]], work_s: Floats
    ) -> tuple[Floats, Floats]:
        """The same of many workers."""
        if self.tickets is None:
            nothing = np.zeros(len(slots))
            return nothing, nothing
        keys_us = np.minimum(self.arrived_us + self.k * work_s * 1e6, float(WHOLE_MAX)).astype(np.int64)
        ahead_us, behind = self.tickets.around_all(slots, self.lane, self.workers, keys_us)
        own = self.own
        if own is not None:
            if own.slot >= 0:
                share = (slots == own.slot).astype(np.float64)
            else:
                share = np.full(len(slots), self._own_share(own, -1))
            ahead_us = np.maximum(ahead_us - np.where(own.key_us < keys_us, share * own.service_us, 0.0), 0.0)
            behind = np.maximum(behind - np.where(own.key_us > keys_us, share, 0.0), 0.0)
        return ahead_us / 1e6, behind

    def _own_share(self, own: Ticket, slot: int) -> float:
        if own.slot >= 0:
            return float(own.slot == slot)
        return 1.0 / self.workers if own.lane == self.lane else 0.0
