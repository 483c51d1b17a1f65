"""A link between two sites: its capacity changes, and KV leaves as fast as a prefill makes it.

    made  ───────────────╮          a prefill makes S bytes in T seconds, layer by layer
    sent  ────────╮      │          as they are made (rate S/T), or later if the link is full
                  ╰──────┴──> arrived one round trip after the last byte

Fluid model: a transfer that has sent all that was made so far wants the rate at which more is made; one that
is behind wants all it can get. The capacity is divided max-min fairly, as among TCP flows of equal weight.
Rates change only when a transfer begins, ends, catches up or is all made, or when the capacity changes. Lost
bytes are sent again, and count as egress. The last layer, a fiftieth of a prefill, is not waited for
separately, and congestion control is taken to fill the link. Every change looks at all transfers: they are
few.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from loadtest.simulator.clock import VirtualClock, VirtualTimer
from loadtest.simulator.records import Floats

_NOTHING_BYTES = 1.0
"""Less is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """State of a link from a time on.

    Attributes:
        capacity_ratio: Usable share of its capacity, 0 to 1.
        loss_ratio: Share of the bytes that are lost and sent again, 0 to below 1.
    """

    at_s: float
    capacity_ratio: float = 1.0
    loss_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """A link of ``bytes_per_s`` > 0, and its changes in order of time.

    Attributes:
        cap_ratio: Share that the gateway may use.
    """

    bytes_per_s: float
    rtt_s: float = 0.0
    cap_ratio: float = 0.9
    weather: tuple[Weather, ...] = ()


class Transfer:
    """KV bytes of one request on their way.

    The first could leave at ``made_from_s``, the last is made at ``made_s``.
    """

    __slots__ = ("arrived", "ended", "made_from_s", "made_s", "rate", "sent_bytes", "total_bytes")

    def __init__(
        self, total_bytes: float, made_from_s: float, made_s: float, arrived: Callable[[], object]
    ) -> None:
        self.total_bytes = total_bytes
        self.made_from_s = made_from_s
        self.made_s = made_s
        self.sent_bytes = 0.0
        self.rate = 0.0
        self.ended = False
        self.arrived = arrived

    def made_bytes(self, now_s: float) -> float:
        """Bytes that are ready to send by now."""
        if now_s >= self.made_s:
            return self.total_bytes
        return self.total_bytes * (now_s - self.made_from_s) / (self.made_s - self.made_from_s)

    def all_sent(self, now_s: float) -> bool:
        """True if nothing is left of it but rounding."""
        return now_s >= self.made_s and self.total_bytes - self.sent_bytes < _NOTHING_BYTES

    def made_per_s(self, now_s: float) -> float:
        """Rate at which more are made."""
        return self.total_bytes / (self.made_s - self.made_from_s) if now_s < self.made_s else 0.0


class SiteLink:
    """One link in virtual time."""

    def __init__(self, clock: VirtualClock, plan: LinkPlan) -> None:
        assert plan.bytes_per_s > 0
        self._clock = clock
        self.plan = plan
        self._weather = Weather(at_s=0.0)
        self._transfers: list[Transfer] = []
        self._timer: VirtualTimer | None = None
        self._at_s = 0.0
        self._egress_per_s = 0.0
        self._egress_bytes = 0.0
        self._known: list[tuple[float, float]] = [(0.0, 0.0)]
        for weather in plan.weather:
            clock.call_at(weather.at_s, partial(self._change, weather))

    @property
    def transfers(self) -> int:
        """Transfers under way."""
        return len(self._transfers)

    @property
    def weather(self) -> Weather:
        """Its present state."""
        return self._weather

    @property
    def goodput_bytes_per_s(self) -> float:
        """Largest present rate of arrival."""
        return self.plan.bytes_per_s * self._weather.capacity_ratio * (1.0 - self._weather.loss_ratio)

    def begin(
        self, n_bytes: float, made_from_s: float, made_s: float, arrived: Callable[[], object]
    ) -> Transfer:
        """Begin a transfer of ``n_bytes`` > 0 that are made between two times.

        Call ``arrived`` after the last byte.
        """
        assert n_bytes > 0
        now_s = self._clock.time()
        self._advance(now_s)
        transfer = Transfer(n_bytes, made_from_s, made_s, arrived)
        self._transfers.append(transfer)
        self._share(now_s)
        return transfer

    def give_up(self, transfer: Transfer) -> None:
        """Send no more of it; idempotent."""
        if not transfer.ended:
            now_s = self._clock.time()
            self._advance(now_s)
            transfer.ended = True
            self._transfers.remove(transfer)
            self._share(now_s)

    def egress(self) -> tuple[Floats, Floats]:
        """Bytes put on the wire, those sent again included, as a line through (seconds, bytes so far)."""
        times_s, sent_bytes = np.array(self._known).T
        return times_s, sent_bytes

    def _change(self, weather: Weather) -> None:
        now_s = self._clock.time()
        self._advance(now_s)
        self._weather = weather
        self._share(now_s)

    def _advance(self, now_s: float) -> None:
        step_s = now_s - self._at_s
        if step_s > 0 and self._transfers:
            for transfer in self._transfers:
                transfer.sent_bytes += transfer.rate * step_s
            self._egress_bytes += self._egress_per_s * step_s
        self._at_s = now_s

    def _share(self, now_s: float) -> None:
        """End complete transfers, divide the capacity again, and look again when that changes."""
        if self._known[-1][0] < now_s:
            self._known.append((now_s, self._egress_bytes))
        over = [one for one in self._transfers if one.all_sent(now_s)]
        for transfer in over:
            transfer.ended = True
            self._transfers.remove(transfer)
            self._clock.call_later(self.plan.rtt_s, transfer.arrived)
        wants: list[tuple[float, Transfer]] = []
        for transfer in self._transfers:
            behind_bytes = transfer.made_bytes(now_s) - transfer.sent_bytes
            behind = now_s >= transfer.made_s or behind_bytes > _NOTHING_BYTES
            wants.append((inf if behind else transfer.made_per_s(now_s), transfer))
        goodput = self.goodput_bytes_per_s
        _fill(wants, goodput)
        total = sum(transfer.rate for transfer in self._transfers)
        self._egress_per_s = total / (1.0 - self._weather.loss_ratio)
        if self._timer is not None:
            self._timer.cancel()
        next_s = min((_changes_s(want, transfer, now_s) for want, transfer in wants), default=inf)
        self._timer = self._clock.call_at(next_s, self._tick) if next_s < inf else None

    def _tick(self) -> None:
        now_s = self._clock.time()
        self._timer = None
        self._advance(now_s)
        self._share(now_s)


def _fill(wants: Iterable[tuple[float, Transfer]], capacity: float) -> None:
    """Give each its demand, or an equal share of the rest: max-min fairness."""
    ordered = sorted(wants, key=lambda want: want[0])
    left = capacity
    for place, (want, transfer) in enumerate(ordered):
        transfer.rate = min(want, left / (len(ordered) - place))
        left -= transfer.rate


def _changes_s(want: float, transfer: Transfer, now_s: float) -> float:
    left_bytes = transfer.total_bytes - transfer.sent_bytes
    ends_s = now_s + left_bytes / transfer.rate if transfer.rate > 0 else inf
    if now_s >= transfer.made_s:
        return ends_s
    if want < inf:
        return transfer.made_s
    made_per_s = transfer.made_per_s(now_s)
    behind_bytes = transfer.made_bytes(now_s) - transfer.sent_bytes
    gain = transfer.rate - made_per_s
    caught_up_s = now_s + behind_bytes / gain if gain > 0 else inf
    return min(transfer.made_s, caught_up_s)


def busiest_window_bytes(times_s: Floats, sent_bytes: Floats, window_s: float) -> tuple[float, float]:
    """The most bytes within any stretch of ``window_s``, and its begin.

    ``sent_bytes`` is linear between the times.
    """
    starts_s = np.concatenate((times_s, times_s - window_s))
    within = np.interp(starts_s + window_s, times_s, sent_bytes) - np.interp(starts_s, times_s, sent_bytes)
    most = int(within.argmax())
    return float(within[most]), float(starts_s[most])
