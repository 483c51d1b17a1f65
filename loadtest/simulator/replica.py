"""One replica of the gateway, without its sockets: it decides, says so, and hears of the others late.

It does for a request what `router.gateway.exchange` does, with the same parts: `FleetState`, `Decider`,
`WaitingRoom`, `Feedback` and `LogClock` are the production ones, on virtual time. Left out is what moves
bytes.

    take ──┬── Placed ────> own FleetState at once
           │      └───────> SharedLog ──late──> the others' FleetStates
           └── Waiting ──> Placed, or Finished  (likewise, as everything below)
    first_token ─ FirstToken
    completed ─── Finished, then what Feedback learned: Trim, Forget, Fitted
    aborted ───── Finished, and Trim of what was inserted on trust

A prompt is text of `BYTES_PER_TOKEN` bytes a token, so that a block of the gateway is whole blocks of the
engine; its path is every k-th of the engine's chained hashes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.queueing import DEFAULT_FLOW, QueueRules
from loadtest.simulator.records import Outcome
from loadtest.simulator.shared_log import SharedLog
from policies import (
    Admission,
    BucketMember,
    EarlyRejection,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    LengthDemand,
    Op,
    Policy,
    Shed,
    Waiting,
    WorkerPut,
    plan_buckets,
)
from radix import AttentionProfile
from router.errors import RequestExpired, RouterError
from router.gateway.decision import Claim, Decider, Decision, Hold, Order
from router.gateway.endpoints import Endpoint
from router.gateway.feedback import Attempt, Feedback
from router.gateway.gateway import GRACE_LAGS, GRACE_S
from router.gateway.parsing import ParsedRequest
from router.gateway.queue_lanes import Lanes, lane_of, model_and_bucket
from router.gateway.usage import Usage
from router.gateway.waiting_room import WaitEnd, WaitingRoom
from router.shared import LogClock

BYTES_PER_TOKEN = 4
"""Also what a gateway assumes until it has learned (``placement.bytes_per_token``)."""

START_NS = 10**18
"""Log time at the start of a simulation; any time will do that is later than 0."""

BLOCK_BYTES = 8
"""Of a block hash in a path."""

MODEL = "simulated"
"""What all requests ask for."""

NO_SLOTS: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
"""Nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRules:
    """What a replica's settings would say.

    Attributes:
        policy: Chooses the worker of a request (its prefill worker, if there are decode workers).
        decode_policy: Chooses its decode worker.
        profile: What of a prefix match the model can reuse.
        fleet: Rules of the fold.
        engine_block_tokens: Tokens of a block of the engine, in which prompts come.
        expected_output_tokens: Assumed of every answer.
        queue: How requests wait; None: they never do.
        step_tokens: What one step of an engine prefills at most, if others find it only when it is over.
    """

    policy: Policy
    decode_policy: Policy
    profile: AttentionProfile
    fleet: FleetRules
    engine_block_tokens: int = 64
    expected_output_tokens: int = 256
    queue: QueueRules | None = None
    step_tokens: int = 0


class Caller(Protocol):
    """Who sent a request."""

    def dispatched(self, dispatch: "Dispatch") -> None:
        """It goes to its worker."""

    def refused(self, outcome: Outcome) -> None:
        """It never will."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request on its way, as its replica remembers it.

    Attributes:
        parsed: The request as the gateway read it.
        attempt: How it was placed.
        decode_attempt: How it was placed on a decode worker; None without one.
    """

    parsed: ParsedRequest
    attempt: Attempt
    decode_attempt: Attempt | None = None


class Replica:
    """One replica.

    Args:
        name: Unique among the replicas.
        clock: Virtual time.
        rules: Its settings.
        log: Where it says what it does.
    """

    def __init__(self, name: str, clock: VirtualClock, rules: ReplicaRules, log: SharedLog) -> None:
        self.name = name
        self.fleet = FleetState(rules.fleet)
        self._rules = rules
        self._clock = clock
        self._log_clock = LogClock(lambda: int(clock.time() * 1e9), lambda: START_NS)
        self._writer = log.writer(self)
        self._feedback = Feedback(
            self.fleet, publish=self.publish, replica=name, bytes_per_token=BYTES_PER_TOKEN
        )
        decider = partial(
            Decider,
            self.fleet,
            feedback=self._feedback,
            replica=name,
            block_tokens=rules.fleet.block_tokens,
            block_bytes=BYTES_PER_TOKEN * rules.fleet.block_tokens,
            expected_output_tokens=rules.expected_output_tokens,
        )
        queue = rules.queue or QueueRules()
        admission, lanes = Admission(queue.admission, self.fleet), Lanes(self._slots_of)
        rejection = EarlyRejection(queue.level, self.fleet, self._feedback.decode_fit)
        order = Order(
            admission,
            lanes,
            queue.k,
            lambda _slot: rules.step_tokens,
            rejection if queue.level.promises else None,
        )
        self.fleet.tickets.watched = name
        self.room = WaitingRoom(
            replica=name,
            fleet=self.fleet,
            admission=admission,
            lanes=lanes,
            rules=queue.room,
            publish=self.publish,
            now_us=self._log_clock.now_us,
            call_later=clock.call_later,
            grace_s=lambda: max(GRACE_S, GRACE_LAGS * log.delay_s),
            ended=self._wait_ended,
        )
        self._decider = decider(
            policy=rules.policy,
            next_attempt_id=map(f"{name}-{{:x}}".format, count()).__next__,
            order=order if rules.queue else None,
        )
        self._decode_decider = decider(
            policy=rules.decode_policy, next_attempt_id=map(f"{name}-d{{:x}}".format, count()).__next__
        )
        self._step = rules.fleet.block_tokens // rules.engine_block_tokens
        assert self._step * rules.engine_block_tokens == rules.fleet.block_tokens
        self._slots = self._decode_slots = NO_SLOTS
        self._fitting: dict[int, NDArray[np.intp]] = {}
        self._revision = -1

    def know(self, workers: Iterable[WorkerPut]) -> None:
        """Learn of the workers, in the order of their slots."""
        for op in workers:
            self.fleet.apply(op)
        known = sorted(self.fleet.workers(), key=lambda worker: worker.slot)
        decode = [worker.slot for worker in known if worker.role == "decode"]
        others = [worker.slot for worker in known if worker.role != "decode"]
        self._slots, self._decode_slots = (np.array(part, dtype=np.intp) for part in (others, decode))

    def take(self, blocks: bytes, tokens: int, caller: Caller, flow: str = DEFAULT_FLOW) -> None:
        """Let a request go, wait, or neither.

        Args:
            blocks: The prompt's packed chained hashes of the engine's blocks.
            tokens: Its length.
            caller: Told what becomes of it, now or later.
            flow: Its class and tenant.
        """
        request = _Request(self, self._parsed(blocks, tokens), flow, caller)
        match request.decide("", -1):
            case Decision() as decision:
                request.dispatched(decision)
            case Hold() as hold:
                try:
                    self.room.enter(request, hold)
                except RouterError as error:
                    request.refused(error)
            case Shed():
                caller.refused(Outcome.REJECTED)

    def decide(self, request: "_Request", ticket_id: str, turn: int) -> Decision | Hold | Shed:
        """Choose a worker, and see whether it is a request's turn there."""
        bucket = self._decider.bucket_of(request.parsed)
        lane = lane_of(MODEL, bucket)
        claim = Claim(request.arrived_us, lane, request.flow, ticket_id, turn)
        now_us, now_s, slots = self._log_clock.now_us(), self._clock.time(), self._slots_of(lane)
        return self._decider.decide(request.parsed, self._rules.profile, slots, now_us, now_s, claim, bucket)

    def reserve(self, parsed: ParsedRequest, decision: Decision) -> Dispatch | Shed:
        """Reserve on the chosen worker, and on one that decodes if there are such."""
        self.publish(decision.placed)
        if not len(self._decode_slots):
            return Dispatch(parsed, decision.attempt)
        # Nothing is prefilled there, and what a prefill worker holds is of no use to it.
        unmatched = msgspec.structs.replace(parsed, paths=())
        now_us, now_s, profile = self._log_clock.now_us(), self._clock.time(), self._rules.profile
        partners = self.fleet.buckets.together_with(self._decode_slots, decision.attempt.chosen.slot)
        bucket = self._decode_decider.bucket_of(unmatched)
        decode = self._decode_decider.decide(unmatched, profile, partners, now_us, now_s, bucket=bucket)
        if isinstance(decode, Shed):
            self.publish(Finished(decision.attempt.request_id, now_us))
            return decode
        assert not isinstance(decode, Hold)
        self.publish(msgspec.structs.replace(decode.placed, service_us=0, uncached_tokens=0))
        return Dispatch(parsed, decision.attempt, decode.attempt)

    @property
    def now_us(self) -> int:
        """Log time."""
        return self._log_clock.now_us()

    def _slots_of(self, lane: str) -> NDArray[np.intp]:
        """Who may take the requests of a lane, by the rule of `router.fleet.registry`: here all are well."""
        fleet, buckets = self.fleet, self.fleet.buckets
        if fleet.revision != self._revision:
            self._revision = fleet.revision
            self._fitting.clear()
        _, bucket = model_and_bucket(lane)
        slots = self._fitting.get(bucket)
        if slots is None:
            slots = buckets.fitting(self._slots, bucket, lambda slot: fleet.at_slot(slot).capacity_tokens)
            self._fitting[bucket] = slots
        return buckets.may_take(slots, fleet.loads.oldest_prefill_us) if buckets.moving else slots

    def _wait_ended(self, _said: Waiting, _how: WaitEnd, _wait_s: float) -> None:
        """Requests keep their own books."""

    def first_token(self, dispatch: Dispatch) -> None:
        """The prefill is over; with a decode worker its work goes on there."""
        now_us, attempt_id = self._log_clock.now_us(), dispatch.attempt.request_id
        if dispatch.decode_attempt is not None:
            self.publish(Finished(attempt_id, now_us, now_us))
        else:
            self.publish(FirstToken(attempt_id, now_us))
        self.room.changed()

    def completed(self, dispatch: Dispatch, usage: Usage, ttft_s: float, *, told: bool) -> None:
        """The answer is complete: release, and learn from it.

        Args:
            dispatch: Of the request.
            usage: What the engine reports.
            ttft_s: From dispatch to first byte.
            told: Whether `first_token` was called; only a plain worker may end without it.
        """
        assert told or dispatch.decode_attempt is None
        now_us = self._log_clock.now_us()
        last = dispatch.decode_attempt or dispatch.attempt
        self.publish(Finished(last.request_id, now_us, 0 if told else now_us))
        understood = self._feedback.understood(dispatch.attempt.worker_id, usage)
        self._feedback.answered(dispatch.parsed, dispatch.attempt, understood, ttft_s, now_us)
        self.room.changed()

    def aborted(self, dispatch: Dispatch, *, told: bool) -> None:
        """A worker failed, or the client left.

        Args:
            dispatch: Of the request.
            told: Whether `first_token` was called.
        """
        now_us = self._log_clock.now_us()
        if not told or dispatch.decode_attempt is None:
            self.publish(Finished(dispatch.attempt.request_id, now_us))
        if dispatch.decode_attempt is not None:
            self.publish(Finished(dispatch.decode_attempt.request_id, now_us))
        if not told:
            self._feedback.abandoned(dispatch.parsed, dispatch.attempt)
        self.room.changed()

    def collect(self) -> int:
        """Forget what is too old to matter, as the gateway does every second.

        Returns:
            Reservations that nobody ever released: each one is a bug somewhere.
        """
        return self.fleet.collect(self._log_clock.now_us())

    def divide(self) -> None:
        """Do what `router.fleet.bucket_planner` does, if length buckets are automatic."""
        fleet, buckets = self.fleet, self.fleet.buckets
        if not buckets.automatic or buckets.bounds is None:
            return
        demand = LengthDemand(*fleet.lengths.totals(self.now_us), fleet.service_model("default"))
        members = [
            BucketMember(
                fleet.at_slot(slot).worker_id, buckets.of(slot), held_tokens=fleet.tree.held_blocks(slot)
            )
            for slot in self._slots.tolist()
        ]
        plans, now_us = buckets.plans, self.now_us
        verdict = plan_buckets(demand, buckets.bounds, members, plans, replica=self.name, now_us=now_us)
        if verdict.plan is not None:
            self.publish(verdict.plan)

    def publish(self, op: Op) -> None:
        """Apply an operation at once, and tell the others."""
        self.fleet.apply(op)
        self._writer.put(op)

    def heard(self, ops: Sequence[Op]) -> None:
        """See `loadtest.simulator.shared_log.Reader`."""
        for op in ops:
            self.fleet.apply(op)
        self.room.changed()

    def _parsed(self, blocks: bytes, tokens: int) -> ParsedRequest:
        """What the gateway would make of the prompt."""
        path = np.frombuffer(blocks, dtype="<u8")[self._step - 1 :: self._step].tobytes()
        key = xxhash.xxh3_64_intdigest(blocks[-BLOCK_BYTES:] + tokens.to_bytes(8, "little"))
        return ParsedRequest(
            endpoint=Endpoint.CHAT,
            model=MODEL,
            stream=True,
            output_tokens_max=None,
            n=1,
            include_usage=True,
            priority=0,
            tenant="",
            session="",
            lora=None,
            paths=(path,),
            prompt_bytes=tokens * BYTES_PER_TOKEN,
            prompt_token_ids=0,
            key=key,
            prefix_key=int.from_bytes(path[:BLOCK_BYTES], "little") if path else key,
        )


class _Request:
    """One request, as long as it has no worker (`router.gateway.waiting_room.Waiter`)."""

    __slots__ = ("_caller", "_replica", "arrived_us", "flow", "parsed")

    def __init__(self, replica: Replica, parsed: ParsedRequest, flow: str, caller: Caller) -> None:
        self._replica = replica
        self._caller = caller
        self.parsed = parsed
        self.flow = flow
        self.arrived_us = replica.now_us

    def decide(self, ticket_id: str, turn: int) -> Decision | Hold | Shed:
        return self._replica.decide(self, ticket_id, turn)

    def dispatched(self, decision: Decision) -> None:
        dispatch = self._replica.reserve(self.parsed, decision)
        if isinstance(dispatch, Shed):
            self._caller.refused(Outcome.REJECTED)
        else:
            self._caller.dispatched(dispatch)

    def refused(self, error: RouterError) -> None:
        expired = isinstance(error, RequestExpired)
        self._caller.refused(Outcome.EXPIRED if expired else Outcome.REJECTED)
