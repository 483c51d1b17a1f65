"""Which encoder gets the media of a request: the one that has seen them, unless it has too much to do.

    part of a request ──key: hash of its first medium──> rendezvous with bounded load ──> encoder
                                                                    └─ failed: the next one, at most twice

Why, and how much is too much, is in `policies.encoders`. Load is the number of parts in flight, of all
replicas, from the shared log.

Calls about a part that is under way go where the part went. That is in the log too, under an id that follows
from the part's, so any replica knows; one that comes before its part waits for it.
"""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from policies import Finished, Placed, Slots, choose_encoder
from router.encoding.exchange import ATTEMPTS_MAX, EncoderExchange
from router.errors import ClientError, NoWorker
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.proxy import ClientConnection, ClientRequest, Exchange

REGISTRATIONS_MAX = 10_000
"""Parts whose registrations are remembered; of a part there is one for each rank of its worker."""

RANKS_MAX = 256
REGISTRATION_BYTES_MAX = 4096
"""An address and the part's name; SGLang sends some 200 bytes (``disaggregation/encode_receiver.py``)."""


class Encoding:
    """Starts exchanges with encoders (`router.proxy.StartExchange`).

    Args:
        gateway: Its fleet, log, clock and forwarding serve here too.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._registrations: OrderedDict[str, list[ClientRequest]] = OrderedDict()

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start one exchange."""
        exchange = EncoderExchange(self, request, connection)
        exchange.begin()
        return exchange

    def choose(self, key: int, tried: Slots) -> LocalWorker:
        """The encoder for media with this key.

        Args:
            key: See `EncoderCall.key`.
            tried: Slots of those that failed.

        Raises:
            NoWorker: There is none.
        """
        gateway = self.gateway
        encoders = gateway.registry.encoders(gateway.clock.now_us())
        fresh = encoders[~np.isin(encoders, tried)]
        slots = fresh if len(fresh) else encoders
        if not len(slots):
            raise NoWorker(
                "No encoder can take media now; GET /workers shows those of the role encode.",
                retry_after_s=gateway.retry_after_s,
            )
        loads = gateway.fleet.loads.inflight_requests[slots]
        row, moved = choose_encoder(key, gateway.fleet.columns.hashes(slots), loads)
        if moved:
            gateway.metrics.part_moved()
        return gateway.registry.at_slot(int(slots[row]))

    def place(self, part: str, attempt: int, local: LocalWorker) -> Callable[[], None]:
        """Say in the log that a part goes to an encoder; what is returned says that it has ended."""
        gateway = self.gateway
        attempt_id = _attempt_id(part, attempt)
        now_us = gateway.clock.now_us()
        gateway.registry.circuits.dispatched(local, now_us)
        gateway.publish(Placed(attempt_id, now_us, local.worker.worker_id, gateway.replica, 0, 0, 0))

        def ended() -> None:
            gateway.publish(Finished(attempt_id, gateway.clock.now_us()))
            gateway.registry.circuits.released(local, gateway.clock.now_us(), now_us)

        return ended

    def whereabouts(self, part: str) -> LocalWorker | None:
        """Where a part went, under way or ended lately; None if nobody has said so."""
        for attempt in reversed(range(ATTEMPTS_MAX)):
            slot = self.gateway.fleet.loads.last_slot_of(_attempt_id(part, attempt))
            if slot >= 0:
                return self.gateway.registry.found(slot)
        return None

    def registered(self, part: str, request: ClientRequest) -> None:
        """Remember a registration, should its part have to go elsewhere.

        Raises:
            ClientError: If it is no registration, by its size, or there are too many of this part.
        """
        if len(request.body) > REGISTRATION_BYTES_MAX:
            raise ClientError(
                f"A registration of {len(request.body)} bytes; at most {REGISTRATION_BYTES_MAX} are kept.",
                code="body_too_large",
                status=413,
            )
        known = self._registrations.setdefault(part, [])
        if len(known) >= RANKS_MAX:
            raise ClientError(
                f"This part has {RANKS_MAX} registrations already, more than a worker has ranks.",
                code="too_many_registrations",
                param="req_id",
            )
        known.append(request)
        if len(self._registrations) > REGISTRATIONS_MAX:
            self._registrations.popitem(last=False)

    def registrations(self, part: str) -> list[ClientRequest]:
        """All that was registered for a part, here."""
        return self._registrations.get(part, [])

    def forget(self, part: str) -> None:
        """A part has ended."""
        self._registrations.pop(part, None)


def _attempt_id(part: str, attempt: int) -> str:
    return f"part-{part}-{attempt}"
