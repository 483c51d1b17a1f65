"""KV events of an engine: the changes of a step, published as one batch.

    cache --stored, removed--> changes --end of the loop's turn--> encoding --> batch --> publisher

The scheduler ends a step within one turn of the event loop, so a batch is the changes of one turn. A flush is
published with the next step that changes something, as in the engines. A batch is ``[seconds, [event, ...],
data-parallel rank]`` in msgpack.
"""

import time
from collections.abc import Callable

import msgspec

from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv_encoding import Change, Cleared, Content, Encoding, Removed, Stored


class KvEvents(KvListener):
    """The listener of one cache.

    ``defer`` calls back at the end of the loop's turn, as ``loop.call_soon`` does.
    """

    def __init__(
        self,
        encoding: Encoding,
        content_of: Callable[[bytes], Content],
        publish: Callable[[bytes], None],
        defer: Callable[[Callable[[], None]], object],
        *,
        rank: int = 0,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._encoding = encoding
        self._content_of = content_of
        self._publish = publish
        self._defer = defer
        self._rank = rank
        self._now_unix_s = now_unix_s
        self._changes: list[Change] = []
        self._lease: Lease | None = None
        self._due = False

    def stored(self, lease: Lease, start_block: int, end_block: int, group: str) -> None:
        """See `KvListener`."""
        # The groups of one sequence belong together: some are told by what the full one stored.
        if self._lease is not lease:
            self._add(Stored(self._content_of(lease.blocks)))
            self._lease = lease
        change = self._changes[-1]
        assert isinstance(change, Stored)
        change.spans.setdefault(group, []).append((start_block, end_block))

    def removed(self, blocks: bytes, group: str, medium: str) -> None:
        """See `KvListener`."""
        self._add(Removed(blocks, group, medium))

    def cleared(self) -> None:
        """See `KvListener`."""
        # Earlier changes of this turn are gone with the rest, and need not be published.
        self._changes = [Cleared()]
        self._lease = None

    def _add(self, change: Change) -> None:
        self._changes.append(change)
        self._lease = None
        if not self._due:
            self._due = True
            self._defer(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._lease = None
        if self._changes == [Cleared()]:
            return
        changes, self._changes = self._changes, []
        events = self._encoding.events(changes)
        if events:
            self._publish(msgspec.msgpack.encode((self._now_unix_s(), events, self._rank)))
