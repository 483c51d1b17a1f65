"""Log time by the clocks of this machine (`policies.LogClock`)."""

import time
from collections.abc import Callable

from policies import LogClock as ClockOfTheCore


class LogClock(ClockOfTheCore):
    """Log time of this process.

    Args:
        monotonic_ns: The local clock.
        wall_ns: Wall clock, read once.
    """

    __slots__ = ()

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(monotonic_ns, wall_ns)
