"""The outcome of a request in a word and a sentence, with the reason for a wait or a rejection.

    place    now: on the policy's choice, or, across a link, on an idle worker of the other side
    wait     it is not its turn: no room, none to decode, a full link, others first, or it follows one
    reject   no worker may take it, or a promise would be broken

The reason for a wait is found by the questions of the decision, in their order (`policies.dispatch.turns`).
If none holds, it follows a prompt that is just prefilled (`policies.dispatch.followers`).
"""

from policies import SLO_UNREACHABLE, Chosen, Decision, Queued, Reason, Shed
from policies.disaggregation import ScoredPair
from router.errors import RouterError
from router.explaining.plain_words import REASONS, seconds
from router.explaining.rehearsal import Rehearsed
from router.gateway.gateway import Gateway


class Verdict:
    """The verdict on one request; ``next_best`` is a sentence on the second best worker, or empty.

    Attributes:
        word: ``place``, ``wait`` or ``reject``.
        reason: Stable word: `policies.Reason`, the reason for a wait, or the code of the error.
        why: The sentence.
        worker_id: Chosen, or waited for; empty for none in particular.
        decode_worker_id: If another worker decodes.
        preferred: The policy's choice, in or out of turn; None for none.
        queue_full: It would find no place to wait, or only another's.
    """

    def __init__(self, gateway: Gateway, rehearsed: Rehearsed, next_best: str = "") -> None:
        self._gateway, self._rehearsed, self._next_best = gateway, rehearsed, next_best
        self.worker_id = self.decode_worker_id = ""
        self.queue_full = False
        first = None if rehearsed.scored is None else rehearsed.scored.first
        self._first = first if isinstance(first, Chosen) else None
        self.preferred = None if self._first is None else self._name(self._first.slot)
        match rehearsed.outcome:
            case Decision() as decision:
                self.word = "place"
                self.reason, self.why = self._placed(decision)
            case Queued() as queued:
                self.word = "wait"
                self.reason, self.why = self._waits(queued)
            case Shed() as shed:
                self.word = "reject"
                self.reason, self.why = shed.reason, _shed(shed, rehearsed)
            case RouterError() as error:
                self.word = "reject"
                self.reason, self.why = error.code, error.message

    def _name(self, slot: int) -> str:
        return self._gateway.fleet.at_slot(slot).worker_id

    def _placed(self, decision: Decision) -> tuple[str, str]:
        chosen = decision.attempt.chosen
        self.worker_id = decision.attempt.worker_id
        if decision.decode is not None:
            self.decode_worker_id = decision.decode.attempt.worker_id
        prompt_tokens = chosen.safe_tokens + chosen.uncached_tokens
        text = f"{self.worker_id} {_because(chosen.reason)}"
        first = self._first
        if first is not None and first.slot != chosen.slot:
            text = (
                f"{self.preferred} {_because(first.reason)}, but {self._no_room(first.slot)}; "
                f"{self.worker_id} is free"
            )
        text += (
            f": {seconds(chosen.estimated_ttft_s)} to the first token, "
            f"{seconds(chosen.queue_s)} of queue and {seconds(chosen.service_s)} to prefill "
            f"{chosen.uncached_tokens:,} of {prompt_tokens:,} tokens"
        )
        if chosen.transfer_s:
            text += f", {seconds(chosen.transfer_s)} of transfer"
        if self.decode_worker_id:
            text += f"; {self.decode_worker_id} decodes"
        if self._next_best and first is not None and first.slot == chosen.slot:
            text += f". Next, {self._next_best}"
        return chosen.reason, f"{text}."

    def _waits(self, queued: Queued) -> tuple[str, str]:
        waiting, gateway = queued.waiting, self._gateway
        tickets = gateway.fleet.tickets
        self.worker_id = waiting.worker
        self.queue_full = gateway.placing.room.is_full(waiting.lane)
        assert self._first is not None
        slot = self._first.slot
        whom = f"for {waiting.worker}" if waiting.worker else "for the first worker of its lane with room"
        if queued.waits_for_link:
            reason, why = "link_full", f"the link {waiting.link} has no room for its KV now"
        elif queued.waits_for_decode:
            reason, why = "no_room_to_decode", "no decode worker has room for its KV"
        elif not gateway.placing.admission.has_room(slot, self._rehearsed.now_us):
            reason, why = "no_room", self._no_room(slot)
        elif not tickets.count:
            reason = "follows"
            why = f"{self.preferred} is just prefilling the start that it shares with another prompt"
        else:
            reason = "others_first"
            why = f"requests that came earlier, or are less work, wait for {self.preferred} or its lane"
        text = f"It would wait {whom}: {why}"
        total = tickets.lane_totals().get(waiting.lane)
        if total is not None and total.count:
            ahead_s = tickets.ahead_service_us(waiting.lane, waiting.key_us) / 1e6
            text += f". {total.count:,} wait in its lane, {seconds(ahead_s)} of prefill before it"
        if self.queue_full:
            text += ". The queue is full: it is rejected, unless it displaces a lesser one"
        return reason, f"{text}."

    def _no_room(self, slot: int) -> str:
        gateway, now_us = self._gateway, self._rehearsed.now_us
        admission, loads, name = gateway.placing.admission, gateway.fleet.loads, self._name(slot)
        backlog_s, target_s = loads.backlog_at_s(slot, now_us), admission.target_s(slot)
        scored = self._rehearsed.scored
        decode_view = scored.decode_view if isinstance(scored, ScoredPair) else None
        if admission.closed:
            return "this replica has as many requests at workers as it may"
        if backlog_s >= target_s:
            before = f"{name} has {seconds(backlog_s)} of prefill before it"
            return f"{before}, and gets more below {seconds(target_s)}"
        if not admission.below_caps(slot, now_us):
            running, most = loads.inflight_requests.item(slot), admission.running_max(slot)
            if running >= most:
                return f"{name} has {running:.0f} requests in flight, of {most:.0f}"
            return f"{name} runs as many requests, or holds as much KV for them, as it may"
        if decode_view is not None and not decode_view.has_room(slot):
            return f"no decode worker has room for {name}'s prefill"
        return f"others that wait go first at {name}"


def _because(reason: str) -> str:
    return REASONS[Reason(reason)]


def _shed(shed: Shed, rehearsed: Rehearsed) -> str:
    if shed.reason == SLO_UNREACHABLE:
        return f"It would miss its service level: {shed.detail}."
    scored = rehearsed.scored
    if scored is not None and scored.policy.left_out:
        return f"{scored.policy.name} considers none of the candidates: each {scored.policy.left_out}."
    return "No candidate may be given it now."
