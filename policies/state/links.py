"""Links between sites: capacity, reservations of all replicas, and the time of the next room.

A link is directed, ``FROM>TO``. The KV of a request whose prefill is in another site than its decode crosses
one, and is *reserved* from its `Shipping` until it is released exactly once:

    (nothing) ── Shipping ──> under way ── Shipped, Finished, expired ──> ended, for ever
                                 │  └── Shipping, later ──> planned again
                                 └── Left ──> given up ── Shipping, later ──> as before

A reservation describes the engine, which never sends slower than it can:

    layer by layer    beside the prefill (PrfaaS, arXiv:2604.15039, 3.1): S/T for its duration
    pulled            after the prefill (NIXL), or cached before it began: at the speed of the link

The cap counts the bytes that leave in a second (`WINDOW_US`), wherever that begins. A pull takes less than a
second and all of the link, so rates may exceed the cap for a moment, and seconds may not; pulls never share
the link, or one would queue behind the other. A transfer that exceeds the cap by itself cannot be kept below
it: it goes while nothing else does (`Quote.above_cap`).

*Pacing* is planning: a transfer begins when the link has room for all of it, so none waits behind another on
the wire. `Links.quote` finds that time; the caller then reserves it, waits, or prefills elsewhere. Replicas
that ask in the same moment do not see each other: together they may exceed the cap by the reservations of 1
to 3 ms, which is why the cap is less than the capacity.

A transfer that arrived early has crossed all the same: it keeps its bytes in the seconds that saw them. A
late one still uses the link: it keeps its rate, a quarter of its time at a time, for at most
`OVERDUE_US_MAX`. Beyond that it is stuck and sends nothing.

The capacity is the configured one, or less if less was measured (`policies.disaggregation.link_watch`). A
measurement ages: its limit doubles every `RECOVERY_S`, since no replica sees that a link could carry more
than is sent.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import MISSING, dataclass
from heapq import heappop, heappush
from math import exp2

import msgspec
import numpy as np

from policies.declared import setting
from policies.state.ops import LinkMeasured, Shipping
from policies.state.registers import Registers
from policies.state.timetable import Piece, Timetable

OVERDUE_US_MAX = 30_000_000
"""Time after its predicted end for which a transfer that did not arrive still counts."""

OVERDUE_STEP_US_MIN = 50_000
"""It is extended by a quarter of its time, but by no less than this."""

WINDOW_US = 1_000_000
"""Any stretch of this length obeys the cap: the promise that egress is measured by."""

RECOVERY_S = 10.0
"""A tenth of a link's capacity grows back to all of it within 33 s without contradiction."""

NEVER_US = -(2**62)
"""A log time before all others: a transfer released from then on was never there."""

RATE_MAX = 2**43
"""Bytes per second of one transfer (70 Tbit/s): sums of them stay exact."""

SPARE_MIN = 0.25
"""Least part of the link that a pull has for itself, or it would queue behind other transfers.

It counts as if it had all of the link, and is late if layers leave meanwhile.
"""

ROUNDING = 1e-6
"""Rates are whole bytes per second, and times whole microseconds."""


def link_name(from_site: str, to_site: str) -> str:
    """Name of the link from one site to another."""
    return f"{from_site}>{to_site}"


def site_after(link: str) -> str:
    """Site to which a link leads."""
    return link.partition(">")[2]


@dataclass(frozen=True)
class LinkRules:
    """A link from one site to another, as configured: the value type of fleet.links.

    ``cap_ratio`` also leaves room for replicas that decide in the same moment.
    """

    gbps: float = setting(MISSING, "Capacity, in Gbit/s.", gt=0)
    rtt_ms: float = setting(0.0, "Round trip time, in milliseconds.", ge=0)
    cap_ratio: float = setting(
        0.9,
        "Share of the capacity that KV may take, in every second; the rest is for other traffic, and for "
        "TCP, which never fills a link to its last bit.",
        gt=0,
        le=1,
    )
    loss_ratio_max: float = setting(
        0.01,
        "Transfers that failed, as a share of the latest, above which it counts as scarce.",
        gt=0,
        le=1,
    )

    @property
    def bytes_per_s(self) -> float:
        """Capacity, in bytes per second."""
        return self.gbps * 1e9 / 8

    @property
    def rtt_s(self) -> float:
        """Round trip time while none was measured, in seconds."""
        return self.rtt_ms / 1e3


class Quote(msgspec.Struct, frozen=True, gc=False):
    """A link's offer for one transfer.

    Attributes:
        start_us: Log time at which the prefill may begin, and its KV with it (without overlap: the transfer).
        end_us: Log time at which the last byte arrives then, without the round trip.
        wait_s: Delay of the start after the time asked for; 0 if it fits at once.
        send_s: Time on the wire.
        exposed_s: Part of that after the prefill.
        fits: It can begin when asked for: no second sees more than the cap.
        utilisation: Reserved share of the cap; above 1 while something is pulled, or if the link got slower.
        above_cap: More of it leaves in a second than may: it goes alone.
        ready_us: Duration of the part that leaves at once.
    """

    start_us: int
    end_us: int
    wait_s: float
    send_s: float
    exposed_s: float
    fits: bool
    utilisation: float
    above_cap: bool = False
    ready_us: int = 0


class Transfer(msgspec.Struct, gc=False, eq=False):
    """A reservation: its newest `Shipping`, with rates in bytes per second.

    Attributes:
        burst: Rate of the part that leaves at once, until ``burst_until_us``.
        until_us: End of its reservation; later than its predicted end if it is overdue.
    """

    shipping: Shipping
    rate: int
    burst: int
    burst_until_us: int
    until_us: int


class Load:
    """Reservations of one link."""

    __slots__ = ("ends", "timetable", "transfers")

    def __init__(self) -> None:
        self.timetable = Timetable()
        self.transfers = 0
        self.ends: list[tuple[int, str]] = []
        """A heap of (until_us, request id), with some that no longer hold."""


class Links:
    """All links, with reservations and measurements; ended transfers are remembered for ``memory_us``."""

    def __init__(self, rules: Mapping[str, LinkRules] | None = None, *, memory_us: int = 30_000_000) -> None:
        self.rules: Mapping[str, LinkRules] = rules or {}
        self.transfers: dict[str, Transfer] = {}
        self._of_replica: defaultdict[str, dict[str, Transfer]] = defaultdict(dict)
        self._memory_us = memory_us
        self._generation = 0
        self._ended: set[str] = set()
        self._old_ended: set[str] = set()
        self._loads: defaultdict[str, Load] = defaultdict(Load)
        self.measured = Registers(LinkMeasured)

    # The fold. Which requests have finished and which replicas have left, `policies.state.loads` knows.

    def shipping(self, op: Shipping) -> None:
        """Reserve a transfer, or plan it again."""
        if op.request_id in self._ended or op.request_id in self._old_ended:
            return
        current = self.transfers.get(op.request_id)
        if current is not None:
            # Two of one moment: any of them, but the same at all replicas.
            if _version(op) <= _version(current.shipping):
                return
            self._drop(op.request_id, NEVER_US)
        duration_us = max(op.end_us - op.start_us, 1)
        ready_bytes = max(min(op.ready_bytes, op.kv_bytes), 0)
        rate = min(max(op.kv_bytes - ready_bytes, 0) * 1_000_000 // duration_us, RATE_MAX)
        ready_us = max(op.ready_us or min(duration_us, WINDOW_US), 1)
        burst = min(ready_bytes * 1_000_000 // ready_us, RATE_MAX)
        until_us = op.start_us + duration_us
        transfer = Transfer(op, rate, burst, op.start_us + ready_us, until_us)
        self.transfers[op.request_id] = self._of_replica[op.replica][op.request_id] = transfer
        load = self._loads[op.link]
        load.transfers += 1
        load.timetable.add(op.start_us, until_us, rate)
        load.timetable.add(op.start_us, transfer.burst_until_us, burst)
        heappush(load.ends, (until_us, op.request_id))

    def ended(self, request_id: str, at_us: int) -> bool:
        """Release a transfer for ever from a log time on; return True if there was one."""
        self._ended.add(request_id)
        return self._drop(request_id, at_us, arrived=True)

    def finished(self, request_id: str, at_us: int) -> bool:
        """Release a transfer whose request ended; `Loads` remembers the end."""
        return self._drop(request_id, at_us)

    def left(self, replica: str, at_us: int) -> None:
        """Give up the transfers that a replica reported at or before a log time; costs a step for each."""
        own = self._of_replica.get(replica, {})
        for request_id in [key for key, transfer in own.items() if transfer.shipping.at_us <= at_us]:
            self._drop(request_id, at_us)

    def collect(self, now_us: int, lifetime_us_max: int) -> int:
        """Forget old transfers, release those that nothing ended, and return how many."""
        generation = now_us // self._memory_us
        if generation != self._generation:
            stale = 0 < self._generation < generation - 1
            self._old_ended, self._ended = set() if stale else self._ended, set()
            self._generation = generation
        expired = self._drop_if(lambda op: now_us - op.at_us > lifetime_us_max, now_us)
        for load in self._loads.values():
            load.timetable.forget(now_us - WINDOW_US)
        for link in [link for link, load in self._loads.items() if not (load.transfers or load.timetable)]:
            del self._loads[link]
        return expired

    def retain(self, listed: Container[str], own: str) -> None:
        """Release other replicas' transfers that a snapshot does not list (`Loads.retain`)."""
        self._drop_if(lambda op: op.replica != own and op.request_id not in listed, NEVER_US)

    def dump_steps(self) -> Iterator[Shipping | None]:
        """Yield transfers as operations, while they go on changing; None for one that ended meanwhile."""
        for request_id in list(self.transfers):
            transfer = self.transfers.get(request_id)
            yield None if transfer is None else transfer.shipping

    # Questions.

    def measurement(self, link: str) -> LinkMeasured | None:
        """Newest measurement of a link."""
        return self.measured.get(link)

    def rtt_s(self, link: str) -> float:
        """Round trip: measured, else configured."""
        measured, rules = self.measured.get(link), self.rules.get(link)
        if measured is not None and measured.rtt_s > 0:
            return measured.rtt_s
        return rules.rtt_s if rules is not None else 0.0

    def loss_ratio(self, link: str) -> float:
        """Share of the latest transfers that failed."""
        measured = self.measured.get(link)
        return measured.loss_ratio if measured is not None else 0.0

    def capacity_bytes_per_s(self, link: str, now_us: int) -> float:
        """Present capacity of a link; 0 if it may not be used."""
        rules, measured = self.rules.get(link), self.measured.get(link)
        if rules is None:
            return 0.0
        if measured is None or measured.bytes_per_s <= 0:
            return rules.bytes_per_s
        age_s = max(now_us - measured.at_us, 0) / 1e6
        return min(rules.bytes_per_s, measured.bytes_per_s * exp2(min(age_s / RECOVERY_S, 60.0)))

    def cap_bytes_per_s(self, link: str, now_us: int) -> float:
        """Part of the capacity that may be reserved."""
        rules = self.rules.get(link)
        return 0.0 if rules is None else self.capacity_bytes_per_s(link, now_us) * rules.cap_ratio

    def under_way(self, link: str) -> int:
        """Transfers that reserve a link."""
        load = self._loads.get(link)
        return load.transfers if load is not None else 0

    def reserved_bytes_per_s(self, link: str, now_us: int) -> float:
        """Reserved rate of a link now."""
        load = self._advanced(link, now_us)
        return load.timetable.at(now_us) if load is not None else 0.0

    def utilisation(self, link: str, now_us: int) -> float:
        """Reserved rate as a part of the cap; 0 if it may not be used."""
        cap = self.cap_bytes_per_s(link, now_us)
        return self.reserved_bytes_per_s(link, now_us) / cap if cap else 0.0

    def quote(
        self,
        link: str,
        kv_bytes: float,
        compute_s: float,
        ready_s: float,
        now_us: int,
        ready_bytes: float = 0.0,
    ) -> Quote | None:
        """Find the earliest time at which a transfer can run so that no second sees more than the cap.

        Args:
            link: Its name.
            kv_bytes: Bytes that cross, >= 0.
            compute_s: The prefill during which it is sent; 0 if it is sent after the prefill.
            ready_s: From now until the prefill begins (or, without overlap, ends).
            now_us: Log time.
            ready_bytes: Part that leaves at once, <= kv_bytes.

        Returns:
            The plan; None if the link may not be used.
        """
        cap = self.cap_bytes_per_s(link, now_us)
        if cap <= 0:
            return None
        load = self._advanced(link, now_us)
        timetable = load.timetable if load is not None else _EMPTY
        ready_us, compute_us = now_us + round(ready_s * 1e6), round(compute_s * 1e6)
        line = self.capacity_bytes_per_s(link, now_us)
        sent = _Sent(kv_bytes, min(ready_bytes, kv_bytes), compute_us, line)
        pieces = sent.at(ready_us, timetable, cap)
        if pieces is None:
            # Room comes when something ends, or when the second that saw it is over; in the end all is free.
            changes = timetable.changes(ready_us - WINDOW_US)
            starts = np.unique(np.concatenate([changes, changes + WINDOW_US]))
            starts = starts[starts > ready_us]
            first, last = 0, len(starts) - 1
            while first < last:
                middle = (first + last) // 2
                if sent.at(int(starts[middle]), timetable, cap) is None:
                    first = middle + 1
                else:
                    last = middle
            pieces = sent.pieces(int(starts[last]))
        start_us, end_us = pieces[0][0], pieces[0][1]
        return Quote(
            start_us,
            end_us,
            (start_us - ready_us) / 1e6,
            (end_us - start_us) / 1e6,
            (end_us - start_us - compute_us) / 1e6,
            start_us == ready_us,
            timetable.at(now_us) / cap,
            kv_bytes > 0 and _alone(pieces) > cap,
            pieces[1][1] - start_us if len(pieces) > 1 else 0,
        )

    # Inside.

    def _advanced(self, link: str, now_us: int) -> Load | None:
        """Load of a link, with transfers overdue by now extended."""
        load = self._loads.get(link)
        if load is None:
            return None
        ends = load.ends
        while ends and ends[0][0] <= now_us:
            until_us, request_id = heappop(ends)
            transfer = self.transfers.get(request_id)
            if transfer is None or not self._is_end((until_us, request_id), link):
                continue
            shipping = transfer.shipping
            step_us = max((shipping.end_us - shipping.start_us) // 4, OVERDUE_STEP_US_MIN)
            later_us = until_us + ((now_us - until_us) // step_us + 1) * step_us
            later_us = min(later_us, max(shipping.end_us, shipping.start_us + 1) + OVERDUE_US_MAX)
            if later_us > until_us:
                load.timetable.add(until_us, later_us, transfer.rate)
                transfer.until_us = later_us
                heappush(ends, (later_us, request_id))
        return load

    def _is_end(self, end: tuple[int, str], link: str) -> bool:
        """True if a transfer that reserves this link ends so."""
        until_us, request_id = end
        transfer = self.transfers.get(request_id)
        return transfer is not None and transfer.until_us == until_us and transfer.shipping.link == link

    def _drop_if(self, gone: Callable[[Shipping], bool], at_us: int) -> int:
        ids = [request_id for request_id, transfer in self.transfers.items() if gone(transfer.shipping)]
        for request_id in ids:
            self._drop(request_id, at_us)
        return len(ids)

    def _drop(self, request_id: str, at_us: int, *, arrived: bool = False) -> bool:
        """Release a transfer from a log time on; the link keeps its use before then.

        ``arrived`` is true if all of it has crossed by then.
        """
        transfer = self.transfers.pop(request_id, None)
        if transfer is None:
            return False
        shipping = transfer.shipping
        of_replica = self._of_replica[shipping.replica]
        del of_replica[request_id]
        if not of_replica:
            del self._of_replica[shipping.replica]
        load = self._loads[shipping.link]
        load.transfers -= 1
        early = arrived and shipping.kv_bytes > 0 and at_us < max(shipping.end_us, shipping.start_us + 1)
        for begin_us, end_us, rate in (
            (shipping.start_us, transfer.until_us, transfer.rate),
            (shipping.start_us, transfer.burst_until_us, transfer.burst),
        ):
            # A transfer that has not begun was never there.
            load.timetable.add(max(begin_us, at_us), end_us, -rate)
        # The rest has crossed too, as late as can be: then it is in all seconds that may see it.
        rules = self.rules.get(shipping.link)
        if early and rules is not None:
            counted = max(at_us - shipping.start_us, 0) * transfer.rate
            counted += max(min(at_us, transfer.burst_until_us) - shipping.start_us, 0) * transfer.burst
            missed_us = int((shipping.kv_bytes * 1_000_000 - counted) / rules.bytes_per_s)
            load.timetable.add(at_us - missed_us, at_us, round(rules.bytes_per_s))
        if len(load.ends) > 2 * load.transfers + 16:
            load.ends = sorted({end for end in load.ends if self._is_end(end, shipping.link)})
        return True


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a transfer over time: ``ready_bytes`` leave at once, ``compute_us`` computes the rest."""

    kv_bytes: float
    ready_bytes: float
    compute_us: int
    line: float

    def at(self, start_us: int, timetable: Timetable, cap: float) -> list[Piece] | None:
        """Pieces it adds if it begins then, as `pieces`; None if it does not fit."""
        pieces = self.pieces(start_us)
        if not self.kv_bytes:
            return pieces
        begin_us, end_us = pieces[0][0], max(piece[1] for piece in pieces)
        if _alone(pieces) > cap:
            alone = not timetable.peak(begin_us - WINDOW_US, end_us + WINDOW_US)
            return pieces if alone else None
        for piece_us, until_us, rate in pieces:
            # Pulls have the link one after the other; layers leave beside one, as much as it leaves them.
            layered = until_us - piece_us == self.compute_us
            beside = rate if layered else min(rate, self.line * SPARE_MIN)
            most = self.line * (2.0 - SPARE_MIN if layered else 1.0)
            if timetable.peak(piece_us, until_us) + beside > most * (1.0 + ROUNDING):
                return None
        return pieces if timetable.most_within(WINDOW_US, pieces) <= cap * (1.0 + ROUNDING) else None

    def pieces(self, start_us: int) -> list[Piece]:
        """Its whole time with a rate, then the part that leaves at once if that is not all."""
        line, layered = self.line, self.kv_bytes - self.ready_bytes
        spare = line * (1.0 - SPARE_MIN) if self.ready_bytes else line
        if self.compute_us and layered * 1e6 / self.compute_us <= spare:
            pieces = [(start_us, start_us + self.compute_us, int(layered * 1e6 / self.compute_us))]
            if self.ready_bytes:
                pieces.append(_pull(start_us, self.ready_bytes, line))
            return pieces
        begin_us, until_us, rate = _pull(start_us, self.kv_bytes, line)
        if self.compute_us > until_us - begin_us:
            return [(begin_us, begin_us + self.compute_us, int(self.kv_bytes * 1e6 / self.compute_us))]
        return [(begin_us, until_us, rate)]


def _pull(start_us: int, n_bytes: float, line: float) -> Piece:
    send_us = int(n_bytes * 1e6 / line) + 1
    return start_us, start_us + send_us, int(n_bytes * 1e6 / send_us)


_EMPTY = Timetable()


def _alone(pieces: list[Piece]) -> float:
    return _EMPTY.most_within(WINDOW_US, pieces) / (1.0 + ROUNDING)


def _version(op: Shipping) -> tuple[object, ...]:
    return op.at_us, op.replica, op.link, op.kv_bytes, op.start_us, op.end_us
