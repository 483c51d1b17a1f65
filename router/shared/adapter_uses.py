"""Uses of adapters by all replicas: which one an engine should lose first.

    a request ──begun──> memory ── at most once in `TOLD_US` ──> ZADD cw:{ns}:adapters, log time, name
    before an unload ──newest──> memory and ZRANGE: the later of both

In flight are the requests of this process only, counted by references that end with the request. Without
Redis each process knows its own uses.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from weakref import WeakSet

from router.errors import StateError
from router.shared.keys import Keys
from router.shared.server import RedisLink

TOLD_US = 1_000_000
"""An adapter's use is told again after this, in microseconds: an unload saves no more than it costs."""

KEPT_US = 24 * 3600 * 1_000_000
"""Older uses are deleted in Redis, in microseconds: settings may no longer declare the adapter."""

READ_MAX = 2000
TIMEOUT_S = 1.0


class Use:
    """A request in flight for an adapter, until it is ``over`` or forgotten."""

    __slots__ = ("__weakref__", "over")

    def __init__(self) -> None:
        self.over = False


class AdapterUses:
    """The uses that one process knows; ``url`` is empty without Redis. For the event loop's thread."""

    def __init__(
        self, now_us: Callable[[], int], url: str = "", keys: Keys | None = None, replica: str = ""
    ) -> None:
        self._now_us = now_us
        self._key = "" if keys is None else keys.adapters
        self._link: RedisLink | None = None
        if url and keys is not None:
            self._link = RedisLink(url, TIMEOUT_S, home=keys.log, name=f"cacheway-adapters-{replica}")
        self._used_us: dict[str, int] = {}
        self._told_us: dict[str, int] = {}
        self._in_flight: dict[str, WeakSet[Use]] = {}
        self._telling: asyncio.Task[None] | None = None

    def begun(self, name: str) -> Use:
        """Note that a request wants an adapter, and return its mark."""
        now_us, use = self._now_us(), Use()
        self._used_us[name] = now_us
        self._in_flight.setdefault(name, WeakSet()).add(use)
        if self._link is not None and self._telling is None and now_us - self._told_us.get(name, 0) > TOLD_US:
            self._telling = asyncio.create_task(self._tell(self._link), name="adapter uses")
        return use

    def is_busy(self, name: str) -> bool:
        """Return True if a request of this process for an adapter is in flight."""
        return any(not use.over for use in self._in_flight.get(name, ()))

    async def newest(self, names: Iterable[str]) -> dict[str, int]:
        """Return the log time of the newest use of each adapter, by any replica; 0 if none is known."""
        newest = {name: self._used_us.get(name, 0) for name in names}
        if self._link is not None and newest:
            with suppress(StateError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    if await self._link.replaced():
                        self._link.lose("the Sentinels name another primary")
                    found = await self._link.call("ZRANGE", self._key, 0, READ_MAX - 1, "REV", "WITHSCORES")
                for name, used_us in _uses_in(found):
                    if name in newest:
                        newest[name] = max(newest[name], used_us)
        return newest

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other adapters."""
        for known in (self._used_us, self._told_us, self._in_flight):
            for name in known.keys() - set(names):
                del known[name]

    async def close(self) -> None:
        """Tell no more."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._link is not None:
            await self._link.aclose()

    async def _tell(self, link: RedisLink) -> None:
        """Tell the newest uses until none is due; what Redis does not take is told with a later use."""
        try:
            while due := {
                name: used_us
                for name, used_us in self._used_us.items()
                if used_us - self._told_us.get(name, 0) > TOLD_US
            }:
                oldest_us = self._now_us() - KEPT_US
                self._told_us.update(due)
                with suppress(StateError, TimeoutError):
                    async with asyncio.timeout(TIMEOUT_S):
                        await link.calls(
                            *(("ZADD", self._key, used_us, name) for name, used_us in due.items()),
                            ("ZREMRANGEBYSCORE", self._key, "-inf", oldest_us),
                            ("PEXPIRE", self._key, KEPT_US // 1000),
                        )
        finally:
            self._telling = None


def _uses_in(reply: object) -> Iterable[tuple[str, int]]:
    """Yield names and times of an answer of Redis, which others may have written."""
    fields = reply if isinstance(reply, list) else []
    for name, score in zip(fields[::2], fields[1::2], strict=False):
        if isinstance(name, bytes) and isinstance(score, bytes):
            with suppress(ValueError, OverflowError):
                yield name.decode(), int(float(score))
