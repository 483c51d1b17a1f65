"""Block hashes of the newest prompts, so that ``POST /explain`` can compare all of a past request.

    request ends ── RequestRecord ──keep──> at most `KEPT_MAX` requests and `BYTES_MAX`, the oldest dropped

The parsed request exists anyway, so a request costs one reference and one sum (0.5 µs). It holds hashes of
blocks, names and limits; the text is not in it. At 10,000 tokens a prompt 4,096 requests take 6 MB; at a
million tokens each, the bound keeps the newest 500.
"""

from collections import deque

from router.gateway.parsing import ParsedRequest

KEPT_MAX = 4096
"""As many as `router.gateway.recent_decisions` lists."""

BYTES_MAX = 16 << 20
"""Bound on the hashes and the estimated rest of all kept requests, in bytes."""

REQUEST_BYTES = 1024
"""Estimate for a parsed request without its hashes: its struct, and names of at most 256 characters."""


class RecentPrompts:
    """The store of one process. For use from the event loop's thread."""

    def __init__(self, kept_max: int = KEPT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._kept: deque[tuple[int, ParsedRequest, int]] = deque()
        self._kept_max = kept_max
        self._bytes_max = bytes_max
        self.bytes = 0
        """Bytes of the kept requests."""

    def __len__(self) -> int:
        """Return the number of kept requests."""
        return len(self._kept)

    def keep(self, number: int, parsed: ParsedRequest) -> None:
        """Keep the request of a decision, by the decision's number; drop the oldest beyond the bounds."""
        size = REQUEST_BYTES
        for path in parsed.paths:
            size += len(path)
        self.bytes += size
        kept = self._kept
        kept.append((number, parsed, size))
        while self.bytes > self._bytes_max or len(kept) > self._kept_max:
            self.bytes -= kept.popleft()[2]

    def of(self, number: int) -> ParsedRequest | None:
        """Return the request of a decision; None if it is dropped, or had no prompt."""
        for kept, parsed, _ in reversed(self._kept):
            if kept <= number:
                return parsed if kept == number else None
        return None
