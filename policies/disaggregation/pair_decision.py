"""One decision where a prefill worker and a decode worker may share a request.

    candidates ──> at the cost of their partners ──> place ──────────> whose turn? ──> partner ──> Decision
                     `DecodeView`                      │ or on each       │                with its decode
                                                       │ side of a link   │                half, and Shipping
                                                       │ `Offloading`     └─> Queued
                                                       └──> Shed

A prefill worker has room only if a decode worker that may end the request has it, too; a request that lacks
only that waits for any worker of its lane. Where KV crosses links, a lane has a part for each side
(`policies.dispatch.queue_lanes`): a request may go to an idle worker of another side, if that is sooner. A
request whose link is full, or left to another that goes first, waits for the link.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec.structs import replace

from policies.disaggregation.candidate_sites import CandidatesBySite
from policies.disaggregation.decode_selection import DecodePartner, DecodeSelector, DecodeView
from policies.disaggregation.offload import Offload, OffloadVerdict
from policies.disaggregation.offloading import NO_LINE, Line, Offloading, Placing
from policies.dispatch.decision import (
    Decider,
    DeciderParts,
    Decision,
    DecisionRules,
    Queued,
    outlook_of,
)
from policies.dispatch.early_rejection import Outlook
from policies.dispatch.feedback import Attempt
from policies.dispatch.ports import ScoredRequest
from policies.dispatch.queue_lanes import lane_by
from policies.dispatch.request import DecisionInput, RequestFacts
from policies.dispatch.turns import QueueOrder, Turns
from policies.fleet.admission import Admission, AdmissionRules
from policies.fleet.pairing import Pairing
from policies.pricing.views import Candidates, Chosen, Shed
from policies.scoring.placement import NO_WORKER_RETRY_AFTER_S, place
from policies.state.ops import Placed, Shipping, Waiting
from policies.state.queue_view import without
from radix import WHOLE_MAX, whole


class PairDecision(Decision, frozen=True, gc=False):
    """A decision where workers may need partners.

    Attributes:
        shipping: Reservation of a link for the KV, to be published with ``placed``; None without one.
        offload: Choice of the prefill's site; None if there was no choice.
    """

    shipping: Shipping | None = None
    offload: OffloadVerdict | None = None


class ScoredPair(ScoredRequest, frozen=True, eq=False):
    """A request as it was weighed where workers may need partners; ``everyone`` is on all sides of a link.

    Attributes:
        decode_view: View of the decode workers.
        by_site: Candidates by the link that their KV crosses; None if nothing crosses one.
        verdict: Reason for the side; None if there was no choice.
    """

    decode_view: DecodeView
    by_site: CandidatesBySite | None
    verdict: OffloadVerdict | None


class PairDecider(Decider):
    """Decides for one replica, also of requests that two workers share; default parts use the same rules."""

    def __init__(
        self,
        parts: DeciderParts,
        rules: DecisionRules,
        decode_selector: DecodeSelector | None = None,
        offloading: Offloading | None = None,
    ) -> None:
        super().__init__(parts, rules)
        fleet = parts.fleet
        admission = rules.order.admission if rules.order else Admission(AdmissionRules(), fleet)
        self._decode_selector = decode_selector or DecodeSelector(
            fleet, admission, parts.feedback.learn_decodes
        )
        self.offloading = offloading or Offloading(fleet, Offload(fleet.links), replica=parts.replica)

    def use(self, rules: DecisionRules) -> None:
        """Take over other rules."""
        super().use(rules)
        self.prefill_policy = rules.prefill_policy or rules.policy

    def _decide_pair(self, asked: DecisionInput, pairing: Pairing) -> Decision | Queued | Shed:
        """Choose a worker, or a pair of them, and say whether it is the request's turn there."""
        parsed = asked.parsed
        view, candidates = self._seen(asked)
        decode_view = self._decode_selector.decode_view(
            pairing, view, self._fleet.rules.kv_of(parsed.model), candidates
        )
        line_of = partial(self._line, asked)
        failed = asked.arrived_us >= 0 and asked.again
        weighed, decode_view = self._placed(
            parsed.model or "", candidates, decode_view, asked.length.bucket, line_of, failed=failed
        )
        if self.shadow is not None and asked.arrives:
            self.shadow.weighed(weighed)
        chosen, verdict, turns = weighed.first, weighed.verdict, self._turns
        if isinstance(chosen, Shed):
            return chosen
        if turns is not None and asked.arrived_us >= 0:
            if verdict is not None:
                asked = replace(asked, way=verdict.way)
            turn, chosen, decode_view, verdict = self._asked(
                turns, asked, parsed, weighed, chosen, decode_view, line_of
            )
            rejection = turns.order.rejection
            if rejection is not None and not asked.again:
                outlook = outlook_of(asked, view, weighed.candidates, chosen, turn)
                goes = turn if isinstance(turn, Chosen) else chosen
                miss = rejection.judge(_with_decode(outlook, decode_view, goes.transfer_s), asked.now_us)
                if miss is not None:
                    return miss.shed
            if isinstance(turn, Waiting):
                safe_blocks = round(chosen.safe_tokens / candidates.tokens_per_block)
                waits_for_link = bool(turn.link)
                waits_for_decode = not waits_for_link and not decode_view.has_room(chosen.slot)
                return Queued(turn, parsed.paths[0], safe_blocks, waits_for_decode, waits_for_link)
            chosen = turn
        partner = None
        if decode_view.splits(chosen.slot):
            partner = decode_view.partner(chosen)
            if partner is None:
                return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
        decision = self._decision(asked, view, candidates, chosen)
        return self._shared(decision, decode_view, partner, verdict, crosses=weighed.by_site is not None)

    def _copy(self, parts: DeciderParts, rules: DecisionRules) -> "PairDecider":
        return PairDecider(parts, rules, self._decode_selector, self.offloading.rehearsing())

    def _placed(
        self,
        model: str,
        candidates: Candidates,
        decode_view: DecodeView,
        bucket: int,
        line_of: Callable[[str, Chosen, int], Line],
        *,
        failed: bool,
    ) -> tuple[ScoredPair, DecodeView]:
        """Choose a worker at the cost of its partners; the view that is returned knows which link is full."""
        view, policy, slots = decode_view.request, self.prefill_policy, candidates.slow.slots
        if policy.price is None:
            slots = decode_view.without_decode(slots)
        everyone = self._fleet.among(candidates, slots, bucket, decode_view.ships())
        by_site = decode_view.by_site(slots)
        if by_site is None:
            placing = Placing(everyone, place(view, everyone, policy))
        else:
            if everyone.queue is not None:
                # `_line` compares the tickets on the sides of a link.
                everyone = replace(everyone, queue=replace(everyone.queue, tickets=None))
            placing = self.offloading.place(
                everyone, by_site, decode_view, policy, bucket, line_of, failed=failed
            )
            if placing.full_link:
                decode_view = decode_view.without_room_on(placing.full_link)
        weighed = ScoredPair(
            model,
            view,
            everyone,
            placing.candidates,
            policy,
            placing.chosen,
            bucket,
            decode_view,
            by_site,
            placing.verdict,
        )
        return weighed, decode_view

    def _asked(
        self,
        turns: Turns,
        asked: DecisionInput,
        parsed: RequestFacts,
        weighed: ScoredPair,
        chosen: Chosen,
        decode_view: DecodeView,
        line_of: Callable[[str, Chosen, int], Line],
    ) -> tuple[Chosen | Waiting, Chosen, DecodeView, OffloadVerdict | None]:
        """Ask whose turn it is, where another side may help and a link may be full.

        Returns:
            The worker it goes to, or its ticket; the worker that this is about; the view of decode workers,
            without a full link; the verdict on the side, None if there was no choice.
        """
        candidates, policy, verdict, slot = weighed.candidates, weighed.policy, weighed.verdict, chosen.slot
        ask = partial(turns.turn, asked, parsed.paths, weighed.view)
        decodable = decode_view.has_room(slot)
        full_link = "" if decodable else decode_view.full_link(slot)
        turn = ask(candidates, chosen, policy, decodable=decodable, full_link=full_link)
        if weighed.by_site is None:
            return turn, chosen, decode_view, verdict
        if isinstance(turn, Waiting) and verdict is not None:
            helped = self._helped(turns.order, asked, weighed, verdict, chosen, decode_view, line_of)
            if helped is not None and isinstance(helped.chosen, Chosen):
                candidates, turn, verdict = helped.candidates, helped.chosen, helped.verdict
        if isinstance(turn, Chosen):
            now_us = candidates.now_us
            link = self.offloading.full_link(decode_view, turn, now_us)
            link = link or self._leave_link(turns.order, asked, decode_view, turn, now_us)
            if link:
                chosen, decode_view = turn, decode_view.without_room_on(link)
                turn = ask(candidates, chosen, policy, decodable=False, full_link=link)
        return turn, chosen, decode_view, verdict

    def _helped(
        self,
        order: QueueOrder,
        asked: DecisionInput,
        weighed: ScoredPair,
        verdict: OffloadVerdict,
        chosen: Chosen,
        decode_view: DecodeView,
        line_of: Callable[[str, Chosen, int], Line],
    ) -> Placing | None:
        """The place on the idle worker of another side whose room is offered, if that is sooner."""
        slot, now_us = asked.turn, weighed.candidates.now_us
        if slot < 0 or weighed.by_site is None:
            return None
        if not order.admission.idle(decode_view.open(np.array([slot])), now_us):
            return None
        line = line_of(verdict.way, chosen, len(weighed.candidates.slots))
        waits_s = line.ahead_s + chosen.estimated_ttft_s
        return self.offloading.helped(
            weighed.everyone,
            weighed.by_site,
            decode_view,
            weighed.policy,
            weighed.bucket,
            verdict,
            slot,
            waits_s,
        )

    def _leave_link(
        self, order: QueueOrder, asked: DecisionInput, decode_view: DecodeView, chosen: Chosen, now_us: int
    ) -> str:
        """Return the link whose room is left to a request with a lesser key; empty if none waits.

        All replicas see at the same moment that a link has room, and apply the same order.
        """
        link = decode_view.link(chosen.slot)
        best = self._fleet.tickets.first_for_link(link) if link else None
        if best is None or best.request_id == asked.ticket_id:
            return ""
        if best.key_us >= _key_us(order, asked, chosen):
            return ""
        self.offloading.leave(link, best, now_us)
        return "" if self.offloading.left_unused(link, best, now_us) else link

    def _line(self, asked: DecisionInput, link: str, chosen: Chosen, workers: int) -> Line:
        """Queue of one side of a link, before a request and behind it."""
        tickets, turns = self._fleet.tickets, self._turns
        if asked.arrived_us < 0 or turns is None or not tickets.count:
            return NO_LINE
        key_us = _key_us(turns.order, asked, chosen)
        lane = lane_by(asked.lane, link)
        total = tickets.lane_totals().get(lane)
        if total is None:
            return NO_LINE
        ahead_us, behind = map(float, total.around(key_us))
        own, work_us = tickets.get(asked.ticket_id), total.service_us
        if own is not None and own.lane == lane:
            ahead_us, behind = without(own, 1.0, key_us, ahead_us, behind)
            work_us -= own.service_us
        return Line(max(ahead_us, 0.0) / 1e6 / workers, max(behind, 0.0) / workers, work_us / 1e6 / workers)

    def _shared(
        self,
        decision: Decision,
        decode_view: DecodeView,
        partner: DecodePartner | None,
        verdict: OffloadVerdict | None,
        *,
        crosses: bool,
    ) -> Decision:
        """Add the decode half, and the shipping if ``crosses``: if some candidate's KV crosses a link."""
        attempt, chosen, now_us = decision.attempt, decision.attempt.chosen, decision.placed.at_us
        home_tokens = chosen.uncached_tokens
        if verdict is not None:
            self.offloading.went(attempt.request_id, verdict, now_us)
            if verdict.uncached_local >= 0:
                home_tokens = verdict.judged_tokens
        placed = replace(decision.placed, home_uncached_tokens=home_tokens)
        if partner is None:
            return PairDecision(attempt, placed, offload=verdict)
        decode, shipping = self._decode_half(attempt, placed, partner), None
        if crosses:
            request_id = decode.attempt.request_id
            shipping = self.offloading.shipping(
                request_id, decode_view, chosen, partner.cached_tokens, now_us
            )
        return PairDecision(attempt, placed, decode, shipping, verdict)

    def _decode_half(self, attempt: Attempt, placed: Placed, partner: DecodePartner) -> Decision:
        chosen, cached_tokens = attempt.chosen, round(partner.cached_tokens)
        decode = Chosen(
            partner.slot,
            cached_tokens,
            cached_tokens,
            chosen.safe_tokens + chosen.uncached_tokens - cached_tokens,
            0.0,
            max(chosen.queue_s, partner.wait_s) + chosen.service_s + partner.transfer_s,
            chosen.reason,
            queue_s=partner.wait_s,
            transfer_s=partner.transfer_s,
            tpot_s=partner.tpot_s,
        )
        request_id = self._parts.next_attempt_id()
        worker_id = self._fleet.at_slot(partner.slot).worker_id
        return Decision(
            replace(attempt, request_id=request_id, worker_id=worker_id, chosen=decode, guard_us=0),
            Placed(
                request_id,
                placed.at_us,
                worker_id,
                placed.replica,
                0,
                0,
                placed.context_tokens,
                placed.paths if partner.keeps_prefixes else (),
                placed.ends,
                block_tokens=placed.block_tokens,
                owner=placed.owner,
            ),
        )


def _key_us(order: QueueOrder, asked: DecisionInput, chosen: Chosen) -> int:
    """Key of a request by its predicted prefill (`policies.state.waiting`)."""
    return asked.arrived_us + whole(order.k * chosen.service_s * 1e6, WHOLE_MAX)


def _with_decode(outlook: Outlook, decode_view: DecodeView, transfer_s: float) -> Outlook:
    decoders, room_s = decode_view.decoders(outlook.slot), decode_view.wait_s(outlook.slot)
    return replace(outlook, decoders=decoders, room_s=room_s, transfer_s=transfer_s)
