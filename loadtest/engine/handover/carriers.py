"""Ways of KV from one engine to another: the fabric of a site, or a link that sites share.

    Fabric      every engine has a connection of its own: the time follows from bytes alone
    SharedLink  all transfers of a site share one (`loadtest.engine.link`), which may be slow, or die
    FaultyWay   either of them, with the faults that a test ordered

KV that goes layer by layer begins with its prefill and is *computed* when that ends; pulled KV is complete
when it begins.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from os import getpid
from typing import Protocol as Port
from urllib.parse import urlsplit

from loadtest.engine.faults import TRANSFER_FAULTS, Faults
from loadtest.engine.handover.peer import PeerLost, PeerRefused, call
from loadtest.engine.timing import LinkTiming

Ended = Callable[[str | None], object]
"""Told once, with the reason if the KV did not arrive; never after `Shipment.cancel`."""

_RETRY_S = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """KV to carry.

    Attributes:
        n_bytes: In all.
        ready_bytes: Present already.
        prefill_s: Expected seconds of prefill for the rest; 0: complete.
        layers: Pieces, each sent when it is computed.
    """

    n_bytes: int
    ready_bytes: int
    prefill_s: float
    layers: int

    @property
    def whole(self) -> bool:
        """True if nothing is to be computed any more."""
        return self.ready_bytes >= self.n_bytes


class Shipment(Port):
    """KV under way."""

    def computed(self, prefill_s: float) -> None:
        """Its prefill is over, and took ``prefill_s``. Only for a load that was not whole; comes once."""

    def cancel(self) -> None:
        """Give it up; idempotent."""


class Carrier(Port):
    """Carries KV."""

    def send(self, load: Load, ended: Ended) -> Shipment:
        """Begin."""


class Fabric:
    """An engine's own connection."""

    def __init__(self, link: LinkTiming) -> None:
        self._link = link

    def send(self, load: Load, ended: Ended) -> Shipment:
        """See `Carrier`."""
        return _OnFabric(self._link, load, ended)


class _OnFabric:
    def __init__(self, link: LinkTiming, load: Load, ended: Ended) -> None:
        self._link = link
        self._load = load
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        if load.whole:
            self._arrive_in(link.move_s(load.n_bytes))

    def computed(self, prefill_s: float) -> None:
        self._arrive_in(max(0.0, self._link.exposed_s(self._load.n_bytes, prefill_s, self._load.layers)))

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arrive_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ended, None)


class SharedLink:
    """The link of a site, in another process with this base URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._numbers = count(1)

    def send(self, load: Load, ended: Ended) -> Shipment:
        """See `Carrier`."""
        name = f"{getpid()}-{id(self)}-{next(self._numbers)}"
        return _OnLink(self._host, self._port, name, load, ended)


class _OnLink:
    """One transfer: a call that is answered when the KV arrived, and one that says when it is computed."""

    def __init__(self, host: str, port: int, name: str, load: Load, ended: Ended) -> None:
        self._host, self._port, self._name = host, port, name
        self._ended = ended
        loop = asyncio.get_running_loop()
        self._carry = loop.create_task(self._carried(load), name="kv-link.transfer")
        self._tell: asyncio.Task[None] | None = None

    def computed(self, prefill_s: float) -> None:
        self._tell = asyncio.get_running_loop().create_task(self._told(), name="kv-link.computed")

    def cancel(self) -> None:
        if self._tell is not None:
            self._tell.cancel()
        self._carry.cancel()

    async def _carried(self, load: Load) -> None:
        fields = {
            "name": self._name,
            "bytes": load.n_bytes,
            "ready_bytes": load.ready_bytes,
            "held_bytes": 0 if load.whole else load.n_bytes / load.layers,
            "over_s": load.prefill_s,
        }
        problem: str | None
        try:
            await call(self._host, self._port, "/transfers", fields)
        except (PeerLost, PeerRefused) as error:
            problem = str(error)
        else:
            problem = None
        if self._tell is not None:
            self._tell.cancel()
        self._ended(problem)

    async def _told(self) -> None:
        """Until the link has heard it: the transfer's own call may be behind this one."""
        while not self._carry.done():
            try:
                await call(self._host, self._port, "/computed", {"name": self._name})
            except PeerRefused:
                await asyncio.sleep(_RETRY_S)
            except PeerLost:
                return  # the transfer fails for the same reason
            else:
                return


class FaultyWay:
    """A way on which ordered faults may stall transfers or let them fail."""

    def __init__(self, way: Carrier, faults: Faults) -> None:
        self._way = way
        self._faults = faults

    def send(self, load: Load, ended: Ended) -> Shipment:
        """See `Carrier`."""
        fault = self._faults.take(TRANSFER_FAULTS)
        if fault is None:
            return self._way.send(load, ended)
        return _Faulty(load, ended, fault.seconds, arrives=fault.kind == "stall_transfer")


class _Faulty:
    """A transfer that fails some seconds after it began, or arrives as long after it could: 0 is never."""

    def __init__(self, load: Load, ended: Ended, seconds: float, *, arrives: bool) -> None:
        self._ended = ended
        self._stall_s = seconds if arrives else 0.0
        self._timer: asyncio.TimerHandle | None = None
        if not arrives:
            self._timer = asyncio.get_running_loop().call_later(seconds, ended, "injected fault")
        elif load.whole:
            self.computed(0.0)

    def computed(self, prefill_s: float) -> None:
        if self._stall_s:
            self._timer = asyncio.get_running_loop().call_later(self._stall_s, self._ended, None)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
