"""Destinations of media parts' embeddings, kept in case the part moves to another encoder.

    /scheduler_receive_url ──> kept by part ──> part ended, displaced by newer ones, or too old ──> forgotten

A registration comes before, with or after its part, from each rank of a language worker. All together take
`BYTES_MAX` at most: the oldest part goes first.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from router.errors import ClientError
from router.proxy import ClientRequest, RequestHead

REGISTRATION_BYTES_MAX = 4096
"""An address and the part's name; SGLang sends some 200 bytes (``disaggregation/encode_receiver.py``)."""

RANKS_MAX = 256

BYTES_MAX = 32 << 20
"""Bytes of all registrations together: 30,000 of SGLang's."""

AGE_S_MAX = 120.0
"""A part that has not come or ended by then never will: a call waits five seconds for it."""

OVERHEAD_BYTES = 850
"""Bytes of a registration in memory beside its content (``tracemalloc``, 10,000 of them)."""

KEPT_HEADERS = frozenset((b"authorization", b"content-type"))
HEADER_BYTES_MAX = 1024


class _Part(NamedTuple):
    """Registrations of one part, and the time of the first."""

    since_s: float
    requests: list[ClientRequest]


class Registrations:
    """The registrations of one process; ``now_s`` returns monotonic seconds."""

    def __init__(self, now_s: Callable[[], float], bytes_max: int = BYTES_MAX) -> None:
        self._now_s = now_s
        self._bytes_max = bytes_max
        self._parts: OrderedDict[str, _Part] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return the number of parts with a registration."""
        return len(self._parts)

    def add(self, part: str, request: ClientRequest) -> None:
        """Keep the needed part of a registration; raise ClientError for too many or too long ones."""
        if len(request.body) > REGISTRATION_BYTES_MAX:
            raise ClientError(
                f"A registration of {len(request.body)} bytes; at most {REGISTRATION_BYTES_MAX} are kept.",
                code="body_too_large",
                status=413,
            )
        now_s = self._now_s()
        self._forget_old(now_s)
        entry = self._parts.setdefault(part, _Part(now_s, []))
        if len(entry.requests) >= RANKS_MAX:
            raise ClientError(
                f"This part has {RANKS_MAX} registrations already, more than a worker has ranks.",
                code="too_many_registrations",
                param="req_id",
            )
        needed = [
            header
            for header in request.head.headers
            if header[0] in KEPT_HEADERS and len(header[1]) <= HEADER_BYTES_MAX
        ]
        head = RequestHead(request.head.method, request.head.path, headers=needed)
        registration = msgspec.structs.replace(request, head=head)
        entry.requests.append(registration)
        self.size_bytes += _size_of(registration)
        while self.size_bytes > self._bytes_max and len(self._parts) > 1:
            self.discard(next(iter(self._parts)))

    def of(self, part: str) -> list[ClientRequest]:
        """All that was registered for a part, here."""
        entry = self._parts.get(part)
        return [] if entry is None else entry.requests

    def discard(self, part: str) -> None:
        """A part has ended."""
        entry = self._parts.pop(part, None)
        if entry is not None:
            self.size_bytes -= sum(map(_size_of, entry.requests))

    def _forget_old(self, now_s: float) -> None:
        while self._parts:
            part, entry = next(iter(self._parts.items()))
            if now_s - entry.since_s < AGE_S_MAX:
                return
            self.discard(part)


def _size_of(request: ClientRequest) -> int:
    header_bytes = sum(len(name) + len(value) for name, value in request.head.headers)
    return OVERHEAD_BYTES + len(request.body) + header_bytes
