"""Choice of an encoder: the one that has seen a request's media, unless it has too much to do.

    part of a request ──key: hash of its first medium──> rendezvous with bounded load ──> encoder
                                                                    └─ failed: the next one, at most twice

`policies.disaggregation.encoders` has the rule. Load is the number of parts in flight, of all replicas, from
the shared log.

Calls about a part under way go where the part went, which the log names under an id that follows from the
part's, so any replica knows. A call that comes before its part waits until the part's placement is published
here or arrives from another replica; at most `WAITING_MAX` calls do.
"""

from collections.abc import Callable

import numpy as np

from policies import Finished, Placed, Slots
from policies.disaggregation import choose_encoder
from router.encoding.exchange import ATTEMPTS_MAX, EncoderExchange
from router.encoding.registrations import Registrations
from router.errors import NoWorker, RequestRejected
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.metric_families import ENCODER_MOVES
from router.proxy import ClientConnection, ClientRequest, Exchange

WAITING_MAX = 256
"""Calls that wait for their part: it comes at about the same time, so there are few."""


class Encoding:
    """Starts exchanges with encoders (`router.proxy.StartExchange`), on a gateway's fleet, log and clock."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.registrations = Registrations(gateway.now_s)
        self._waiting: dict[EncoderExchange, str] = {}
        """Calls by the part that they wait for."""

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start one exchange."""
        exchange = EncoderExchange(self, request, connection)
        exchange.begin()
        return exchange

    def check(self) -> None:
        """Check that there are encoders, healthy or not; raise NoWorker if there are none."""
        if not self.gateway.registry.has_encoders:
            raise NoWorker(
                "No worker of this fleet has the role encode.",
                retry_after_s=self.gateway.placing.retry_after_s,
            )

    def choose(self, key: int, tried: Slots) -> LocalWorker:
        """Return the encoder for a key (`EncoderCall.key`), none of ``tried``; raise NoWorker for none."""
        gateway = self.gateway
        encoders = gateway.registry.encoders(gateway.log.now_us())
        fresh = encoders[~np.isin(encoders, tried)]
        slots = fresh if len(fresh) else encoders
        if not len(slots):
            raise NoWorker(
                "No encoder can take media now; GET /workers shows those of the role encode.",
                retry_after_s=gateway.placing.retry_after_s,
            )
        loads = gateway.fleet.loads.inflight_requests[slots]
        row, moved = choose_encoder(key, gateway.fleet.columns.hashes(slots), loads)
        if moved:
            gateway.metrics.sums[ENCODER_MOVES].add(1)
        return gateway.registry.at_slot(int(slots[row]))

    def place(self, part: str, attempt: int, local: LocalWorker) -> Callable[[], None]:
        """Publish that a part goes to an encoder; return the function that publishes its end."""
        gateway = self.gateway
        attempt_id = _attempt_id(part, attempt)
        now_us = gateway.log.now_us()
        gateway.log.publish(Placed(attempt_id, now_us, local.worker.worker_id, gateway.log.replica, 0, 0, 0))
        gateway.registry.circuits.dispatched(local, now_us)
        gateway.loop.call_soon(self.heard)

        def ended() -> None:
            gateway.log.publish(Finished(attempt_id, gateway.log.now_us()))
            gateway.registry.circuits.released(local, gateway.log.now_us(), now_us)

        return ended

    def whereabouts(self, part: str) -> LocalWorker | None:
        """Return the worker of a part that is under way or ended lately; None if it is unknown."""
        for attempt in reversed(range(ATTEMPTS_MAX)):
            slot = self.gateway.fleet.loads.last_slot_of(_attempt_id(part, attempt))
            if slot >= 0:
                return self.gateway.registry.found(slot)
        return None

    def wait(self, part: str, exchange: EncoderExchange) -> None:
        """Let a call wait until its part is placed (`follow`); raise RequestRejected if too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            raise RequestRejected(
                f"{WAITING_MAX} calls wait for their parts already.",
                retry_after_s=1.0,
                code="too_many_requests",
            )
        self._waiting[exchange] = part

    def wait_no_more(self, exchange: EncoderExchange) -> None:
        """A call has found its part, or given up."""
        self._waiting.pop(exchange, None)

    def heard(self) -> None:
        """Resume the calls whose parts have been placed by now."""
        for exchange, part in list(self._waiting.items()):
            local = self.whereabouts(part)
            if local is not None and self._waiting.pop(exchange, None) is not None:
                exchange.follow(local)


def _attempt_id(part: str, attempt: int) -> str:
    return f"part-{part}-{attempt}"
