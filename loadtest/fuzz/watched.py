"""``cacheway`` as the fuzzer starts it: it reports how long its event loop is held, and gives memory back.

    python -m loadtest.fuzz.watched [--without C5] serve ...

Holds are counted in CPU seconds of the thread, and in requests that one read begins, so a busy machine is no
finding. ``--without`` takes a mend out first (`loadtest.fuzz.unmended`).
"""

import ctypes
import logging
import sys
import threading
import time

from loadtest.fuzz.unmended import UNMENDED
from router.__main__ import main as cacheway
from router.loop_lag import INTERVAL_S, LoopLag
from router.proxy.client_protocol import GatewayProtocol

HELD_S = 0.05
"""From here on it is told."""

BEGUN = 100
"""Requests of one read, from here on they are told."""

TRIM_S = 0.5

logger = logging.getLogger(__name__)


async def _run(self: LoopLag) -> None:
    while True:
        due_s, spent_s = time.monotonic() + INTERVAL_S, time.thread_time()
        await self._sleep(INTERVAL_S)
        held_s = min(time.monotonic() - due_s, time.thread_time() - spent_s)
        if held_s > HELD_S:
            logger.info("the event loop was held", extra={"event": "fuzz.held", "held_s": round(held_s, 3)})


def _count_requests() -> None:
    """Tell when one read of a connection begins many requests."""
    received, complete = GatewayProtocol.data_received, GatewayProtocol.on_headers_complete
    begun = 0

    def data_received(self: GatewayProtocol, data: bytes) -> None:
        nonlocal begun
        begun = 0
        received(self, data)
        if begun > BEGUN:
            logger.info("many requests in one read", extra={"event": "fuzz.burst", "begun": begun})

    def on_headers_complete(self: GatewayProtocol) -> None:
        nonlocal begun
        begun += 1
        complete(self)

    GatewayProtocol.data_received = data_received  # type: ignore[method-assign]
    GatewayProtocol.on_headers_complete = on_headers_complete  # type: ignore[method-assign]


def _trim() -> None:
    """Give free memory back to the system, so that resident memory is used memory."""
    libc = ctypes.CDLL(None)
    while hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
        time.sleep(TRIM_S)


def main() -> int:
    """Run the command line of this process."""
    if sys.argv[1] == "--without":
        UNMENDED[sys.argv[2]].take_out()
        del sys.argv[1:3]
    _count_requests()
    LoopLag.run = _run  # type: ignore[method-assign]
    threading.Thread(target=_trim, name="trim", daemon=True).start()
    return cacheway()


if __name__ == "__main__":
    sys.exit(main())
