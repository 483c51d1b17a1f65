"""One replica of the gateway without its sockets, which hears of the others late.

It handles a request as `router.gateway.exchange` does, with the production parts on virtual time:
`FleetState`, `PairDecider`, `DecodeSelector`, `Offloading`, `RequestQueue`, `Feedback` and `LogClock`. The
movement of bytes is left out.

    take ──┬── Placed ────> own FleetState at once     (twice, for a prefill and a decode worker, and
           │      └───────> SharedLog ──late──> the others' FleetStates    Shipping if KV crosses a link)
           └── Waiting ──> Placed, or Finished  (likewise, as everything below; but first tokens and ends
                                                 reach the others as sums, `policies.LoadVector`)
    first_token ─ FirstToken; for two workers Finished of the one, FirstToken of the other, Shipped
    completed ─── Finished, then what Feedback learned: Trim, Forget, Fitted
    aborted ───── Finished, and Trim of what was inserted on trust

A prompt is text of `BYTES_PER_TOKEN` bytes a token, so that a gateway block is whole engine blocks; its path
is every k-th of the engine's chained hashes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.queueing import DEFAULT_FLOW, QueueRules
from loadtest.simulator.records import Outcome
from loadtest.simulator.shared_log import SharedLog
from policies import (
    ALONE,
    CONVERTIBLE_LABEL,
    GRACE_LAGS,
    GRACE_S,
    HAND_OVERS,
    HANDOVER_LABEL,
    Admission,
    Attempt,
    BareRequest,
    DeciderParts,
    Decision,
    DecisionInput,
    DecisionRules,
    EarlyRejection,
    Expired,
    Feedback,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Lanes,
    LengthClass,
    LogClock,
    Op,
    OpLog,
    Pairing,
    Partners,
    Policy,
    Queued,
    QueueOrder,
    QueueRefusal,
    RequestFacts,
    RequestQueue,
    Shed,
    Shipped,
    Switched,
    Usage,
    WaitEnd,
    Waiting,
    Worker,
    lane_of,
    model_and_length,
)
from policies.disaggregation import (
    TURNING_LABEL,
    DecodeSelector,
    LinkWatch,
    Offload,
    Offloading,
    OffloadRules,
    PairDecider,
    PairDecision,
    RoleMember,
    RoleRules,
    RoleStep,
    plan_roles,
    role_demand,
    role_taken,
    turn_roles,
)
from radix import AttentionProfile

BYTES_PER_TOKEN = 4
"""Also what a gateway assumes until it has learned (``placement.bytes_per_token``)."""

START_NS = 10**18
"""Log time at the start of a simulation; any time will do that is later than 0."""

BLOCK_BYTES = 8

MODEL = "simulated"
"""Model of all requests."""

NO_SLOTS: NDArray[np.intp] = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRules:
    """A replica's settings.

    Attributes:
        policy: Chooses the worker of a request (its prefill worker, if there are decode workers).
        decode_policy: Chooses its decode worker; None: `policies.DECODE_COST`.
        profile: Reusable part of a prefix match for this model.
        fleet: Rules of the fold.
        engine_block_tokens: Tokens of a block of the engine, in which prompts come.
        expected_output_tokens: Assumed of every answer.
        queue: None: requests never wait.
        step_tokens: Longest prefill step of an engine, if others find it only when it is over.
        offload: Choice of the site of a prefill.
        roles: Rules of role changes.
    """

    policy: Policy
    decode_policy: Policy | None
    profile: AttentionProfile
    fleet: FleetRules
    engine_block_tokens: int = 64
    expected_output_tokens: int = 256
    queue: QueueRules | None = None
    step_tokens: int = 0
    offload: OffloadRules = field(default_factory=OffloadRules)
    roles: RoleRules = field(default_factory=RoleRules)


class Caller(Protocol):
    """Sender of a request."""

    def dispatched(self, dispatch: "Dispatch") -> None:
        """It goes to its worker."""

    def refused(self, outcome: Outcome) -> None:
        """It never will."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request on its way, as its replica remembers it.

    Attributes:
        decode_attempt: Placement on a decode worker; None without one.
        ships: The log knows of a link that its KV crosses.
    """

    parsed: RequestFacts
    attempt: Attempt
    decode_attempt: Attempt | None = None
    ships: bool = False


class Replica:
    """One replica with a unique name."""

    def __init__(self, name: str, clock: VirtualClock, rules: ReplicaRules, log: SharedLog) -> None:
        self.name = name
        self.fleet = FleetState(rules.fleet, own=name)
        self._rules = rules
        self._clock = clock
        self._log_clock = LogClock(lambda: int(clock.time() * 1e9), lambda: START_NS)
        self._writer = log.writer(self, self.fleet.load_reports, self._log_clock.now_us)
        op_log = OpLog(name, self.publish, self._log_clock.now_us)
        self._feedback = Feedback(self.fleet, op_log, bytes_per_token=BYTES_PER_TOKEN)
        queue = rules.queue or QueueRules()
        admission = Admission(queue.admission, self.fleet)
        decode_selector = DecodeSelector(
            self.fleet, admission, self._feedback.learn_decodes, rules.decode_policy
        )
        lanes = Lanes(self._slots_of, self._pairing_of, decode_selector)
        rejection = EarlyRejection(queue.level, self.fleet, self._feedback.learn_decodes)
        order = QueueOrder(
            admission,
            lanes,
            queue.k,
            lambda _slot: rules.step_tokens,
            rejection if queue.level.promises else None,
        )
        self.fleet.tickets.watched = name
        self.room = RequestQueue(
            log=op_log,
            fleet=self.fleet,
            admission=admission,
            lanes=lanes,
            rules=queue.room,
            call_later=clock.call_later,
            grace_s=lambda: max(GRACE_S, GRACE_LAGS * log.delay_s),
            ended=self._wait_ended,
        )
        self.link_watch = LinkWatch(self.fleet, op_log)
        self.offloading = Offloading(self.fleet, Offload(self.fleet.links, rules.offload), replica=name)
        self._decider = PairDecider(
            DeciderParts(self.fleet, self._feedback, name, map(f"{name}-{{:x}}".format, count()).__next__),
            DecisionRules(
                rules.policy,
                rules.fleet.block_tokens,
                BYTES_PER_TOKEN * rules.fleet.block_tokens,
                rules.expected_output_tokens,
                order if rules.queue else None,
            ),
            decode_selector=decode_selector,
            offloading=self.offloading,
        )
        self._step = rules.fleet.block_tokens // rules.engine_block_tokens
        assert self._step * rules.engine_block_tokens == rules.fleet.block_tokens
        self._slots = NO_SLOTS
        self._partners: tuple[Partners, ...] = ()
        self._fitting: dict[LengthClass, tuple[NDArray[np.intp], Pairing | None]] = {}
        self._revision = -1

    def know(self, workers: Iterable[Op]) -> None:
        """Learn of the workers, in the order of their slots."""
        for op in workers:
            self.fleet.apply(op)

    def _sort_workers(self) -> None:
        """Note the workers that begin requests, and those that decode prefilled ones."""
        working = [worker for worker in self.fleet.workers() if not worker.draining]
        places = [place for worker in working for place in self.fleet.places(worker)]
        known = sorted(places, key=lambda place: place.slot)
        decode: dict[str, list[int]] = {}
        for worker in known:
            if worker.role == "decode":
                decode.setdefault(_protocol(worker), []).append(worker.slot)
        self._partners = tuple(Partners(name, np.array(decode[name])) for name in sorted(decode))
        begins = {"plain": lambda _: True, "prefill": decode.__contains__, "decode": _takes_whole}
        self._slots = np.array(
            [worker.slot for worker in known if begins[worker.role](_protocol(worker))], dtype=np.intp
        )

    def take(self, blocks: bytes, tokens: int, caller: Caller, flow: str = DEFAULT_FLOW) -> None:
        """Let a request go, wait, or neither; ``caller`` hears the result, now or later.

        ``blocks`` are the prompt's packed chained hashes of the engine's blocks, ``tokens`` its length.
        """
        parsed = self._parsed(blocks, tokens, flow.partition("/")[2])
        request = _Request(self, parsed, flow, caller)
        match request.decide("", -1):
            case Decision() as decision:
                request.dispatched(decision)
            case Queued() as queued:
                full = self.room.begin(request, queued)
                if full is not None:
                    request.refused(full)
            case Shed():
                caller.refused(Outcome.REJECTED)

    def decide(self, request: "_Request", ticket_id: str, turn: int) -> Decision | Queued | Shed:
        """Choose a worker, and see whether it is a request's turn there."""
        length = self._decider.length_of(request.parsed)
        lane = lane_of(MODEL, length)
        now_us, now_s, slots = self._log_clock.now_us(), self._clock.time(), self._slots_of(lane)
        return self._decider.decide(
            DecisionInput(
                request.parsed,
                self._rules.profile,
                slots,
                now_us,
                now_s,
                length,
                self._pairing_of(lane),
                arrived_us=request.arrived_us,
                flow=request.flow,
                ticket_id=ticket_id,
                turn=turn,
            )
        )

    def reserve(self, parsed: RequestFacts, decision: Decision) -> Dispatch:
        """Reserve on the chosen workers, and on the link between them."""
        self.publish(decision.placed)
        if decision.decode is None:
            return Dispatch(parsed, decision.attempt)
        self.publish(decision.decode.placed)
        shipping = decision.shipping if isinstance(decision, PairDecision) else None
        if shipping is not None:
            self.publish(shipping)
            worker = self.fleet.at_slot(decision.attempt.chosen.slot)
            self.link_watch.begun(shipping, decision.attempt.request_id, worker.slot, _protocol(worker))
        return Dispatch(parsed, decision.attempt, decision.decode.attempt, shipping is not None)

    @property
    def now_us(self) -> int:
        """Log time."""
        return self._log_clock.now_us()

    def _slots_of(self, lane: str) -> NDArray[np.intp]:
        """Workers for the requests of a lane, by the rule of `router.fleet.registry`: here all are well."""
        return self._fitting_to(lane)[0]

    def _pairing_of(self, lane: str) -> Pairing | None:
        return self._fitting_to(lane)[1]

    def _fitting_to(self, lane: str) -> tuple[NDArray[np.intp], Pairing | None]:
        fleet = self.fleet
        if fleet.revision != self._revision:
            self._revision = fleet.revision
            self._sort_workers()
            self._fitting.clear()
        _, length = model_and_length(lane)
        cached = self._fitting.get(length)
        if cached is None:
            slots = fleet.buckets.fitting(
                self._slots, length, lambda slot: fleet.at_slot(slot).capacity_tokens
            )
            cached = self._fitting[length] = slots, self._pairing(slots)
        return cached

    def _pairing(self, slots: NDArray[np.intp]) -> Pairing | None:
        """Pair the prefill workers among these with the decode workers of their protocol."""
        if not self._partners:
            return None
        names = [partners.protocol for partners in self._partners]
        workers = [self.fleet.at_slot(slot) for slot in slots.tolist()]
        groups = [names.index(_protocol(each)) if each.role == "prefill" else ALONE for each in workers]
        return Pairing(slots, np.array(groups, dtype=np.intp), self._partners)

    def _wait_ended(self, _said: Waiting, _how: WaitEnd, _wait_s: float) -> None:
        """Requests keep their own books."""

    def first_token(self, dispatch: Dispatch) -> None:
        """The prefill is over; with a decode worker its work goes on there."""
        now_us, attempt_id = self._log_clock.now_us(), dispatch.attempt.request_id
        if dispatch.decode_attempt is not None:
            decode_id = dispatch.decode_attempt.request_id
            self.link_watch.prefilled(decode_id)
            self.publish(Finished(attempt_id, now_us, now_us))
            self.publish(FirstToken(decode_id, now_us))
            if dispatch.ships:
                self.link_watch.arrived(decode_id)
                self.publish(Shipped(decode_id, now_us))
        else:
            self.publish(FirstToken(attempt_id, now_us))
        self.room.changed()

    def completed(
        self, dispatch: Dispatch, usage: Usage, prefill_s: float, decode_s: float, *, told: bool
    ) -> None:
        """Release a complete answer, and learn from its usage and times.

        ``prefill_s`` goes from dispatch to the first token, or until its KV was where it is decoded,
        ``decode_s`` to the last token. ``told`` means `first_token` was called; only a plain worker may end
        without it.
        """
        assert told or dispatch.decode_attempt is None
        now_us = self._log_clock.now_us()
        last = dispatch.decode_attempt or dispatch.attempt
        self.publish(Finished(last.request_id, now_us, 0 if told else now_us))
        understood = self._feedback.understood(dispatch.attempt.worker_id, usage)
        if dispatch.decode_attempt is None:
            self._feedback.answered(
                dispatch.parsed, dispatch.attempt, understood, prefill_s, now_us, decode_s
            )
        else:
            # The predicted exposed part of the transfer is no prefill.
            prefill_s = max(prefill_s - dispatch.attempt.chosen.transfer_s, 0.0)
            self._feedback.answered(
                dispatch.parsed, dispatch.attempt, understood, prefill_s, now_us, decodes=False
            )
            assert understood.completion_tokens is not None
            self._feedback.decoded(
                dispatch.decode_attempt.worker_id, decode_s, understood.completion_tokens, now_us
            )
        self.room.changed()

    def aborted(self, dispatch: Dispatch, *, told: bool) -> None:
        """Release after a worker failed, or the client left; ``told`` means `first_token` was called."""
        now_us = self._log_clock.now_us()
        if not told or dispatch.decode_attempt is None:
            self.publish(Finished(dispatch.attempt.request_id, now_us))
        if dispatch.decode_attempt is not None:
            self.link_watch.dropped(dispatch.decode_attempt.request_id)
            self.publish(Finished(dispatch.decode_attempt.request_id, now_us))
        if not told:
            self._feedback.abandoned(dispatch.parsed, dispatch.attempt)
        self.room.changed()

    def collect(self) -> int:
        """Forget old entries, as the gateway does every second.

        Return leaked reservations, each of them a bug.
        """
        self._writer.loads_changed()
        return self.fleet.collect(self._log_clock.now_us())

    @property
    def turning(self) -> bool:
        """True while a worker drains for another role."""
        return any(TURNING_LABEL in worker.labels for worker in self.fleet.workers())

    def plan(self) -> Sequence[tuple[str, str]]:
        """Do what `router.pairs.role_planner` does in a look.

        Return free workers, and the roles that their engines are to take: then `role_taken`.
        """
        plan, now_us, rules = self.fleet.offload_plan, self.now_us, self._rules.roles
        members = [self._member(worker) for worker in self.fleet.workers()]
        demand = role_demand(self.fleet, members, self._feedback.learn_decodes, now_us)
        verdict = plan_roles(demand, members, plan, now_us, rules)
        step = turn_roles(verdict, members, plan, self.name, now_us, rules)
        self._turn(step)
        return step.free

    def role_taken(self, worker_id: str, role: str) -> None:
        """A worker's engine has taken a role, and its cache is empty."""
        worker = self.fleet.worker(worker_id)
        assert worker is not None
        member = self._member(worker)
        if member.turning:
            plan = self.fleet.offload_plan
            self._turn(role_taken(member, role, Switched.EMPTIED, plan, self.name, self.now_us))

    def _member(self, worker: Worker) -> RoleMember:
        fleet = self.fleet
        return RoleMember(
            worker,
            site=worker.site if worker.site != fleet.rules.site else "",
            convertible=worker.labels.get(CONVERTIBLE_LABEL, "") == "true",
            inflight_requests=int(fleet.loads.inflight_requests[worker.slot]),
            held_tokens=fleet.tree.held_blocks(worker.slot) * fleet.rules.block_tokens,
        )

    def _turn(self, step: RoleStep) -> None:
        for op in step.ops:
            self.publish(op)
        if step.events:
            self.room.changed()

    def publish(self, op: Op) -> None:
        """Apply an operation at once, and tell the others, or let the next load vector tell them."""
        told = self.fleet.load_reports.tells(op)
        self.fleet.apply(op)
        if told:
            self._writer.put(op)
        self._writer.loads_changed()

    def heard(self, ops: Sequence[Op]) -> None:
        """See `loadtest.simulator.shared_log.Reader`."""
        for op in ops:
            self.fleet.apply(op)
        self.room.changed()

    def _parsed(self, blocks: bytes, tokens: int, tenant: str) -> RequestFacts:
        path = np.frombuffer(blocks, dtype="<u8")[self._step - 1 :: self._step].tobytes()
        key = xxhash.xxh3_64_intdigest(blocks[-BLOCK_BYTES:] + tokens.to_bytes(8, "little"))
        return BareRequest(
            MODEL,
            (path,),
            tokens * BYTES_PER_TOKEN,
            key,
            int.from_bytes(path[:BLOCK_BYTES], "little") if path else key,
            tenant=tenant,
        )


def _protocol(worker: Worker) -> str:
    """Its hand-over protocol, by default SGLang's."""
    return worker.labels.get(HANDOVER_LABEL, "sglang")


def _takes_whole(protocol: str) -> bool:
    return protocol in HAND_OVERS and HAND_OVERS[protocol].prefills


class _Request:
    """One request, as long as it has no worker (`policies.dispatch.request_queue.Waiter`)."""

    __slots__ = ("_caller", "_replica", "arrived_us", "flow", "parsed")

    def __init__(self, replica: Replica, parsed: RequestFacts, flow: str, caller: Caller) -> None:
        self._replica = replica
        self._caller = caller
        self.parsed = parsed
        self.flow = flow
        self.arrived_us = replica.now_us

    def decide(self, ticket_id: str, turn: int) -> Decision | Queued | Shed:
        return self._replica.decide(self, ticket_id, turn)

    def dispatched(self, decision: Decision) -> None:
        self._caller.dispatched(self._replica.reserve(self.parsed, decision))

    def refused(self, refusal: QueueRefusal) -> None:
        expired = isinstance(refusal, Expired)
        self._caller.refused(Outcome.EXPIRED if expired else Outcome.REJECTED)
