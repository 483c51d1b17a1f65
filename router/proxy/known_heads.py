"""Heads that a client sends again and again, so that only the first one is parsed.

A client's library sends the same head with each request, but for the length of the body. So a connection
remembers the last head that came whole, with a whole body, in one read. The next read that begins with the
same bytes, has other digits of the length at most, and ends where its body ends, is that request with that
body: llhttp would find the same. Anything else goes to the parser. A request with fifteen headers saves some
600 of its bytecode instructions.
"""

import re
from typing import Protocol

import msgspec

from router.proxy.limits import ClientLimits
from router.proxy.ports import Derived, Header

HEAD_BYTES_MAX = 4096
"""Longest head that is remembered."""

KNOWN_MAX = 256
"""Heads that connections share; then the sharing begins again. A connection keeps its own."""

LEARNED_MAX = 4
"""Heads that one connection remembers, one after the other: a client may send a new one each time."""

DIGITS_MAX = 12
"""Digits of a length; no limit of a body has more."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,%d})[ \t]*\r\n" % DIGITS_MAX, re.IGNORECASE)

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


class KnownHead(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A head, as it was parsed.

    Attributes:
        before: Its bytes up to the digits of the length.
        after: Its bytes behind them.
        limits: Limits that it was within.
        headers: Its headers in their order.
        place: Place of the length among them.
        derived: Results that follow from it.
    """

    before: bytes
    after: bytes
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

    def body_in(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the digits of the length, and the body, if the read is this head with its whole body."""
        before, after = self.before, self.after
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + DIGITS_MAX + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return None
        body = data[end + len(after) :]
        return (digits, body) if len(body) == int(digits) else None

    def headers_with(self, digits: bytes) -> list[Header]:
        """Return the headers of a request whose body has this length."""
        headers = list(self.headers)
        headers[self.place] = (b"content-length", digits)
        return headers


class KnownHeads:
    """The heads that the connections of one listener know."""

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        self._shared: dict[tuple[bytes, bytes], KnownHead] = {}

    def learned(self, data: bytes, parsed: Parsed, limits: ClientLimits) -> KnownHead | None:
        """Remember the head of a read that was one whole request; None if its like may take another way."""
        start = len(data) - parsed.length
        if not 0 < start <= HEAD_BYTES_MAX or data.find(b"\r\n\r\n") != start - 4:
            return None
        names = [name for name, _ in parsed.headers]
        found = _LENGTH.search(data, 0, start)
        if found is None or names.count(b"content-length") != 1 or not _OTHER_WAYS.isdisjoint(names):
            return None
        halves = data[: found.start(1)], data[found.end(1) : start]
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
