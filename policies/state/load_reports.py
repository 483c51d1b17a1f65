"""Select the operations that a replica tells the others one by one; its vectors tell the rest.

Placed, new                     told: a prompt, an arrival, and load until the next vector
Placed again (a renewal)        not told: the next vector, a full one, has it
FirstToken, Finished            not told: the next vector has them
  of a request that waits       told: it ends a ticket
  of a transfer under way       told: it frees the link
  of a prompt for a pool        told until its prefill is over: then it is in the pool
all else                        told
"""

from collections.abc import Callable, Collection
from typing import Final

from policies.state.links import Links
from policies.state.loads import Loads
from policies.state.ops import Finished, FirstToken, LoadVector, Op, Placed
from policies.state.waiting import Tickets

_ENDS: Final = (Finished, FirstToken)


class LoadReports:
    """Decides which operations are told. It is asked before an operation is applied here.

    Args:
        loads: Requests in flight at this replica.
        tickets: Waiting requests.
        links: Transfers under way.
        pooled: Slots of workers whose prompts go into a pool.
        name_at: Id of the worker in a slot.
    """

    def __init__(
        self,
        loads: Loads,
        tickets: Tickets,
        links: Links,
        pooled: Collection[int],
        name_at: Callable[[int], str],
    ) -> None:
        self._loads, self._tickets, self._links = loads, tickets, links
        self._pooled, self._name_at = pooled, name_at

    @property
    def due(self) -> bool:
        """True if own requests changed since the last vector."""
        return bool(self._loads.changed) or self._loads.placed_any

    @property
    def urgent(self) -> bool:
        """True if requests wait: room that only this replica knows of delays those of others."""
        return self._tickets.count > 0

    def tells(self, op: Op) -> bool:
        """True if the other replicas must be told of an operation of this one."""
        if not isinstance(op, _ENDS):
            return not isinstance(op, Placed) or bool(op.paths) or not self._loads.knows(op.request_id)
        request = self._loads.requests.get(op.request_id)
        if request is None:
            return not self._loads.knows(op.request_id)
        if self._pooled and request.slot in self._pooled and not request.prefilled_us:
            return True
        if not self._links.transfers:
            return False
        return op.request_id in self._links.transfers and isinstance(op, Finished)

    def vector(self, now_us: int, *, full: bool) -> LoadVector:
        """Return the load in flight now.

        Args:
            now_us: Log time, later than that of all own placements.
            full: True for all load in flight; else only the changes since the vector before.
        """
        return self._loads.own_vector(now_us, self._name_at, full=full)
