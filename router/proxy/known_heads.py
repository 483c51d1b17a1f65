"""Heads that a client sends again and again, so that only the first one is parsed.

A client's library sends the same head with each request, but for the length of the body. So a connection
remembers the last head that came whole, with a whole body, in one read (`router.proxy.repeated_head`). A
request with fifteen headers saves some 600 of its bytecode instructions.
"""

from typing import Protocol

from router.proxy.limits import ClientLimits
from router.proxy.ports import Derived, Header
from router.proxy.repeated_head import RepeatedHead, halves_of

KNOWN_MAX = 256
"""Heads that connections share; then the sharing begins again. A connection keeps its own."""

LEARNED_MAX = 4
"""Heads that one connection remembers, one after the other: a client may send a new one each time."""

# Their requests take other ways: a body in pieces or packed, a tunnel, a client that waits to be asked.
_OTHER_WAYS = frozenset({b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})


class Parsed(Protocol):
    """A request with a parsed head (`router.proxy.answer.Answer`)."""

    headers: list[Header]
    length: int
    method: bytes
    path: bytes
    query: bytes
    hop_names: frozenset[bytes]
    keep_alive: bool
    can_chunk: bool


class KnownHead(RepeatedHead, frozen=True, eq=False, gc=False):
    """A head, as it was parsed.

    Attributes:
        limits: Limits that it was within.
        headers: Its headers in their order.
        place: Place of the length among them.
        derived: Results that follow from it.
    """

    limits: ClientLimits
    headers: tuple[Header, ...]
    place: int
    method: bytes
    path: bytes
    query: bytes
    hop_names: frozenset[bytes]
    keep_alive: bool
    can_chunk: bool
    derived: Derived

    def headers_with(self, length: int) -> list[Header]:
        """Return the headers of a request whose body has this length."""
        headers = list(self.headers)
        headers[self.place] = (b"content-length", b"%d" % length)
        return headers


class KnownHeads:
    """The heads that the connections of one listener know."""

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        self._shared: dict[tuple[bytes, bytes], KnownHead] = {}

    def learned(self, data: bytes, parsed: Parsed, limits: ClientLimits) -> KnownHead | None:
        """Remember the head of a read that was one whole request; None if its like may take another way."""
        names = [name for name, _ in parsed.headers]
        halves = halves_of(data, parsed.length)
        if halves is None or names.count(b"content-length") != 1 or not _OTHER_WAYS.isdisjoint(names):
            return None
        known = self._shared.get(halves)
        if known is None or known.limits is not limits:
            if len(self._shared) >= KNOWN_MAX:
                self._shared.clear()
            known = self._shared[halves] = KnownHead(
                *halves,
                limits,
                tuple(parsed.headers),
                names.index(b"content-length"),
                parsed.method,
                parsed.path,
                parsed.query,
                parsed.hop_names,
                parsed.keep_alive,
                parsed.can_chunk,
                Derived(),
            )
        return known
