"""Uses of adapters by all replicas: which one an engine should lose first, and which ones it is losing.

    a request ──begun──> memory ── at most once in `TOLD_US` ──> ZADD cw:{ns}:adapters, log time, name
    before an unload ──newest──> memory and ZREVRANGE: the later of both
    an unload ──all_know──> ZADD cw:{ns}:adapters:leaving ── `GRACE_S` ──> the engine unloads
                              └──sync── each replica, at most `SYNC_US` before it sends a request

A replica that unloads waits until no sibling sends requests for the adapter there any more: each reads the
list again before a request for an adapter if its own is older than `SYNC_US`. In flight are the requests of
this process only, counted by references that end with the request. Without Redis each process knows its own
uses.
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

SYNC_US = 1_000_000
GRACE_S = 1.5
"""Longer than `SYNC_US` by the time that a request needs to reach its worker."""

SYNC_S_MAX = 0.3
PAUSE_US = 4_000_000
"""Time between two waits of requests for the list without Redis, in microseconds beside `SYNC_US`."""

LEAVES_US = 10_000_000
"""An adapter that is listed this long after it began to leave is there, in microseconds."""

READ_MAX = 2000
TIMEOUT_S = 1.0

Place = tuple[str, str]
"""A worker's id and an adapter's name."""

NOWHERE: frozenset[Place] = frozenset()


class Use:
    """A request for an adapter; ``in_flight`` once it may be sent, until it ends or is forgotten."""

    __slots__ = ("__weakref__", "in_flight")

    def __init__(self) -> None:
        self.in_flight = False


class AdapterUses:
    """The uses that one process knows; ``url`` is empty without Redis. For the event loop's thread."""

    def __init__(
        self, now_us: Callable[[], int], url: str = "", keys: Keys | None = None, replica: str = ""
    ) -> None:
        self._now_us = now_us
        self._key, self._leaving_key = ("", "") if keys is None else (keys.adapters, keys.leaving)
        self._own: dict[Place, int] = {}
        self._others: dict[Place, int] = {}
        self._synced_us = 0
        self._syncing: asyncio.Task[None] | None = None
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
        return any(use.in_flight for use in self._in_flight.get(name, ()))

    def is_awaited(self, name: str) -> bool:
        """Return True if a request of this process waits for an adapter, or is about to be sent."""
        return any(not use.in_flight for use in self._in_flight.get(name, ()))

    async def newest(self, names: Iterable[str]) -> dict[str, int]:
        """Return the log time of the newest use of each adapter, by any replica; 0 if none is known."""
        newest = {name: self._used_us.get(name, 0) for name in names}
        if self._link is not None and newest:
            with suppress(StateError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    if await self._link.replaced():
                        self._link.lose("the Sentinels name another primary")
                    found = await self._link.call("ZREVRANGE", self._key, 0, READ_MAX - 1, "WITHSCORES")
                for name, used_us in _uses_in(found):
                    if name in newest:
                        newest[name] = max(newest[name], used_us)
        return newest

    # Adapters on their way out.

    def leaving(self) -> frozenset[Place]:
        """Return where adapters are being unloaded, by any replica, as far as this process knows."""
        if not self._own and not self._others:
            return NOWHERE
        oldest_us = self._now_us() - LEAVES_US
        for known in (self._own, self._others):
            for place in [place for place, since_us in known.items() if since_us < oldest_us]:
                del known[place]
        return frozenset((*self._own, *self._others))

    def leaves(self, place: Place) -> None:
        """Note that an adapter leaves a worker."""
        self._own[place] = self._now_us()

    async def all_know(self, place: Place) -> None:
        """Tell all replicas that an adapter leaves; return when none sends requests for it there."""
        if self._link is None:
            return
        now_us = self._now_us()
        with suppress(StateError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await self._link.calls(
                    ("ZADD", self._leaving_key, now_us, "\n".join(place)),
                    ("ZREMRANGEBYSCORE", self._leaving_key, "-inf", now_us - LEAVES_US),
                    ("PEXPIRE", self._leaving_key, LEAVES_US // 1000),
                )
            await asyncio.sleep(GRACE_S)

    async def returned(self, place: Place) -> None:
        """Tell all replicas that an adapter is there again, if it left lately."""
        if place not in self.leaving():
            return
        self._own.pop(place, None)
        self._others.pop(place, None)
        if self._link is not None:
            with suppress(StateError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await self._link.call("ZREM", self._leaving_key, "\n".join(place))

    async def is_leaving(self, place: Place) -> bool:
        """Return True if an adapter is being unloaded, and no replica has loaded it since, as Redis says."""
        reading = self.stale()
        if reading is not None:
            await asyncio.wait([reading])
        since_us = self._others.get(place)
        return since_us is not None and self._now_us() - since_us < LEAVES_US

    def stale(self) -> "asyncio.Task[None] | None":
        """Return the reading of the others' list for which a request should wait; None if it is new."""
        if self._link is None or self._now_us() - self._synced_us <= SYNC_US:
            return None
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync(self._link), name="adapters leaving")
        return self._syncing

    async def _sync(self, link: RedisLink) -> None:
        began_us = self._now_us()
        try:
            async with asyncio.timeout(SYNC_S_MAX):
                command = ("ZREVRANGE", self._leaving_key, 0, READ_MAX - 1, "WITHSCORES")
                found = list(_uses_in(await link.call(*command)))
            parts = ((*member.partition("\n"), since_us) for member, since_us in found)
            self._others = {(worker_id, name): since_us for worker_id, _, name, since_us in parts if name}
        except (StateError, TimeoutError):
            began_us += PAUSE_US
        finally:
            self._synced_us, self._syncing = began_us, None

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other adapters."""
        for known in (self._used_us, self._told_us, self._in_flight):
            for name in known.keys() - set(names):
                del known[name]

    async def close(self) -> None:
        """Tell no more."""
        tasks = [task for task in (self._telling, self._syncing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._link is not None:
            await self._link.aclose()

    async def _tell(self, link: RedisLink) -> None:
        """Tell the newest uses until none is due; uses that Redis does not take are told with a later one."""
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
