"""Watches transfers over links, and publishes how the links are: goodput, loss, round trip.

    begun ── prefilled ── arrived     in time: the link carries the planned rate; late: it does not
      └──────────┴─────── failed      a leg failed while the KV was under way
      └──────────┴─────── dropped     the client left, or a leg refused: no evidence on the link

**Goodput.** A transfer was planned to take T beside others, all together at a rate R. If it took longer, the
link carries R·T/took: TCP flows of equal weight all lose the same share. A transfer that is still late is
evidence, too, so a dying link is noticed before anything fails. NIXL sends between the answer of the prefill
leg and the first byte of the decode leg. SGLang and Mooncake send beside the prefill, whose own end is not
seen, so only a very late transfer is the link's fault. Observations average with the newest `LinkMeasured` of
any replica, and age: `policies.state.links` lets the capacity grow back.

**Loss** is the averaged share of failed transfers. Failures at one worker count once in `FAILURE_US`, since
it may be the worker. Two of different workers make a link down (`policies.disaggregation.link_states`), a
probe that arrives makes it up.

**Given up.** A late transfer may never arrive. A request that waits for it is told (`Patience`) once it is
later than allowed by as long as a prefill on this side takes: at most twice the best time. While the link is
known to be down, no request waits longer.

**Round trip** is the least of the latest times in which health checks connect to workers of another site.

The owner calls `LinkWatch.look` every `LOOK_S`; otherwise links count as configured.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import msgspec

from policies.disaggregation.link_states import DOWN_LOSS_RATIO
from policies.fleet.fleet import FleetState
from policies.fleet.pairing import HAND_OVERS
from policies.state.links import link_name
from policies.state.ops import LinkMeasured, OpLog, Shipping

LOOK_S = 0.25
"""Seconds between looks at late transfers."""

SHARE = 0.5
"""Weight of one observation of goodput in the average: a link that lost nine tenths shows it after two."""

LOSS_SHARE = 0.3
"""Weight of one outcome in the average: one failure is not yet half, two in a row are more."""

LOSS_MIN = 0.001
"""A smaller loss is none: a mean never reaches zero by itself."""

FAILURE_US = 5_000_000
"""Failures at one worker within this time count once."""

PLANNED_S_MIN = 0.05
"""Shorter transfers are no evidence of goodput: a decode step, and a round trip, are as long."""

CHANGE_MIN = 0.05
"""Relative change of capacity that is worth publishing."""

TRIPS_KEPT = 8
"""Latest times to connect to each site, of which the least is the round trip."""

TRIP_CHANGE_MIN, TRIP_CHANGE_S_MIN = 0.25, 0.001
"""Changes of a round trip that are worth publishing: relative, and in seconds."""


class LinkTurn(NamedTuple):
    """A link went down (its transfers fail, and one now and then tries it), or is up again."""

    link: str
    down: bool


class Patience(msgspec.Struct, frozen=True, gc=False):
    """Bounds of the wait for a transfer.

    Times to the first token: as predicted, and without the transfer (+inf if there is no other way).
    ``give_up`` is called when it is too late, and again when it is twice as late.
    """

    remote_s: float
    local_s: float
    give_up: Callable[[], None]


class _Crossing(msgspec.Struct, gc=False, eq=False):
    """KV of one request that crosses a link, maybe sent beside its prefill (``overlapped``).

    Log times: of when sending could begin, 0 if unknown; up to which its lateness has been observed; and
    before which it is not given up again.
    """

    reserved: Shipping
    prefill_id: str
    slot: int
    overlapped: bool
    began_us: int = 0
    judged_us: int = 0
    patience: Patience | None = None
    again_us: int = 0

    @property
    def planned_s(self) -> float:
        return (self.reserved.end_us - self.reserved.start_us) / 1e6

    @property
    def late_s(self) -> float:
        """Seconds that it may take before the link is to blame.

        Prefills are predicted to a factor of two once the cost model is fitted; the first byte of a decode
        leg takes a step and a round trip more.
        """
        return 4.0 * self.planned_s + 1.0 if self.overlapped else 1.25 * self.planned_s + 0.25

    def latest_us(self, *, down: bool) -> float:
        patience = self.patience
        if patience is None:
            return inf
        spare_s = 0.0 if down and patience.local_s < inf else patience.local_s
        if self.began_us:
            return self.began_us + (self.late_s + spare_s) * 1e6
        # Behind a link that is gone the prefill itself may never answer.
        return self.reserved.at_us + (4.0 * patience.remote_s + 1.0 + spare_s) * 1e6


class LinkWatch:
    """Watches the links for one replica."""

    def __init__(self, fleet: FleetState, log: OpLog) -> None:
        self._fleet = fleet
        self._publish, self._now_us, self._replica = log.publish, log.now_us, log.replica
        self._crossings: dict[str, _Crossing] = {}
        self._failed_us: dict[str, int] = {}
        self._trips: dict[str, deque[float]] = {}
        self._down: set[str] = set()

    def __len__(self) -> int:
        """Transfers of this replica that are under way."""
        return len(self._crossings)

    # Reservations.

    def begun(
        self,
        reserved: Shipping,
        prefill_id: str,
        slot: int,
        protocol: str,
        patience: Patience | None = None,
    ) -> None:
        """A request was sent whose KV will cross a link; ``prefill_id`` is its prefill attempt."""
        hand_over = HAND_OVERS.get(protocol)
        overlapped = hand_over is None or hand_over.overlap_ratio > 0
        self._crossings[reserved.request_id] = _Crossing(
            reserved, prefill_id, slot, overlapped, patience=patience
        )

    def prefilled(self, request_id: str) -> None:
        """The prefill leg of a request is over; to be called before the log hears it."""
        crossing = self._crossings.get(request_id)
        if crossing is not None:
            self._infer_begin(crossing, self._now_us())
            if not crossing.overlapped:
                crossing.began_us = self._now_us()

    def arrived(self, request_id: str) -> None:
        """The KV of a request has arrived; to be called before the log hears it."""
        crossing = self._crossings.pop(request_id, None)
        if crossing is None:
            return
        link, now_us = crossing.reserved.link, self._now_us()
        links = self._fleet.links
        loss_ratio = links.loss_ratio(link)
        # The probe of a link that was down makes it up again, as that of a circuit does.
        down = loss_ratio >= DOWN_LOSS_RATIO
        loss_ratio = 0.0 if down or loss_ratio < LOSS_MIN else (1.0 - LOSS_SHARE) * loss_ratio
        self._report(link, now_us, self._observed(crossing, now_us), loss_ratio)

    def failed(self, request_id: str, worker_id: str) -> None:
        """The leg on a worker failed while the KV of a request (its decode attempt) was under way."""
        crossing = self._crossings.pop(request_id, None)
        now_us = self._now_us()
        if crossing is None or now_us < self._failed_us.get(worker_id, now_us - FAILURE_US) + FAILURE_US:
            return
        self._failed_us[worker_id] = now_us
        link = crossing.reserved.link
        loss_ratio = self._fleet.links.loss_ratio(link)
        self._report(link, now_us, None, loss_ratio + LOSS_SHARE * (1.0 - loss_ratio))

    def dropped(self, request_id: str) -> None:
        """A request ended before its KV arrived: no evidence."""
        self._crossings.pop(request_id, None)

    def measured(self, site: str, connect_s: float) -> None:
        """A health check connected to a worker of a site within ``connect_s`` seconds."""
        fleet = self._fleet
        link = link_name(site, fleet.rules.site)
        if link not in fleet.links.rules:
            return
        trips = self._trips.setdefault(site, deque(maxlen=TRIPS_KEPT))
        trips.append(connect_s)
        measured = fleet.links.measurement(link)
        measured_s = measured.rtt_s if measured is not None else 0.0
        change_s = abs(min(trips) - measured_s)
        if change_s > TRIP_CHANGE_S_MIN and change_s > TRIP_CHANGE_MIN * measured_s:
            self._report(link, self._now_us(), None, fleet.links.loss_ratio(link), min(trips))

    def look(self) -> list[LinkTurn]:
        """Publish late transfers, and forget failures that are long past.

        Returns:
            Links that went down or are up again since the last look, whichever replica found it.
        """
        now_us = self._now_us()
        for crossing in self._crossings.values():
            self._infer_begin(crossing, now_us)
            took_s = (now_us - crossing.began_us) / 1e6
            if not crossing.began_us or crossing.planned_s < PLANNED_S_MIN or took_s <= crossing.late_s:
                continue
            if now_us - crossing.began_us < 1.5 * (crossing.judged_us - crossing.began_us):
                continue
            crossing.judged_us = now_us
            link = crossing.reserved.link
            carried = self._carried(crossing, took_s)
            if carried < self._fleet.links.capacity_bytes_per_s(link, now_us):
                self._report(link, now_us, carried, self._fleet.links.loss_ratio(link))
        past_us = now_us - FAILURE_US
        self._failed_us = {worker: at_us for worker, at_us in self._failed_us.items() if at_us > past_us}
        self._give_up(now_us)
        return self._turns()

    # Inside.

    def _turns(self) -> list[LinkTurn]:
        links = self._fleet.links
        down = {link for link in links.rules if links.loss_ratio(link) >= DOWN_LOSS_RATIO}
        turns = [LinkTurn(link, link in down) for link in sorted(down ^ self._down)]
        self._down = down
        return turns

    def _give_up(self, now_us: int) -> None:
        loss_ratio = self._fleet.links.loss_ratio
        late = [
            crossing
            for crossing in self._crossings.values()
            if now_us >= crossing.again_us
            and now_us > crossing.latest_us(down=loss_ratio(crossing.reserved.link) >= DOWN_LOSS_RATIO)
        ]
        for crossing in late:
            crossing.again_us = 2 * now_us - crossing.reserved.at_us
            if crossing.patience is not None:
                crossing.patience.give_up()

    def _infer_begin(self, crossing: _Crossing, now_us: int) -> None:
        """A transfer beside its prefill begins when that is the oldest of its worker."""
        if crossing.began_us or not crossing.overlapped:
            return
        head = self._fleet.loads.head(crossing.slot, now_us)
        if head is not None and head.request_id == crossing.prefill_id:
            crossing.began_us = now_us - round(head.elapsed_s * 1e6)

    def _carried(self, crossing: _Crossing, took_s: float) -> float:
        """Rate of the link if it is the reason why a transfer took ``took_s``."""
        reserved, links = crossing.reserved, self._fleet.links
        own = reserved.kv_bytes / crossing.planned_s
        return (
            max(links.reserved_bytes_per_s(reserved.link, self._now_us()), own) * crossing.planned_s / took_s
        )

    def _observed(self, crossing: _Crossing, now_us: int) -> float | None:
        """New capacity of the link after a transfer; None if that shows nothing new."""
        links, link = self._fleet.links, crossing.reserved.link
        took_s = (now_us - crossing.began_us) / 1e6 - links.rtt_s(link)
        if not crossing.began_us or crossing.planned_s < PLANNED_S_MIN or took_s <= 0:
            return None
        capacity = links.capacity_bytes_per_s(link, now_us)
        carried = self._carried(crossing, took_s)
        if carried < capacity and took_s > crossing.late_s:
            return capacity + SHARE * (carried - capacity)
        return carried if carried > capacity else None

    def _report(
        self, link: str, now_us: int, bytes_per_s: float | None, loss_ratio: float, rtt_s: float | None = None
    ) -> None:
        """Publish a change of a link, if it is worth it; None leaves capacity or round trip as known."""
        links = self._fleet.links
        measured, rules = links.measurement(link), links.rules.get(link)
        if rules is None:
            return
        capacity, known_ratio = links.capacity_bytes_per_s(link, now_us), links.loss_ratio(link)
        if bytes_per_s is None:
            bytes_per_s = capacity if measured is not None and measured.bytes_per_s > 0 else 0.0
        elif abs(min(bytes_per_s, rules.bytes_per_s) - capacity) <= CHANGE_MIN * capacity:
            bytes_per_s = capacity
        if bytes_per_s in (capacity, 0.0) and rtt_s is None and loss_ratio == known_ratio:
            return
        if rtt_s is None:
            rtt_s = measured.rtt_s if measured is not None else 0.0
        self._publish(LinkMeasured(link, now_us, self._replica, bytes_per_s, rtt_s, loss_ratio))
