"""Waiting rooms of several replicas over one fleet of workers, in virtual time and with a late log.

All that decides is real: `FleetState`, `PairDecider`, `Admission`, `Lanes`, `RequestQueue`, `DecodeSelector`.
Workers prefill one request after the other, each for as long as was predicted, and decode nothing. Decode
workers, if there are any, have each request for the same time.
"""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from fakes.gateway import VirtualTime

from policies import (
    ALONE,
    FULL_ATTENTION,
    Admission,
    AdmissionRules,
    BareRequest,
    DeciderParts,
    Decision,
    DecisionInput,
    DecisionRules,
    DecodeFit,
    EarlyRejection,
    Feedback,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Lanes,
    Left,
    Op,
    OpLog,
    OpRefused,
    Pairing,
    Partners,
    Queued,
    QueueOrder,
    QueueRefusal,
    RequestQueue,
    RoomRules,
    ServiceLevel,
    Shed,
    Slots,
    Unserved,
    WaitEnd,
    Waiting,
    WorkerPut,
    encode_op,
    lane_of,
    make_policy,
    model_and_length,
)
from policies.disaggregation import DecodeSelector, PairDecider

TOKENS_PER_S = 15_000
"""Prefill speed of the default service model, without its fixed 20 ms and at a short context."""

BLOCK_BYTES = 1024
BLOCK_TOKENS = 256


def text(tokens: int, name: int, shared: int = 0) -> BareRequest:
    """A prompt of so many tokens, the first ``shared`` of which all prompts of one ``name`` % 10 share."""
    blocks = [(name % 10, index) for index in range(shared // BLOCK_TOKENS)]
    blocks += [(1000 + name, index) for index in range(tokens // BLOCK_TOKENS - len(blocks))]
    path = b"".join(number.to_bytes(4, "little") + index.to_bytes(4, "little") for number, index in blocks)
    return BareRequest("m", (path,), 4 * tokens, name, name)


class Worker:
    """Prefills one request after the other."""

    def __init__(self, worker_id: str, stage: "Stage") -> None:
        self.worker_id = worker_id
        self.alive = True
        self._stage = stage
        self._queue: deque[Request] = deque()

    def send(self, request: "Request") -> None:
        self._queue.append(request)
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        assert self._queue[0].decision is not None
        self._stage.time.call_later(self._queue[0].decision.placed.service_us / 1e6, self._end)

    def _end(self) -> None:
        self._queue.popleft().prefilled()
        if self._queue:
            self._begin()


class Request:
    """One request at its replica (`policies.dispatch.request_queue.Waiter`)."""

    def __init__(self, replica: "Replica", parsed: BareRequest, flow: str) -> None:
        self.replica = replica
        self.parsed = parsed
        self.flow = flow
        self.arrived_us = replica.now_us()
        self.ticket_id = ""
        self.decision: Decision | None = None
        self.dispatched_us: int | None = None
        self.error: QueueRefusal | None = None
        self.done = False
        self.ttft_s = 0.0
        self.asked = 0
        self.service_us = 0
        """Service time of its first ticket, if it waited."""

    @property
    def waits(self) -> bool:
        return bool(self.ticket_id) and self.decision is None and self.error is None

    def begin(self) -> None:
        match self.decide("", -1):
            case Decision() as decision:
                self.dispatched(decision)
            case Queued(waiting=op) as queued:
                self.service_us = op.service_us
                self.ticket_id = op.request_id
                full = self.replica.room.begin(self, queued)
                if full is not None:
                    self.refused(full)
            case Shed() as shed:
                assert self.replica.stage.level is not None
                self.refused(shed)

    def decide(self, ticket_id: str, turn: int) -> Decision | Queued | Shed | Unserved:
        self.asked += 1
        replica = self.replica
        slots = replica.slots_of(lane_of(self.parsed.model))
        if not len(slots):
            return Unserved(LookupError("nobody"))
        lane = lane_of(self.parsed.model)
        now_us, pairing = replica.now_us(), replica.pairing_of(lane)
        return replica.decider.decide(
            DecisionInput(
                self.parsed,
                FULL_ATTENTION,
                slots,
                now_us,
                now_us / 1e6,
                pairing=pairing,
                arrived_us=self.arrived_us,
                flow=self.flow,
                ticket_id=ticket_id,
                turn=turn,
            )
        )

    def dispatched(self, decision: Decision) -> None:
        assert self.decision is None
        self.decision = decision
        self.dispatched_us = self.replica.now_us()
        self.replica.publish(decision.placed)
        if decision.decode is not None:
            self.replica.publish(decision.decode.placed)
        self.replica.stage.workers[decision.placed.worker].send(self)

    def refused(self, refusal: QueueRefusal) -> None:
        assert self.decision is None
        assert self.error is None
        self.error = refusal

    def prefilled(self) -> None:
        self.ttft_s = (self.replica.now_us() - self.arrived_us) / 1e6
        assert self.decision is not None
        now_us, attempt_id = self.replica.now_us(), self.decision.placed.request_id
        if self.decision.decode is not None:
            self.replica.publish(Finished(attempt_id, now_us, now_us))
            self.replica.publish(FirstToken(self.decision.decode.placed.request_id, now_us))
            self.replica.stage.time.call_later(self.replica.stage.decode_s, self.decoded)
            return
        self.done = True
        self.replica.publish(FirstToken(attempt_id, now_us))
        self.replica.publish(Finished(attempt_id, now_us))

    def decoded(self) -> None:
        self.done = True
        assert self.decision is not None
        assert self.decision.decode is not None
        self.replica.publish(Finished(self.decision.decode.placed.request_id, self.replica.now_us()))


class Replica:
    """One replica."""

    def __init__(
        self, name: str, stage: "Stage", k: float, rules: RoomRules, admission: AdmissionRules
    ) -> None:
        self.name = name
        self.stage = stage
        self.alive = True
        self.refuses: type[Op] | tuple[()] = ()
        """Operations of this kind cannot be published."""
        self.ended: list[tuple[Waiting, WaitEnd, float]] = []
        self.fleet = FleetState(FleetRules(weight_of=stage.weight_of))
        self._slots: dict[str, Slots] = {}
        self._pairings: dict[str, Pairing] = {}
        self._revision = -1
        self.admission = Admission(admission, self.fleet)
        self.decode_selector = DecodeSelector(self.fleet, self.admission, lambda _: DecodeFit())
        self.lanes = Lanes(self.slots_of, self.pairing_of, self.decode_selector)
        self.room = RequestQueue(
            log=OpLog(name, self.publish, self.now_us),
            fleet=self.fleet,
            admission=self.admission,
            lanes=self.lanes,
            rules=rules,
            call_later=self.call_later,
            grace_s=lambda: max(0.02, 4 * stage.delay_s),
            ended=lambda *wait: self.ended.append(wait),
        )
        self.decider = PairDecider(
            DeciderParts(
                self.fleet,
                Feedback(self.fleet, OpLog(name, self.publish, self.now_us), bytes_per_token=4.0),
                name,
                map(f"{name}-{{:x}}".format, itertools.count()).__next__,
            ),
            DecisionRules(
                make_policy("expected_cost"),
                BLOCK_TOKENS,
                BLOCK_BYTES,
                0,
                order=QueueOrder(
                    self.admission,
                    self.lanes,
                    k,
                    lambda _: stage.step_tokens,
                    None
                    if stage.level is None
                    else EarlyRejection(stage.level, self.fleet, lambda _: DecodeFit()),
                ),
            ),
            decode_selector=self.decode_selector,
        )

    def now_us(self) -> int:
        return self.stage.time.clock.now_us()

    def slots_of(self, lane: str) -> Slots:
        if self.fleet.revision != self._revision:
            self._slots.clear()
            self._revision = self.fleet.revision
        slots = self._slots.get(lane)
        if slots is None:
            model, _ = model_and_length(lane)
            slots = self._slots[lane] = np.array(
                sorted(
                    worker.slot
                    for worker in self.fleet.workers()
                    if not worker.draining and worker.labels.get("model", "m") == model
                    if worker.role != "decode" or worker.labels.get("handover") == "nixl"
                ),
                dtype=np.intp,
            )
        return slots

    def pairing_of(self, lane: str) -> Pairing | None:
        slots = self.slots_of(lane)
        pairing = self._pairings.get(lane)
        if pairing is None or pairing.slots is not slots:
            decode = [worker for worker in self.fleet.workers() if worker.role == "decode"]
            if not decode:
                return None
            needy = [self.fleet.at_slot(slot).role == "prefill" for slot in slots.tolist()]
            pairing = self._pairings[lane] = Pairing(
                slots,
                np.where(needy, 0, ALONE),
                (
                    Partners(
                        decode[0].labels.get("handover", "sglang"), np.array([each.slot for each in decode])
                    ),
                ),
            )
        return pairing

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        return self.stage.time.call_later(delay_s, lambda: self.alive and callback())

    def publish(self, op: Op) -> None:
        if not self.alive:
            return
        encode_op(op)
        if isinstance(op, self.refuses):
            raise OpRefused("as a test wants")
        self.fleet.apply(op)
        self.room.changed()
        self.stage.said.append(op)
        for other in self.stage.replicas:
            if other is not self:
                self.stage.deliver(op, other)

    def hear(self, op: Op) -> None:
        if self.alive:
            self.fleet.apply(op)
            self.room.changed()


class Stage:
    """Workers and replicas.

    Args:
        workers: Number of workers.
        replicas: Number of replicas.
        delay_s: Delay of the log.
        k: Factor of the order.
        rules: Rules of the rooms.
        admission: Limits of the work on workers.
        weight_of: Weight of a class or flow.
        step_tokens: Tokens of an engine's step, if its requests compute shared tokens twice (`followers`).
        level: Service level that the gateway promises, if any.
        decode: Number of decode workers.
        decode_s: Seconds that each of them decodes a request.
        decode_tokens: KV capacity of each, in tokens.
        protocol: Protocol of their handover.
    """

    def __init__(
        self,
        workers: int = 2,
        replicas: int = 1,
        *,
        delay_s: float = 0.0,
        k: float = 4.0,
        rules: RoomRules | None = None,
        admission: AdmissionRules | None = None,
        weight_of: Callable[[str], float] = lambda _: 1.0,
        step_tokens: int = 0,
        level: ServiceLevel | None = None,
        decode: int = 0,
        decode_s: float = 1.0,
        decode_tokens: int = 0,
        protocol: str = "sglang",
    ) -> None:
        self.decode_s = decode_s
        self.time = VirtualTime()
        self.delay_s = delay_s
        self.weight_of = weight_of
        self.step_tokens = step_tokens
        self.level = level
        self.said: list[Op] = []
        self.workers: dict[str, Worker] = {}
        self.requests: list[Request] = []
        self.replicas: list[Replica] = []
        made = [
            Replica(f"r{number}", self, k, rules or RoomRules(), admission or AdmissionRules())
            for number in range(replicas)
        ]
        self.replicas += made
        role = "prefill" if decode else "plain"
        labels = {"handover": protocol}
        for number in range(workers):
            self.put_worker(f"w{number}", role=role, labels=labels if decode else {})
        for number in range(decode):
            self.put_worker(f"d{number}", role="decode", capacity_tokens=decode_tokens, labels=labels)

    def put_worker(self, worker_id: str, **changes: Any) -> None:
        self.workers.setdefault(worker_id, Worker(worker_id, self))
        now_us = self.time.clock.now_us()
        op = WorkerPut(worker_id, now_us, "", f"http://{worker_id}")
        for replica in self.replicas:
            replica.hear(msgspec.structs.replace(op, **changes))

    def deliver(self, op: Op, replica: Replica) -> None:
        """Let a replica hear of an operation, after the earlier ones."""
        if self.delay_s:
            self.time.call_later(self.delay_s, lambda: replica.hear(op))
        else:
            replica.hear(op)

    def arrive(
        self,
        tokens: int,
        *,
        shared: int = 0,
        replica: int = 0,
        flow: str = "normal/",
        name: int | None = None,
    ) -> Request:
        parsed = text(tokens, len(self.requests) if name is None else name, shared)
        request = Request(self.replicas[replica], parsed, flow)
        self.requests.append(request)
        request.begin()
        return request

    def kill(self, number: int, *, heard_s: float) -> None:
        """A replica dies; the others hear of it so much later."""
        gone = self.replicas[number]
        gone.alive = False

        def left() -> None:
            op = Left(gone.name, self.time.clock.now_us())
            for replica in self.replicas:
                replica.hear(op)

        self.time.call_later(heard_s, left)

    def run(self, until_s: float = 600.0) -> None:
        """Let time pass until nothing happens any more."""
        end_s = self.time.time() + until_s
        while self.time.pending and self.time.time() < end_s:
            self.time.turn()

    def idle_while_waiting(self) -> list[str]:
        """Workers that stand idle although a request of a live replica waits which they might serve."""
        found = []
        for replica in self.replicas:
            if not replica.alive or not len(replica.room):
                continue
            idle = [w.slot for w in replica.fleet.workers() if not replica.fleet.loads.prefill_us[w.slot]]
            lanes = {op.lane for op in replica.room.tickets()}
            found += [
                replica.fleet.at_slot(slot).worker_id
                for slot in idle
                if any(slot in replica.slots_of(lane) for lane in lanes)
            ]
        return found
