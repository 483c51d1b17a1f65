"""Conditions for going on from a boundary, beside full-attention KV.

Full attention goes on from any block, a sliding-window layer needs the window before the boundary, a linear
layer its state at the boundary. `KvCache` asks one of these rules and tells it of changes:

    Boundaries      full attention: nothing more        this file
    Windows         window KV before the boundary       windows.py, sglang_windows.py
    Checkpoints     a state at the boundary             checkpoints.py, sglang_states.py
"""

from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.tree import Node


class Boundaries:
    """The rule of full attention, for which every block is a boundary; other kinds override it.

    Tree and device are shared with `KvCache`.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def usable(self, nodes: list[Node], matched: int) -> tuple[int, int]:
        """Reusable blocks of a match, from the device alone and with the host; both at most ``matched``.

        ``nodes`` is the matched path, root first; the match may end inside the last one.
        """
        on_device = 0
        for node in nodes:
            if not node.device:
                break
            on_device = min(node.end, matched)
        return on_device, matched

    def commitment(self, lease: Lease) -> int:
        """Tokens of the window pool, or states, that a request may need at most while it runs."""
        return 0

    def admitted(self, lease: Lease, matched: int) -> None:
        """A lease has its node and locks the path to it; ``matched`` blocks were found in all."""

    def load(self, lease: Lease) -> int:
        """Take from the host what the boundary of an admitted lease needs; blocks of window KV taken."""
        return 0

    def insertable(self, lease: Lease, tokens: int, *, final: bool) -> int:
        """Blocks of a sequence of ``tokens`` computed so far that go into the tree now.

        ``final``: the request has ended well. Later calls insert what this one leaves out, if any does.
        """
        return tokens // self._block_tokens

    def inserted(self, lease: Lease, node: Node, start: int, tokens: int) -> None:
        """Note that blocks from ``start`` to ``lease.end`` were computed, ``tokens`` in all, up to ``node``.

        ``lease.node`` is still the node before.
        """

    def decoded(self, lease: Lease, tokens: int) -> None:
        """Note that ``tokens`` of prompt and answer are computed."""

    def closed(self, lease: Lease) -> None:
        """All of the sequence is inserted and ends at ``lease.node``; the request is about to end."""

    def ended(self, lease: Lease) -> None:
        """Give back what the lease has, whether it ended well or not; its path is still locked."""
