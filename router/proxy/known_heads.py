"""Heads that a client sends again and again, so that only the first one is parsed.

A client's library sends the same head with each request, but for the length of the body. So a connection
remembers the last head that came whole, with a whole body, in one read (`router.proxy.repeated_head`). A
request with fifteen headers saves some 600 of its bytecode instructions.
"""

import msgspec

from router.proxy.limits import ClientLimits
from router.proxy.ports import Derived, RequestHead
from router.proxy.repeated_head import RepeatedHead, halves_of

KNOWN_MAX = 256
"""Heads that connections share; then the sharing begins again. A connection keeps its own."""

LEARNED_MAX = 4
"""Heads that one connection remembers, one after the other: a client may send a new one each time."""

# Their requests take other ways: a body in pieces or packed, a tunnel, a client that waits to be asked.
_OTHER_WAYS = frozenset({b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})


class KnownHead(RepeatedHead, frozen=True, eq=False, gc=False):
    """A head of a proxied request that was within these limits; its headers are without the length."""

    limits: ClientLimits
    head: RequestHead


class KnownHeads:
    """The heads that the connections of one listener know."""

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        self._shared: dict[tuple[bytes, bytes], KnownHead] = {}

    def learned(self, data: bytes, head: RequestHead, length: int, limits: ClientLimits) -> KnownHead | None:
        """Remember the head of a read that was one whole request; None if its like may take another way."""
        halves = halves_of(data, length)
        if halves is None or not _OTHER_WAYS.isdisjoint(name for name, _ in head.headers):
            return None
        known = self._shared.get(halves)
        if known is None or known.limits is not limits:
            if len(self._shared) >= KNOWN_MAX:
                self._shared.clear()
            headers = tuple(header for header in head.headers if header[0] != b"content-length")
            repeated = msgspec.structs.replace(head, headers=headers, derived=Derived())
            known = self._shared[halves] = KnownHead(*halves, limits, repeated)
        return known
