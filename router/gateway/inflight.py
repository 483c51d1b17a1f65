"""The exchanges that have not ended, and the clock that ends late ones.

All have the same timeout, so the oldest runs out of time first: one look a second at the head of the line
replaces a timer each. A deadline is noticed up to one look late.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

LOOK_S_MAX = 1.0
"""Between two looks, or a quarter of a timeout that is shorter than four seconds."""

ENDED_AT_ONCE = 200
"""Exchanges ended in one turn of the loop, some milliseconds of work."""


class Timed(Protocol):
    """An exchange that can time out."""

    @property
    def received_s(self) -> float:
        """Monotonic seconds when its request was complete."""

    def out_of_time(self) -> None:
        """End it: it took longer than the gateway allows."""

    def renew(self, left_us: int, now_us: int) -> None:
        """Reserve again what was dropped; see `router.gateway.exchange.RequestExchange.renew`."""


class Inflight(dict[Timed, None]):
    """The exchanges that have not ended, the oldest first: put one in that begins, delete one that ended.

    ``timeout_s`` is the longest time from a request's last byte to the end of its answer; it may change.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float], timeout_s: float) -> None:
        super().__init__()
        self._loop = loop
        self._now_s = now_s
        self.timeout_s = timeout_s
        self.timer: asyncio.TimerHandle | None = None

    @property
    def _look_s(self) -> float:
        return min(LOOK_S_MAX, self.timeout_s / 4)

    def watch(self) -> None:
        """Start the clock, if it is not running: there is an exchange."""
        if self.timer is None:
            self.timer = self._loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        self.timer = None
        late_s = self._now_s() - self.timeout_s
        late = [exchange for exchange in islice(self, ENDED_AT_ONCE) if exchange.received_s <= late_s]
        if len(self) > len(late):
            self.timer = self._loop.call_later(0 if len(late) == ENDED_AT_ONCE else self._look_s, self._look)
        for exchange in late:
            exchange.out_of_time()
