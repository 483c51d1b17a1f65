"""KV that a prefill engine keeps for decode engines to fetch.

    keep ----> kept --asked for: the bytes go--> let go: its blocks may be evicted
                 +----- lease over ------------> let go, counted
                 +<---- the transfer failed: the lease begins again

The name is the request's id (NIXL) or the transfer's (Mooncake). Mooncake's decode engine waits for the
prefill. NIXL reads by block ids at once, so a wrong name still gets the bytes, but releases nothing.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.engine.handover.carriers import Shipment
from loadtest.engine.handover.legs import Counters, Transfers, Worker
from loadtest.engine.handover.side_port import HeldCall
from loadtest.engine.job import Job, State
from loadtest.engine.server import Answer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    job: Job
    lease: asyncio.TimerHandle


@dataclass(slots=True)
class _Asked:
    """A decode engine that waits: for the prefill, then for the bytes."""

    call: HeldCall
    tokens: int
    kept_tokens: int
    shipment: Shipment | None = None


class KeptKv:
    """KV that one engine keeps for ``lease_s``; ``await_prefill``: a fetch may wait for the KV."""

    def __init__(
        self,
        worker: Worker,
        transfers: Transfers,
        counters: Counters,
        lease_s: float,
        *,
        await_prefill: bool,
    ) -> None:
        self._worker = worker
        self._transfers = transfers
        self._counters = counters
        self._lease_s = lease_s
        self._await_prefill = await_prefill
        self._kept: dict[str, _Kept] = {}
        self._asked: dict[str, _Asked] = {}

    def state(self) -> Mapping[str, int]:
        """Counts of kept KV and fetches."""
        return {"kept": len(self._kept), "asked": len(self._asked)}

    def keep(self, name: str, job: Job) -> None:
        """The prefill of a job is done."""
        older = self._kept.pop(name, None)
        if older is not None:
            older.lease.cancel()
            # Not now: the scheduler is telling of this one.
            asyncio.get_running_loop().call_soon(self._release, older.job)
        self._kept[name] = _Kept(job, self._lease(name))
        asked = self._asked.get(name)
        if asked is not None and asked.shipment is None:
            self._send(name, asked)

    def renew(self, name: str) -> None:
        """Extend the lease."""
        entry = self._kept.get(name)
        if entry is not None and not entry.lease.cancelled():
            entry.lease.cancel()
            entry.lease = self._lease(name)

    def ask(self, name: str, tokens: int, kept_tokens: int, answer: Answer) -> None:
        """Answer when the KV of ``tokens`` is where it is wanted, but for ``kept_tokens`` that are there."""
        asked = _Asked(HeldCall(answer, lambda _: self._given_up(name, asked)), tokens, kept_tokens)
        self._asked[name] = asked
        if name in self._kept or not self._await_prefill:
            self._send(name, asked)

    def let_go(self, name: str) -> None:
        """Release it; harmless if it is not kept."""
        entry = self._kept.pop(name, None)
        if entry is not None:
            entry.lease.cancel()
            self._release(entry.job)

    def close(self) -> None:
        """Forget everything without a notice."""
        for entry in self._kept.values():
            entry.lease.cancel()
        for asked in self._asked.values():
            if asked.shipment is not None:
                asked.shipment.cancel()
        self._kept.clear()
        self._asked.clear()

    def _release(self, job: Job) -> None:
        if job.state == State.HELD:
            self._worker.release(job)

    def _lease(self, name: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._lease_s, self._expired, name)

    def _expired(self, name: str) -> None:
        logger.warning("releasing expired KV blocks", extra={"event": "handover.expired", "kept": name})
        self._counters.expired += 1
        self.let_go(name)

    def _send(self, name: str, asked: _Asked) -> None:
        entry = self._kept.get(name)
        if entry is not None:
            # Once its bytes are on their way, it is their end that lets it go.
            entry.lease.cancel()
        asked.shipment = self._transfers.pull(
            asked.tokens, asked.kept_tokens, lambda problem: self._sent(name, asked, problem)
        )

    def _sent(self, name: str, asked: _Asked, problem: str | None) -> None:
        self._forget(name, asked)
        if problem is None:
            self.let_go(name)
            asked.call.answer.send(200, b"{}")
            return
        entry = self._kept.get(name)
        if entry is not None:
            entry.lease = self._lease(name)
        asked.call.answer.send(500, problem.encode())

    def _given_up(self, name: str, asked: _Asked) -> None:
        self._forget(name, asked)
        if asked.shipment is not None:
            asked.shipment.cancel()
            self.let_go(name)

    def _forget(self, name: str, asked: _Asked) -> None:
        if self._asked.get(name) is asked:
            del self._asked[name]
