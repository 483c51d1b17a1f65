"""``cacheway`` with a wall clock that steps: a minute forth at each SIGUSR1, a minute back at each SIGUSR2.

    python -m loadtest.chaos.stepping serve ...

`time.monotonic` and child processes (``--workers 2``) are not affected.
"""

import signal
import sys
import time
from types import FrameType

from router.__main__ import main

STEP_S = 60.0

_wall_s, _wall_ns = time.time, time.time_ns


class _Offset:
    s = 0.0

    @classmethod
    def step(cls, number: int, _: FrameType | None) -> None:
        cls.s += STEP_S if number == signal.SIGUSR1 else -STEP_S


def install() -> None:
    """Let the wall clock of this process step from now on."""
    time.time = lambda: _wall_s() + _Offset.s
    time.time_ns = lambda: _wall_ns() + int(_Offset.s * 1e9)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _Offset.step)


if __name__ == "__main__":
    install()
    sys.exit(main())
