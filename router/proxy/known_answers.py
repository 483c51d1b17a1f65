"""The head that a worker's answers repeat, so that only the first one is parsed.

An engine sends the same head with each answer that comes whole, but for the length, and for the date, which
changes once a second. So a pool remembers the last head of an answer 200 that came whole in one read, and
whose connection is kept. llhttp and its callbacks are then spared (`router.proxy.repeated_head`).
"""

from collections.abc import Sequence
from math import inf

from router.proxy.repeated_head import RepeatedHead, halves_of

LEARN_S = 0.2
"""Seconds between two heads that a pool learns: an engine may send a new one with each answer."""


class KnownAnswer(RepeatedHead, frozen=True, eq=False, gc=False):
    """The head of an answer with a body, after which its connection is kept; ``lines`` are for the client."""

    status: int
    lines: bytes


class KnownAnswers:
    """The head that the worker of a pool repeats: ``known``, None before the first one."""

    __slots__ = ("_learned_s", "known")

    def __init__(self) -> None:
        self.known: KnownAnswer | None = None
        self._learned_s = -inf

    def learn(self, data: bytes, status: int, lines: Sequence[bytes], length: int, sent_s: float) -> None:
        """Remember the head of a read that was a whole answer; the request was sent at ``sent_s``."""
        if status != 200 or sent_s - self._learned_s < LEARN_S:
            return
        self._learned_s = sent_s
        if (halves := halves_of(data, length)) is not None:
            self.known = KnownAnswer(*halves, status, b"".join(lines))
