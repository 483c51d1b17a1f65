"""Turns: a request goes to its chosen worker now, or waits.

A policy chooses as if every worker took everything at once. For requests that may wait:

1. The chosen worker has room (`policies.Admission`), and no ticket with a lesser key waits for it: go.
2. Else wait here, where order still counts: for the chosen worker, if the request is *affine* (`prospect`) or
   has just declined another's room; else for any worker of its lane.

The price of each worker includes the tickets that go first there and those that would be overtaken
(`policies.state.queue_view`), so waiting here and starting there are compared in one unit (decision 0049). A
request declines the room of a worker that it would not choose, and waits for a leader whose prefill it would
repeat (`policies.dispatch.followers`).
"""

from collections.abc import Callable
from math import inf

import msgspec
import numpy as np

from policies.dispatch.early_rejection import EarlyRejection
from policies.dispatch.followers import repeated_blocks, waits_for_leader
from policies.dispatch.queue_lanes import Lanes
from policies.dispatch.request import DecisionInput
from policies.estimates.costs import Number
from policies.fleet.admission import Admission
from policies.fleet.fleet import FleetState
from policies.pricing.timing import Timing
from policies.pricing.views import Candidates, Chosen, RequestView
from policies.scoring import Policy, Price
from policies.scoring.min_ttft import min_ttft
from policies.state.ops import Waiting
from policies.state.queue_view import QueueView
from radix import DURATION_US_MAX, TOKENS_MAX, WHOLE_MAX, whole


class QueueOrder(msgspec.Struct, frozen=True):
    """Order in which requests take turns.

    Attributes:
        k: Key of a request: its arrival plus k times its predicted work (`policies.state.waiting`). 0 is
            first come, first served; a large k is shortest first.
        step_tokens: By slot: most tokens that one step of the engine prefills, if other requests find the
            result only when the step is over; 0 if they find it before.
        rejection: Judge of promises; None if nothing is promised.
    """

    admission: Admission
    lanes: Lanes
    k: float
    step_tokens: Callable[[int], int] = lambda _: 0
    rejection: EarlyRejection | None = None


class Prospect(msgspec.Struct, frozen=True, gc=False):
    """Time on the chosen worker, seconds >= 0, without the price of leaving a length bucket.

    Affine if waiting there is better than starting elsewhere.
    """

    chosen_s: float
    affine: bool


def prospect(candidates: Candidates, prompt_tokens: float, slot: int, price: Price | None) -> Prospect:
    """Judge the candidates for a request that may have to wait, by the policy's price.

    The request is affine if its worker, busy, is cheaper than any other would be if it stood idle: room
    elsewhere does not help it. A policy without seconds (None) is taken to compare times to first token.
    Without other workers a request is not affine, since some may yet come.
    """
    price = price or min_ttft
    chosen_s = chosen_cost = others_cost = inf
    if candidates.slow.few:
        for timing in candidates.timings(prompt_tokens, candidates.slow.few):
            if timing.slot == slot:
                chosen_s, chosen_cost = timing.work_s - timing.spill_s, price(timing)
            else:
                others_cost = min(others_cost, price(_idle(timing, 0.0)))
    else:
        times = candidates.times(prompt_tokens)
        chosen = candidates.slots == slot
        chosen_s = (times.work_s - times.spill_s)[chosen].item()
        chosen_cost = price(times)[chosen].item()
        others_cost = price(_idle(times, np.zeros(len(chosen))))[~chosen].min(initial=inf).item()
    return Prospect(chosen_s, chosen_cost < others_cost < inf)


def _idle(timing: Timing[Number], nothing: Number) -> Timing[Number]:
    return msgspec.structs.replace(timing, ready_s=nothing, settled_s=nothing, behind=nothing)


class Turns:
    """Decides whose turn it is, for one replica."""

    def __init__(
        self, order: QueueOrder, fleet: FleetState, replica: str, next_attempt_id: Callable[[], str]
    ) -> None:
        self.order = order
        self.empty_queue = QueueView(None, "", 1, 0, order.k, order.admission.rules.backlog_target_s)
        """View of the queue while no request waits; the same for every request."""
        self._has_room, self._step_tokens = order.admission.has_room, order.step_tokens
        self._fleet = fleet
        self._replica = replica
        self._next_attempt_id = next_attempt_id

    def queue_of(self, asked: DecisionInput, workers: int) -> QueueView:
        """View of the queue by a request that this number of workers may take."""
        order, tickets = self.order, self._fleet.tickets
        return QueueView(
            tickets,
            asked.lane,
            workers,
            asked.arrived_us,
            order.k,
            order.admission.rules.backlog_target_s,
            tickets.get(asked.ticket_id) if asked.ticket_id else None,
        )

    def turn(
        self,
        asked: DecisionInput,
        paths: tuple[bytes, ...],
        view: RequestView,
        candidates: Candidates,
        chosen: Chosen,
        policy: Policy,
        *,
        decodable: bool = True,
        full_link: str = "",
    ) -> Chosen | Waiting:
        """Return the chosen worker if it is the request's turn there, else the ticket under which it waits.

        ``decodable`` is False if no decode worker has room for what the chosen worker would prefill;
        ``full_link`` names the link that has no room for its KV.
        """
        fleet, now_us, slot = self._fleet, candidates.now_us, chosen.slot
        follows = False
        if chosen.safe_tokens and fleet.loads.prefill_requests_at[slot] and len(paths) == 1:
            step_tokens = self._step_tokens(slot)
            follows = step_tokens > 0 and self._follows(paths[0], chosen, candidates, step_tokens)
        has_room = not follows and self._has_room(slot, now_us) and decodable
        tickets = fleet.tickets
        if has_room and not tickets.count:
            return chosen
        ahead = prospect(candidates, view.prompt_tokens, slot, policy.price)
        service_us = whole(ahead.chosen_s * 1e6, DURATION_US_MAX)
        key_us = min(asked.arrived_us + whole(self.order.k * service_us, WHOLE_MAX), WHOLE_MAX)
        if has_room and (asked.turn == slot or not self._overtakes(asked, slot, key_us, now_us)):
            return chosen
        offered = asked.turn >= 0 and asked.turn != slot
        ticket = tickets.get(asked.ticket_id) if asked.ticket_id else None
        declined = offered or (ticket is not None and ticket.slot == slot)
        # A request that waits for a link waits for the requests behind it: room elsewhere does not help it.
        prefers = asked.narrowed or bool(full_link) or (decodable and (follows or ahead.affine or declined))
        return Waiting(
            asked.ticket_id or self._next_attempt_id(),
            now_us,
            self._replica,
            asked.arrived_us,
            key_us,
            asked.lane,
            self._fleet.at_slot(slot).worker_id if prefers else "",
            asked.flow,
            service_us,
            chosen.uncached_tokens,
            whole(view.prompt_tokens + view.output_tokens, TOKENS_MAX),
            full_link,
        )

    def _follows(self, path: bytes, chosen: Chosen, candidates: Candidates, step_tokens: int) -> bool:
        """True if the request had better wait for the first token of another one on its worker."""
        slot, tokens_per_block = chosen.slot, candidates.tokens_per_block
        blocks = repeated_blocks(
            self._fleet.loads,
            slot,
            path,
            int(chosen.safe_tokens / tokens_per_block + 0.5),
            step_tokens / tokens_per_block,
            candidates.now_us,
        )
        model = self._fleet.model_at(slot)
        return waits_for_leader(
            blocks * tokens_per_block, chosen.safe_tokens, chosen.uncached_tokens, model.service_s
        )

    def _overtakes(self, asked: DecisionInput, slot: int, key_us: int, now_us: int) -> bool:
        """True if a request with a lesser key waits for the room that a worker has."""
        tickets, lanes = self._fleet.tickets, self.order.lanes.of(slot)
        if not asked.ticket_id:
            return tickets.ahead_of(slot, lanes, key_us, now_us, flow=asked.flow)
        best = tickets.best(slot, lanes, now_us)
        return best is not None and best.request_id != asked.ticket_id and best.key_us < key_us
