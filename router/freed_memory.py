"""Freed memory: kept for the next request while the gateway works, given back while it is idle.

glibc maps a block of 128 KB or more by itself and unmaps it when it is freed, so the next large body faults
all its pages in again. The first free of such a block raises that bound to its size, to 32 MB at most, and
lets glibc keep twice as much at the end of the heap (mallopt(3)). So freeing the largest such block sets
both, unless the user has set either. The block is never written, so it takes no memory. Other C libraries
only map and unmap it.

`router.app` owns `give_back_while_idle`, restarts it if it ever fails, and cancels it at the end.
"""

import asyncio
import ctypes
from collections.abc import Awaitable, Callable
from functools import cache

LARGEST_MAPPED_BYTES = (32 << 20) - (64 << 10)
"""Size of a block that, with its header and in whole pages, stays below glibc's 32 MB."""

GIVE_BACK_EVERY_S = 5.0
"""Seconds between two looks. Traffic that pauses for less finds its pages, and is not held up."""


def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory at the end of the heap, as after a body of 32 MB."""
    bytes(LARGEST_MAPPED_BYTES)


@cache
def _libraries() -> ctypes.CDLL:
    """Return the functions of all loaded libraries; ctypes makes a class for each such object."""
    return ctypes.CDLL(None)


def give_back_freed_memory() -> None:
    """Give the pages of freed memory back to the system, where the C library can (glibc).

    It takes 0.2 ms if there are few, 2 ms for 24 MB, and 31 ms for 160 MB in pieces of 8 KB.
    """
    trim = getattr(_libraries(), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


async def give_back_while_idle(
    ended: Callable[[], int],
    busy: Callable[[], object],
    give_back: Callable[[], None] = give_back_freed_memory,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Give freed memory back once in each idle time, until cancelled.

    A look finds the gateway idle if no request is in flight, and none has ``ended`` since the look before.
    """
    given_at, before = -1, ended()
    while True:
        await sleep(GIVE_BACK_EVERY_S)
        now = ended()
        if now == before and now != given_at and not busy():
            give_back()
            given_at = now
        before = now
