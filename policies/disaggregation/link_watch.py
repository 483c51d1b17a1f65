"""Watches what crosses links, and tells all replicas how the links are: goodput, loss, round trip.

What the legs of this replica's requests report is all there is to see (`router.gateway.pair_reservation`):

    begun ── prefilled ── arrived     in time: the link carries what was planned on it; late: it does not
      └──────────┴─────── failed      a leg failed while the KV was under way
      └──────────┴─────── dropped     the client left, or a leg refused: that says nothing of the link

**Goodput.** Nobody sees what a link could carry, only how long a transfer took that was planned to take T
beside others, all together at a rate R. If it took longer, for lack of bandwidth, the link carries R·T/took:
TCP flows of equal weight all lose the same share. A transfer that does not arrive says the same while it goes
on, so a link that dies is noticed before anything fails. What is late depends on what can be seen:

    NIXL                sent between the answer of the prefill leg and the first byte of the decode leg
    SGLang, Mooncake    sent beside the prefill, whose own end is not seen: only what is very late is the
                        link's fault, since predictions of prefills err

What is measured continues from what the log said last, whoever said it, so one average is made of what all
replicas see. It grows old: `policies.state.links` lets the capacity grow back.

**Loss** is the share of failed transfers, likewise averaged. Failures at one worker count once in a while,
since it may be the worker. Two of different workers make a link down (`policies.state.link_states`), a probe
that arrives makes it up.

**Given up.** A transfer that is late may never arrive: nobody hears of a link that dies. Whoever waits for it
is told so (`Patience`) once it is later than it may be by as long as a prefill on this side takes. That
costs at most twice what would have been best. While the link is known to be down, nobody waits longer.

**Round trip** is the time in which health checks connect to workers of another site, the least of the latest.

Who owns it calls `LinkWatch.look` every `LOOK_S`. If nobody does, links count as configured.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import msgspec

from policies.fleet.fleet import FleetState
from policies.fleet.pairing import HAND_OVERS
from policies.state.link_states import DOWN_LOSS_RATIO
from policies.state.links import link_name
from policies.state.ops import LinkMeasured, OpLog, Shipping

LOOK_S = 0.25
"""Between two looks at what is late: half of what makes it so."""

SHARE = 0.5
"""Of one observation of goodput in the average: a link that lost nine tenths shows it after two."""

LOSS_SHARE = 0.3
"""Of one outcome in the average: one failure is not yet half, two in a row are more."""

LOSS_MIN = 0.001
"""Less is none: a mean never gets to zero by itself."""

FAILURE_US = 5_000_000
"""In so long failures at one worker count once."""

PLANNED_S_MIN = 0.05
"""Shorter transfers say nothing of goodput: a decode step, and a round trip, are as long."""

CHANGE_MIN = 0.05
"""Relative change worth telling."""

TRIPS_KEPT = 8
"""Times to connect, of each site, of which the least is the round trip."""

TRIP_CHANGE_MIN, TRIP_CHANGE_S_MIN = 0.25, 0.001
"""Changes of a round trip worth telling."""


class LinkTurn(NamedTuple):
    """A link went down, or is up again.

    Attributes:
        link: Which.
        down: True if its transfers fail, and one now and then tries it.
    """

    link: str
    down: bool


class Patience(msgspec.Struct, frozen=True, gc=False):
    """How long somebody waits for a transfer.

    Attributes:
        remote_s: Time to the first token that was predicted.
        local_s: The same without the transfer; +inf if there is no other way.
        give_up: Called when it is too late, and again when it is twice as late.
    """

    remote_s: float
    local_s: float
    give_up: Callable[[], None]


class _Crossing(msgspec.Struct, gc=False, eq=False):
    """KV of one request that crosses a link.

    Attributes:
        said: What was reserved.
        prefill_id: Its prefill attempt.
        slot: Of its prefill worker.
        overlapped: Whether it is sent beside the prefill.
        began_us: Log time at which sending could begin; 0 while it is not known.
        judged_us: Up to when it is known to be late.
        patience: Of who waits for it; None if nothing can be done.
        again_us: Log time before which it is not given up again.
    """

    said: Shipping
    prefill_id: str
    slot: int
    overlapped: bool
    began_us: int = 0
    judged_us: int = 0
    patience: Patience | None = None
    again_us: int = 0

    @property
    def planned_s(self) -> float:
        """How long it should take."""
        return (self.said.end_us - self.said.start_us) / 1e6

    @property
    def late_s(self) -> float:
        """How long it may take before that is the link's fault.

        Prefills are predicted to a factor of two once the cost model is fitted; a decode leg says its
        first byte after a step and a round trip.
        """
        return 4.0 * self.planned_s + 1.0 if self.overlapped else 1.25 * self.planned_s + 0.25

    def latest_us(self, *, down: bool) -> float:
        """Log time after which it is given up."""
        patience = self.patience
        if patience is None:
            return inf
        spare_s = 0.0 if down and patience.local_s < inf else patience.local_s
        if self.began_us:
            return self.began_us + (self.late_s + spare_s) * 1e6
        # Behind a link that is gone the prefill itself may never answer.
        return self.said.at_us + (4.0 * patience.remote_s + 1.0 + spare_s) * 1e6


class LinkWatch:
    """Watches the links for one replica.

    Args:
        fleet: The shared state.
        log: Changes it, for all replicas.
    """

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

    # What reservations tell.

    def begun(
        self,
        said: Shipping,
        prefill_id: str,
        slot: int,
        protocol: str,
        patience: Patience | None = None,
    ) -> None:
        """A request was sent whose KV will cross a link.

        Args:
            said: What was reserved.
            prefill_id: Of its prefill attempt.
            slot: Of its prefill worker.
            protocol: How that hands over.
            patience: Of who waits for it.
        """
        hand_over = HAND_OVERS.get(protocol)
        overlapped = hand_over is None or hand_over.overlap_ratio > 0
        self._crossings[said.request_id] = _Crossing(said, prefill_id, slot, overlapped, patience=patience)

    def prefilled(self, request_id: str) -> None:
        """The prefill leg of a request is over; to be said before the log hears it."""
        crossing = self._crossings.get(request_id)
        if crossing is not None:
            self._see_begin(crossing, self._now_us())
            if not crossing.overlapped:
                crossing.began_us = self._now_us()

    def arrived(self, request_id: str) -> None:
        """The KV of a request has arrived; to be said before the log hears it."""
        crossing = self._crossings.pop(request_id, None)
        if crossing is None:
            return
        link, now_us = crossing.said.link, self._now_us()
        links = self._fleet.links
        loss_ratio = links.loss_ratio(link)
        # The probe of a link that was down makes it up again, as that of a circuit does.
        down = loss_ratio >= DOWN_LOSS_RATIO
        loss_ratio = 0.0 if down or loss_ratio < LOSS_MIN else (1.0 - LOSS_SHARE) * loss_ratio
        self._tell(link, now_us, self._observed(crossing, now_us), loss_ratio)

    def failed(self, request_id: str, worker_id: str) -> None:
        """A leg failed while the KV of a request was under way.

        Args:
            request_id: Of its attempt on the decode worker.
            worker_id: The worker of that leg.
        """
        crossing = self._crossings.pop(request_id, None)
        now_us = self._now_us()
        if crossing is None or now_us < self._failed_us.get(worker_id, now_us - FAILURE_US) + FAILURE_US:
            return
        self._failed_us[worker_id] = now_us
        link = crossing.said.link
        loss_ratio = self._fleet.links.loss_ratio(link)
        self._tell(link, now_us, None, loss_ratio + LOSS_SHARE * (1.0 - loss_ratio))

    def dropped(self, request_id: str) -> None:
        """A request ended before its KV arrived, and nobody knows whether it would have."""
        self._crossings.pop(request_id, None)

    def measured(self, site: str, connect_s: float) -> None:
        """A connection was made to a worker of a site, within so many seconds."""
        fleet = self._fleet
        link = link_name(site, fleet.rules.site)
        if link not in fleet.links.rules:
            return
        trips = self._trips.setdefault(site, deque(maxlen=TRIPS_KEPT))
        trips.append(connect_s)
        known = fleet.links.measurement(link)
        known_s = known.rtt_s if known is not None else 0.0
        change_s = abs(min(trips) - known_s)
        if change_s > TRIP_CHANGE_S_MIN and change_s > TRIP_CHANGE_MIN * known_s:
            self._tell(link, self._now_us(), None, fleet.links.loss_ratio(link), min(trips))

    def look(self) -> list[LinkTurn]:
        """See what is late, and forget whose failures are long past.

        Returns:
            Links that went down or are up again since the last look, whichever replica found it.
        """
        now_us = self._now_us()
        for crossing in self._crossings.values():
            self._see_begin(crossing, now_us)
            took_s = (now_us - crossing.began_us) / 1e6
            if not crossing.began_us or crossing.planned_s < PLANNED_S_MIN or took_s <= crossing.late_s:
                continue
            if now_us - crossing.began_us < 1.5 * (crossing.judged_us - crossing.began_us):
                continue
            crossing.judged_us = now_us
            link = crossing.said.link
            carried = self._carried(crossing, took_s)
            if carried < self._fleet.links.capacity_bytes_per_s(link, now_us):
                self._tell(link, now_us, carried, self._fleet.links.loss_ratio(link))
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
        """Tell those who wait for what is too late."""
        loss_ratio = self._fleet.links.loss_ratio
        late = [
            crossing
            for crossing in self._crossings.values()
            if now_us >= crossing.again_us
            and now_us > crossing.latest_us(down=loss_ratio(crossing.said.link) >= DOWN_LOSS_RATIO)
        ]
        for crossing in late:
            crossing.again_us = 2 * now_us - crossing.said.at_us
            if crossing.patience is not None:
                crossing.patience.give_up()

    def _see_begin(self, crossing: _Crossing, now_us: int) -> None:
        """A transfer beside its prefill begins when that does: when it is the oldest of its worker."""
        if crossing.began_us or not crossing.overlapped:
            return
        head = self._fleet.loads.head(crossing.slot, now_us)
        if head is not None and head.request_id == crossing.prefill_id:
            crossing.began_us = now_us - round(head.elapsed_s * 1e6)

    def _carried(self, crossing: _Crossing, took_s: float) -> float:
        """What the link carries if a transfer took so long because of it."""
        said, links = crossing.said, self._fleet.links
        own = said.kv_bytes / crossing.planned_s
        return max(links.reserved_bytes_per_s(said.link, self._now_us()), own) * crossing.planned_s / took_s

    def _observed(self, crossing: _Crossing, now_us: int) -> float | None:
        """What the capacity of the link is thought to be now; None if nothing new is known."""
        links, link = self._fleet.links, crossing.said.link
        took_s = (now_us - crossing.began_us) / 1e6 - links.rtt_s(link)
        if not crossing.began_us or crossing.planned_s < PLANNED_S_MIN or took_s <= 0:
            return None
        capacity = links.capacity_bytes_per_s(link, now_us)
        carried = self._carried(crossing, took_s)
        if carried < capacity and took_s > crossing.late_s:
            return capacity + SHARE * (carried - capacity)
        return carried if carried > capacity else None

    def _tell(
        self, link: str, now_us: int, bytes_per_s: float | None, loss_ratio: float, rtt_s: float | None = None
    ) -> None:
        """Tell all replicas what has changed of a link, if that is worth it.

        Args:
            link: Which.
            now_us: Log time.
            bytes_per_s: Its capacity; None: as it is known.
            loss_ratio: Share of failed transfers.
            rtt_s: Its round trip; None: as it is known.
        """
        links = self._fleet.links
        known, rules = links.measurement(link), links.rules.get(link)
        if rules is None:
            return
        capacity, known_ratio = links.capacity_bytes_per_s(link, now_us), links.loss_ratio(link)
        if bytes_per_s is None:
            bytes_per_s = capacity if known is not None and known.bytes_per_s > 0 else 0.0
        elif abs(min(bytes_per_s, rules.bytes_per_s) - capacity) <= CHANGE_MIN * capacity:
            bytes_per_s = capacity
        if bytes_per_s in (capacity, 0.0) and rtt_s is None and loss_ratio == known_ratio:
            return
        if rtt_s is None:
            rtt_s = known.rtt_s if known is not None else 0.0
        self._publish(LinkMeasured(link, now_us, self._replica, bytes_per_s, rtt_s, loss_ratio))
