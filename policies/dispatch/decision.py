"""One decision: from a request and the workers that may take it to what is said about it in the log.

    RequestFacts, slots ───> tokens, candidates ──> place ──> whose turn? ──> Decision (attempt, Placed)
                              │                       │            │             └ its decode half, if shared
                              └ what partners cost    │            └────────> Hold (Waiting)
                                                      └──> Shed

A policy chooses as if every worker took everything at once. Whether it is this request's turn there is
asked next, of requests with a `QueueEntry`:

1. The chosen worker has room (`policies.Admission`), and no ticket with a lesser key waits for it: go.
2. Else wait here, where order still counts: for the chosen worker, if waiting for it is predicted cheaper
   than starting on any other worker that stood idle (`policies.dispatch.prospects`) or the request has just
   declined another's room; else for any worker of its lane.

The price of each worker includes the tickets that go first there and those that would be overtaken
(`policies.state.queue_view`), so the choice is between waiting here and starting there, in one unit. An idle
worker is chosen where it costs least; work that would lose its cache there waits for its own worker
(decision 0049). A request that is offered the room of another worker than the one it would choose declines.

A prefill worker has room if a decode worker that may end the request has, too
(`policies.disaggregation.decode_selection`). What waits for that waits for any worker of its lane: who prefills it
then is open.

A request whose worker is just prefilling what it shares with another one waits for its worker, if it would
compute that again (`policies.dispatch.followers`).

Who would miss what is promised whatever its turn is rejected (`policies.dispatch.early_rejection`).

Nothing is sent, published or awaited here, and no clock is read. So the simulator decides with the very same
lines (`loadtest.simulator.replica`).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from policies.disaggregation.decode_selection import DecodePartner, DecodeSelector, DecodeView
from policies.disaggregation.offload import Offload, OffloadVerdict
from policies.disaggregation.offloading import NO_LINE, Line, Offloading
from policies.dispatch.early_rejection import EarlyRejection, Outlook
from policies.dispatch.feedback import Attempt, Feedback
from policies.dispatch.followers import repeated_blocks, waits_for_leader
from policies.dispatch.prospects import prospect
from policies.dispatch.queue_lanes import Lanes, lane_by
from policies.dispatch.request import RequestFacts
from policies.estimates.kv_bytes import UNKNOWN_KV
from policies.fleet.admission import Admission, AdmissionRules
from policies.fleet.fleet import FleetState
from policies.fleet.pairing import Pairing
from policies.observing.shadow import ScoredRequest, ShadowObserver
from policies.pricing.views import Candidates, Chosen, RequestView, Shed, Slots
from policies.scoring import Policy
from policies.scoring.placement import NO_WORKER_RETRY_AFTER_S, place
from policies.state.buckets import ANY_BUCKET, beyond
from policies.state.ops import Placed, Shipping, Waiting
from policies.state.queue_view import QueueView, without
from radix import DURATION_US_MAX, TOKENS_MAX, WHOLE_MAX, AttentionProfile, whole

DOUBT = 1.25
"""A prompt of bytes may have so many times the tokens that are expected, where its engine would refuse it.
[guess] Bytes per token are learned per model, and differ more between text and code than within either."""

NO_PROMPT = (b"",)
"""Paths of a request without a prompt: it is an arrival all the same (`policies.state.ops.Placed`)."""


TELLING_BLOCKS = 8
"""Shorter matches tell nothing of a capacity (`policies.estimates.capacities`): an application's start is
never evicted, or too few blocks to tell an eviction from rounding."""

SLO_UNREACHABLE = "slo_unreachable"
"""Reason of a `Shed`: what is promised would be broken."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A worker was chosen, or a prefill worker and a decode worker.

    Attributes:
        attempt: What the answer must be judged by.
        placed: What the log must hear, before anybody else decides.
        decode: The same of the decode worker, under an id of its own; None if one worker does all.
        shipping: What the log must hear of the KV that will cross a link; None if none does.
        offload: Why the prefill is in this site or in another; None if there was no choice.
    """

    attempt: Attempt
    placed: Placed
    decode: "Decision | None" = None
    shipping: Shipping | None = None
    offload: OffloadVerdict | None = None


class Queued(msgspec.Struct, frozen=True, gc=False):
    """It is not the request's turn: it waits here.

    Attributes:
        waiting: What the log must hear of it; under the id of the attempt that will end the wait.
        path: Packed block hashes of its (first) prompt.
        safe_blocks: How much of that the chosen worker has.
        waits_for_decode: Whether no decode worker has room that could end what the chosen worker begins.
        waits_for_link: Whether it waits until a link has room for its KV.
    """

    waiting: Waiting
    path: bytes = b""
    safe_blocks: int = 0
    waits_for_decode: bool = False
    waits_for_link: bool = False


class QueueEntry(msgspec.Struct, frozen=True, gc=False):
    """What a request that may have to wait brings along.

    Attributes:
        arrived_us: Log time of its arrival, however often it has been dispatched since.
        lane: Who may take it (`policies.dispatch.queue_lanes`).
        flow: Who is to be treated fairly (`policies.state.fairness`).
        ticket_id: Under which it waits already; empty if it does not.
        turn: Slot of the worker whose room it is offered; -1 if it asks on its own.
        narrowed: Whether some of its lane's workers may not take it (they failed it, or start slowly).
        again: Whether it was dispatched before: it is not judged by what is promised then.
    """

    arrived_us: int
    lane: str
    flow: str
    ticket_id: str = ""
    turn: int = -1
    narrowed: bool = False
    again: bool = False


class QueueOrder(msgspec.Struct, frozen=True):
    """How requests take turns.

    Attributes:
        admission: Who has room.
        lanes: Who serves which of those that wait.
        k: Key of a request: its arrival plus so many times its predicted work (`policies.state.waiting`).
            0 is first come, first served; a large one is shortest first.
        step_tokens: Of the worker in a slot: what one step of its engine prefills at most, if others find
            what a step computes only when it is over; 0 if they find it before.
        rejection: Who would miss what is promised; None if nothing is.
    """

    admission: Admission
    lanes: Lanes
    k: float
    step_tokens: Callable[[int], int] = lambda _: 0
    rejection: EarlyRejection | None = None


class DecisionRules(msgspec.Struct, frozen=True):
    """By what one replica decides.

    Attributes:
        policy: How workers are priced.
        block_tokens: Block size of token ids.
        block_bytes: Block size of text.
        expected_output_tokens: Of a request that states no limit.
        order: How requests take turns; None: nobody ever waits.
        prefill_policy: How workers are priced where some of them only prefill; None: as everywhere.
    """

    policy: Policy
    block_tokens: int
    block_bytes: int
    expected_output_tokens: int
    order: QueueOrder | None = None
    prefill_policy: Policy | None = None


class Decider:
    """Decides for one replica.

    Args:
        fleet: What is known of the workers.
        rules: By what it decides.
        feedback: Knows the bytes of a token.
        replica: Who decides.
        next_attempt_id: Makes ids that are unique in the log.
        decode_selector: Finds the decode workers of requests that are split; None: with what the others say.
        offloading: Chooses the side of a link on which requests are prefilled; None: by the default rules.
        limits: What some workers of a model can hold and others exceed, rising; None: all hold the same.

    Attributes:
        rules: As given, or the latest.
        policy: Theirs.
        prefill_policy: Theirs, or the same.
        offloading: As given.
        placed_count: Requests placed so far.
        shadow: Is told how each request was weighed when it came; None: nobody is.
    """

    def __init__(
        self,
        fleet: FleetState,
        rules: DecisionRules,
        feedback: Feedback,
        *,
        replica: str,
        next_attempt_id: Callable[[], str],
        decode_selector: DecodeSelector | None = None,
        offloading: Offloading | None = None,
        limits: Callable[[str | None], Sequence[int]] | None = None,
    ) -> None:
        self._fleet = fleet
        self._limits = limits
        self._feedback = feedback
        self._replica = replica
        self._next_attempt_id = next_attempt_id
        self.use(rules)
        admission = rules.order.admission if rules.order else Admission(AdmissionRules(), fleet)
        self._decode_selector = decode_selector or DecodeSelector(fleet, admission, feedback.decode_fit)
        self.offloading = offloading or Offloading(fleet, Offload(fleet.links), replica=replica)
        self.placed_count = 0
        self.shadow: ShadowObserver | None = None

    def rehearsing(self, witness: ShadowObserver, policy: Policy | None = None) -> "Decider":
        """One that decides as this one would now, but counts and remembers for itself alone.

        Args:
            witness: Is told how a request was weighed.
            policy: Of which it decides instead; None: as this one.
        """
        rules = self.rules if policy is None else replace(self.rules, policy=policy, prefill_policy=None)
        other = Decider(
            self._fleet,
            rules,
            self._feedback,
            replica=self._replica,
            next_attempt_id=str,
            decode_selector=self._decode_selector,
            offloading=self.offloading.rehearsing(),
            limits=self._limits,
        )
        other.shadow, other.placed_count = witness, self.placed_count
        return other

    def use(self, rules: DecisionRules) -> None:
        """Decide by these from now on."""
        self.rules = rules
        self.policy = rules.policy
        self.prefill_policy = rules.prefill_policy or rules.policy
        self._order = rules.order
        self._block_tokens = float(rules.block_tokens)
        self._block_bytes = rules.block_bytes
        self._expected_output_tokens = float(rules.expected_output_tokens)

    def bucket_of(self, parsed: RequestFacts) -> int:
        """Number of the length bucket of a request (`policies.BucketMembers.of_length`).

        Its length is its prompt and expected output; of a batch, the longest prompt. Without buckets, what
        engines can hold counts (`policies.state.buckets`): the prompt and the answer that the client allows.
        """
        buckets = self._fleet.buckets
        limits: Sequence[int] = ()
        if buckets.lengths is None:
            limits = self._limits(parsed.model) if self._limits is not None else ()
            if not limits:
                return ANY_BUCKET
        tokens, output_tokens = self.expected_tokens(parsed)
        if len(parsed.paths) > 1:
            sizes = [len(path) for path in parsed.paths]
            tokens *= max(sizes) / max(sum(sizes), 1)
        if not limits:
            return buckets.of_length(tokens + output_tokens)
        if not parsed.prompt_token_ids:
            tokens *= DOUBT
        exceeded = bisect_left(limits, tokens + (parsed.output_tokens_max or 1))
        return beyond(limits[exceeded - 1]) if exceeded else ANY_BUCKET

    def expected_tokens(self, parsed: RequestFacts) -> tuple[float, float]:
        """Tokens that are expected of all prompts of a request, and of each answer."""
        return self._expected_tokens(parsed, self._feedback.bytes_per_token(parsed.model or ""))

    def decide(
        self,
        parsed: RequestFacts,
        profile: AttentionProfile,
        slots: Slots,
        now_us: int,
        now_s: float,
        entry: QueueEntry | None = None,
        bucket: int = ANY_BUCKET,
        pairing: Pairing | None = None,
    ) -> Decision | Queued | Shed:
        """Choose a worker, or a prefill and a decode worker, and say whether it is the request's turn there.

        Args:
            parsed: What is asked.
            profile: What of a match its model can reuse.
            slots: Who may take it, not empty.
            now_us: Log time.
            now_s: Monotonic seconds, at which it will have been sent.
            entry: What it brings along if it may have to wait; None: it never does.
            bucket: As `bucket_of` says.
            pairing: Who needs a partner, of those who may take it; None if nobody does.
        """
        fleet = self._fleet
        bytes_per_token = self._feedback.bytes_per_token(parsed.model or "")
        prompt_tokens, output_tokens = self._expected_tokens(parsed, bytes_per_token)
        prompt_tokens = min(max(prompt_tokens, 1.0), TOKENS_MAX)
        tokens_per_block = (
            self._block_tokens if parsed.prompt_token_ids else self._block_bytes / bytes_per_token
        )
        view = RequestView(
            parsed.key,
            parsed.prefix_key,
            prompt_tokens,
            min(output_tokens * parsed.n, TOKENS_MAX),
            self.placed_count,
        )
        order, queue = self._order, None
        if entry is not None and order is not None:
            tickets = fleet.tickets
            queue = QueueView(
                tickets if tickets.count else None,
                entry.lane,
                len(slots),
                entry.arrived_us,
                order.k,
                order.admission.rules.backlog_target_s,
                tickets.get(entry.ticket_id) if entry.ticket_id else None,
            )
        candidates = fleet.candidates(
            slots,
            parsed.paths,
            profile,
            prompt_tokens,
            tokens_per_block,
            now_us,
            bucket,
            queue,
        )
        policy, decode_view, kv = self.policy, None, UNKNOWN_KV
        by_site = verdict = None
        if pairing is not None:
            policy, kv = self.prefill_policy, fleet.rules.kv_of(parsed.model)
            decode_view = self._decode_selector.decode_view(pairing, view, kv, candidates)
            if policy.price is None:
                slots = decode_view.without_decode(slots)
            candidates = fleet.among(candidates, slots, bucket, decode_view.ships())
            by_site = decode_view.by_site(slots)
            if by_site is not None and candidates.queue is not None:
                # The sides of a link compare what waits by themselves (`_line`).
                candidates = replace(candidates, queue=replace(candidates.queue, tickets=None))
        everyone = candidates
        if decode_view is None or by_site is None:
            first = place(view, candidates, policy)
        else:
            failed = entry is not None and entry.again
            line_of = partial(self._line, entry)
            candidates, first, verdict = self.offloading.place(
                view, everyone, by_site, decode_view, policy, kv, bucket, line_of, failed=failed
            )
            slots = candidates.slots
            if entry is not None and verdict is not None:
                entry = replace(entry, lane=lane_by(entry.lane, verdict.way))
        if self.shadow is not None and (entry is None or not (entry.ticket_id or entry.again)):
            self.shadow.weighed(
                ScoredRequest(
                    parsed.model or "",
                    view,
                    everyone,
                    candidates,
                    policy,
                    first,
                    bucket,
                    decode_view,
                    by_site,
                    verdict,
                )
            )
        match first:
            case Shed() as shed:
                return shed
            case Chosen() as chosen:
                pass
        if entry is not None and order is not None:
            follows = self._follows(order, parsed, chosen, tokens_per_block, now_us)
            if (
                follows
                or fleet.tickets.count
                or not order.admission.has_room(chosen.slot, now_us)
                or (decode_view is not None and not decode_view.has_room(chosen.slot))
            ):
                turn = self._turn(
                    order, entry, view, candidates, decode_view, chosen, policy, follows=follows
                )
                if (
                    verdict is not None
                    and decode_view is not None
                    and by_site is not None
                    and isinstance(turn, Waiting)
                    and entry.turn >= 0
                    and order.admission.idle(decode_view.open(np.array([entry.turn])), now_us)
                ):
                    waits_s = line_of(verdict.way, chosen, len(slots)).ahead_s + chosen.estimated_ttft_s
                    helped = self.offloading.helped(
                        view, everyone, by_site, decode_view, policy, bucket, verdict, entry.turn, waits_s
                    )
                    if helped is not None and isinstance(helped.chosen, Chosen):
                        candidates, turn, verdict = helped.candidates, helped.chosen, helped.verdict
            else:
                turn = chosen
            if (
                decode_view is not None
                and by_site is not None
                and isinstance(turn, Chosen)
                and (
                    self.offloading.waits(decode_view, kv, view, turn, now_us)
                    or self._passes_by(order, entry, decode_view, turn, now_us)
                )
            ):
                chosen = turn
                turn = self._turn(order, entry, view, candidates, decode_view, chosen, policy, follows=False)
            if order.rejection is not None and not entry.again:
                rejected = self._rejected(
                    order.rejection, entry, view, slots, decode_view, chosen, turn, now_us
                )
                if rejected is not None:
                    return rejected
            if isinstance(turn, Waiting):
                waits_for_link = decode_view is not None and decode_view.waits_for_link(chosen.slot)
                waits_for_decode = (
                    decode_view is not None and not waits_for_link and not decode_view.has_room(chosen.slot)
                )
                safe_blocks = round(chosen.safe_tokens / tokens_per_block)
                return Queued(turn, parsed.paths[0], safe_blocks, waits_for_decode, waits_for_link)
            chosen = turn
        partner = None
        if decode_view is not None and decode_view.splits(chosen.slot):
            partner = decode_view.partner(chosen)
            if partner is None:
                return Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
        self.placed_count += 1
        windowed = profile.needs_ends
        safe_blocks = int(chosen.safe_tokens / tokens_per_block + 0.5)
        attempt = Attempt(
            entry.ticket_id if entry is not None and entry.ticket_id else self._next_attempt_id(),
            fleet.at_slot(chosen.slot).worker_id,
            chosen,
            now_us,
            min(fleet.loads.oldest_prefill_us(chosen.slot), now_us) if chosen.safe_tokens else 0,
            tokens_per_block,
            now_s,
            windowed,
            fleet.tree.used_us(chosen.slot, parsed.paths[0], safe_blocks)
            if safe_blocks >= TELLING_BLOCKS and not windowed
            else 0,
        )
        placed = Placed(
            attempt.request_id,
            now_us,
            attempt.worker_id,
            self._replica,
            whole(chosen.service_s * 1e6, DURATION_US_MAX),
            chosen.uncached_tokens,
            whole(prompt_tokens + view.output_tokens, TOKENS_MAX),
            parsed.paths or NO_PROMPT,
            windowed,
            entry.flow if entry is not None and fleet.tickets.count else "",
            safe_blocks,
            -1
            if decode_view is None
            else chosen.uncached_tokens
            if verdict is None or verdict.uncached_local < 0
            else verdict.judged_tokens,
            int(chosen.matched_tokens / tokens_per_block + 0.5) if windowed and len(parsed.paths) == 1 else 0,
        )
        if verdict is not None:
            self.offloading.went(attempt.request_id, verdict, now_us)
        if partner is None:
            return Decision(attempt, placed, offload=verdict)
        decode, shipping = self._other_half(attempt, placed, partner), None
        if decode_view is not None and by_site is not None:
            shipping = self.offloading.shipping(
                decode.attempt.request_id, decode_view, kv, view, chosen, partner.cached_tokens, now_us
            )
        return Decision(attempt, placed, decode, shipping, verdict)

    def _other_half(self, attempt: Attempt, placed: Placed, partner: DecodePartner) -> Decision:
        """What is to be said of the worker that ends a request.

        Args:
            attempt: How it was placed on the worker that begins it.
            placed: The same for the log.
            partner: Who ends it.
        """
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
        request_id = self._next_attempt_id()
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
            ),
        )

    def _expected_tokens(self, parsed: RequestFacts, bytes_per_token: float) -> tuple[float, float]:
        output_tokens = self._expected_output_tokens
        if parsed.output_tokens_max is not None:
            output_tokens = min(output_tokens, parsed.output_tokens_max)
        return parsed.prompt_token_ids + parsed.prompt_bytes / bytes_per_token, output_tokens

    def _line(self, entry: QueueEntry | None, link: str, chosen: Chosen, workers: int) -> Line:
        """What waits on one side of a link, before a request and behind it."""
        tickets, order = self._fleet.tickets, self._order
        if entry is None or order is None or not tickets.count:
            return NO_LINE
        key_us = entry.arrived_us + whole(order.k * chosen.service_s * 1e6, WHOLE_MAX)
        lane = lane_by(entry.lane, link)
        total = tickets.lane_totals().get(lane)
        if total is None:
            return NO_LINE
        ahead_us, behind = map(float, total.around(key_us))
        own, work_us = tickets.get(entry.ticket_id), total.service_us
        if own is not None and own.lane == lane:
            ahead_us, behind = without(own, 1.0, key_us, ahead_us, behind)
            work_us -= own.service_us
        return Line(max(ahead_us, 0.0) / 1e6 / workers, max(behind, 0.0) / workers, work_us / 1e6 / workers)

    def _turn(
        self,
        order: QueueOrder,
        entry: QueueEntry,
        view: RequestView,
        candidates: Candidates,
        decode_view: DecodeView | None,
        chosen: Chosen,
        policy: Policy,
        *,
        follows: bool,
    ) -> Chosen | Waiting:
        """Whose turn it is, if anybody waits, the chosen worker has no room, or the request follows one."""
        now_us = candidates.now_us
        ahead = prospect(candidates, view.prompt_tokens, chosen.slot, policy.price)
        service_us = whole(ahead.chosen_s * 1e6, DURATION_US_MAX)
        key_us = min(entry.arrived_us + whole(order.k * service_us, WHOLE_MAX), WHOLE_MAX)
        open_ = decode_view is None or decode_view.has_room(chosen.slot)
        if (
            open_
            and not follows
            and order.admission.has_room(chosen.slot, now_us)
            and (entry.turn == chosen.slot or not self._overtakes(order, entry, chosen.slot, key_us, now_us))
        ):
            return chosen
        offered = entry.turn >= 0 and entry.turn != chosen.slot
        ticket = self._fleet.tickets.get(entry.ticket_id) if entry.ticket_id else None
        declined = offered or (ticket is not None and ticket.slot == chosen.slot)
        # What waits for a link waits for what is behind it: room elsewhere is nothing to it.
        waits_for_link = decode_view is not None and decode_view.waits_for_link(chosen.slot)
        prefers = entry.narrowed or waits_for_link or (open_ and (follows or ahead.affine or declined))
        return Waiting(
            entry.ticket_id or self._next_attempt_id(),
            now_us,
            self._replica,
            entry.arrived_us,
            key_us,
            entry.lane,
            self._fleet.at_slot(chosen.slot).worker_id if prefers else "",
            entry.flow,
            service_us,
            chosen.uncached_tokens,
            whole(view.prompt_tokens + view.output_tokens, TOKENS_MAX),
            decode_view.link(chosen.slot) if decode_view is not None and waits_for_link else "",
        )

    def _follows(
        self, order: QueueOrder, parsed: RequestFacts, chosen: Chosen, tokens_per_block: float, now_us: int
    ) -> bool:
        """Whether a request had better wait for the first token of another on its worker."""
        loads, slot = self._fleet.loads, chosen.slot
        if not chosen.safe_tokens or not loads.prefill_requests.item(slot) or len(parsed.paths) != 1:
            return False
        step_tokens = order.step_tokens(slot)
        if not step_tokens:
            return False
        blocks = repeated_blocks(
            loads,
            slot,
            parsed.paths[0],
            int(chosen.safe_tokens / tokens_per_block + 0.5),
            step_tokens / tokens_per_block,
            now_us,
        )
        model = self._fleet.service_model(self._fleet.at_slot(slot).worker_class)
        return waits_for_leader(
            blocks * tokens_per_block, chosen.safe_tokens, chosen.uncached_tokens, model.service_s
        )

    def _rejected(
        self,
        rejection: EarlyRejection,
        entry: QueueEntry,
        view: RequestView,
        slots: Slots,
        decode_view: DecodeView | None,
        chosen: Chosen,
        turn: Chosen | Waiting,
        now_us: int,
    ) -> Shed | None:
        """Why a request is rejected that would miss what is promised."""
        key_us = 0
        if isinstance(turn, Chosen):
            chosen = turn
        else:
            key_us = turn.key_us
        outlook = Outlook(
            chosen.slot,
            slots,
            entry.lane,
            key_us,
            chosen.service_s,
            view.prompt_tokens,
            (now_us - entry.arrived_us) / 1e6,
            bool(entry.ticket_id),
        )
        if decode_view is not None:
            outlook = replace(
                outlook,
                decoders=decode_view.decoders(chosen.slot),
                room_s=decode_view.wait_s(chosen.slot),
                transfer_s=chosen.transfer_s,
            )
        miss = rejection.judge(outlook, now_us)
        if miss is None:
            return None
        detail = f"{miss.what} of {miss.predicted_s:.3g} s predicted, {miss.promised_s:.3g} s promised"
        return Shed(SLO_UNREACHABLE, miss.retry_after_s, detail)

    def _overtakes(self, order: QueueOrder, entry: QueueEntry, slot: int, key_us: int, now_us: int) -> bool:
        """Whether somebody with a better key waits for the room that a worker has."""
        tickets, lanes = self._fleet.tickets, order.lanes.of(slot)
        if not entry.ticket_id:
            return tickets.ahead_of(slot, lanes, key_us, now_us, flow=entry.flow)
        best = tickets.best(slot, lanes, now_us)
        return best is not None and best.request_id != entry.ticket_id and best.key_us < key_us

    def _passes_by(
        self, order: QueueOrder, entry: QueueEntry, decode_view: DecodeView, chosen: Chosen, now_us: int
    ) -> bool:
        """Whether somebody with a better key waits for the link that a request would take.

        All replicas hear that a link has room in the same moment, and see the same order. The look knows
        then that there is none.
        """
        link = decode_view.link(chosen.slot)
        if not link:
            return False
        best = self._fleet.tickets.first_for_link(link)
        key_us = entry.arrived_us + whole(order.k * chosen.service_s * 1e6, WHOLE_MAX)
        if (
            best is None
            or best.request_id == entry.ticket_id
            or best.key_us >= key_us
            or self.offloading.left_unused(link, best, now_us)
        ):
            return False
        decode_view.wait_for(link)
        return True
