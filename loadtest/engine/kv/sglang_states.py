"""States of linear layers as SGLang keeps them (0.5.23, ``mem_cache/unified_cache/components/mamba.py``).

Its default for the published hybrid models, ``--mamba-radix-cache-strategy extra_buffer``:

    chunk ends   ------------S-----------S------S- - - S        S state, - held, without one
                            c1          c2   prompt    answer: multiples of 256 tokens

* A chunk goes into the tree up to its last whole block, with the state there (``managers/schedule_batch.py``,
  ``_mamba_radix_cache_v2_req_prepare_for_extend``); one that has no whole block waits.
* The *branch*: where a prompt left what the engine holds, if it could not go on from there. The chunk that
  passes it goes into the tree only so far, with the state there instead of that at its end.
* An answer goes into the tree up to the last multiple of ``--mamba-track-interval``, 256 tokens, with the
  state there, and not at all if it passes none.
* The state that was used least lately goes; in the middle of a path the KV stays.

Proved by SGLang's own code: ``tests/loadtest/engine/kv/test_sglang_states.py``.
"""

import numpy as np

from loadtest.engine.kv.checkpoints import Checkpoints
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.tree import Node
from radix import TRACKED_TOKENS


class SglangStates(Checkpoints):
    """Boundaries by SGLang's states."""

    def admitted(self, lease: Lease, matched: int) -> None:
        """See `Boundaries`."""
        super().admitted(lease, matched)
        lease.kept_ends = []
        lease.branch = matched if matched > lease.end else 0

    def insertable(self, lease: Lease, tokens: int, *, final: bool) -> int:
        """See `Boundaries`."""
        if final:
            tracked = tokens // TRACKED_TOKENS * TRACKED_TOKENS
            return tracked // self._size if tracked > lease.prompt_tokens else lease.end
        if tokens - lease.computed_tokens < self._size:
            return lease.end
        blocks = tokens // self._size
        return lease.branch if lease.end < lease.branch < blocks else blocks

    def inserted(self, lease: Lease, node: Node, start: int, tokens: int) -> None:
        """See `Boundaries`."""
        if lease.end >= lease.branch:
            lease.branch = 0
        super().inserted(lease, node, start, tokens)
        self._save(lease, node)

    def closed(self, lease: Lease) -> None:
        """See `Boundaries`; nothing more is kept."""

    def _least(self) -> int:
        return int(np.argmin(self._used))
