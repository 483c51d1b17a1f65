"""Sliding windows as SGLang keeps them (0.5.23, ``mem_cache/unified_cache/components/swa.py``).

    chunk ends   ......####......####.................####.........####       # live, . tombstone
                          c1        c2           prompt      answer

* A chunk goes into the tree with the window before its end, in whole pages, and a page more if the chunk ends
  with a page (``mem_cache/common.py``, ``free_swa_out_of_window_slots``). The part before is a tombstone.
  Windows of former chunk ends, and of the prompt's, stay until they are evicted.
* The *branch*: where a prompt left the engine's blocks, if it could not go on from there. The chunk that
  passes it goes into the tree only so far, with the window there; its rest comes with the next one
  (``prepare_for_caching_req``). So no window is kept at the end of a prompt whose last chunk passes its
  branch: its rest comes with the answer.
* An answer goes into the tree with all that the request has not freed: it frees blocks W and N tokens
  behind, N at a time (``managers/schedule_batch.py``, ``_swa_eviction_trigger``).
* Windows at multiples of ``retained_interval_tokens`` stay, too (MiMo-V2.5, arXiv:2607.13095, 3.1.4; not in
  the released SGLang).

Older wheels, 0.5.12 and 0.5.16, keep whole chunks unless told otherwise (``swa_release="pressure"``).
Proved by SGLang's own code: ``tests/loadtest/engine/kv/test_sglang_windows.py``.
"""

from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.tree import Node
from loadtest.engine.kv.windows import Windows


class SglangWindows(Windows):
    """Boundaries by SGLang's windows."""

    def admitted(self, lease: Lease, matched: int) -> None:
        """See `Boundaries`."""
        super().admitted(lease, matched)
        lease.kept_ends = []
        lease.branch = matched if matched > lease.end else 0

    def insertable(self, lease: Lease, tokens: int, *, final: bool) -> int:
        """See `Boundaries`."""
        blocks = tokens // self._size
        return lease.branch if lease.end < lease.branch <= blocks else blocks

    def inserted(self, lease: Lease, node: Node, start: int, tokens: int) -> None:
        """See `Boundaries`."""
        assert lease.node is not None
        device, branched = self._device, lease.branch == lease.end
        self._slide(lease, start, lease.end * self._size if branched else tokens)
        for position in self._kept_ends(lease, start, lease.window_from + self._needed - 1):
            self._revive(lease, node, max(start, position - self._needed), position)
        self._revive(lease, node, max(start, lease.window_from), lease.end)
        if branched:
            lease.branch = 0
            self._slide(lease, lease.end, tokens)
        blocks = min(lease.end, self._needed)
        device.lock_window(node, blocks)
        device.unlock_window(lease.node, lease.window_locked)
        lease.window_locked = blocks
        device.touch_window(node)
        self._reserve(lease)

    def decoded(self, lease: Lease, tokens: int) -> None:
        """See `Boundaries`; the window of the prompt stays locked till the end."""

    def ended(self, lease: Lease) -> None:
        """See `Boundaries`."""
        device = self._device
        assert lease.node is not None
        device.swa.reserved -= lease.swa_reserved
        lease.swa_reserved = 0
        device.unlock_window(lease.node, lease.window_locked)
        lease.window_locked = 0
        device.touch_window(lease.node)

    def _slide(self, lease: Lease, held: int, tokens: int) -> None:
        """Free blocks behind the window of a sequence of ``tokens``; the tree holds ``held`` blocks of it.

        An answer slides N tokens at a time, after each token that takes it so far.
        """
        size, window_tokens = self._size, self._rules.window_tokens
        answers = tokens > lease.prompt_tokens
        step = self._rules.decode_release_tokens if answers else 1
        last = tokens - 1
        at = (
            max(lease.prompt_tokens + 1, lease.window_from * size + step + window_tokens) if answers else last
        )
        while lease.window_from * size + step + window_tokens <= at <= last:
            lease.window_from = max(lease.window_from, held, at // size - self._needed)
            at = max(at + 1, lease.window_from * size + step + window_tokens)
